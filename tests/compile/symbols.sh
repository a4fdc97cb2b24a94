#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What kernel objects (Release) may define and need.
#   symbols.sh OBJECT...
# Weak symbols must carry an ISA namespace: the linker keeps one of several equal ones, and what it keeps from an AVX-512 object
# would crash a machine without. Undefined symbols show what kernels call: of the C library, moves of memory and fused
# multiply-add; no allocation, no throw, no std:: functions, no exp. (An executor may throw through a kernel: unwinding stays.)
set -euo pipefail
[ $# -gt 0 ] || { echo "usage: symbols.sh OBJECT..." >&2; exit 1; }
# On AArch64 atomics are functions of the compiler's own library, which picks the CPU's instructions.
allowed='^(mem(cpy|move|set|cmp)|fmaf?|sqrtf?|__aarch64_(ldadd|cas|swp)[0-9]+_[a-z_]+|_GLOBAL_OFFSET_TABLE_|__stack_chk_fail|__gxx_personality_v0|_Unwind_Resume)$'
failed=
for object in "$@"; do
  shared=$(nm --demangle --defined-only "$object" | sed -nE 's/^[0-9a-f]+ [WwVvu] //p' | grep -vE 'isa_(scalar|neon|avx2|avx512)|^DW\.ref\.__gxx_personality_v0$' || true)
  needed=$(nm --demangle --undefined-only "$object" | sed -E 's/^ *U //' | grep -vE "$allowed" || true)
  guards=$(nm "$object" | grep -E ' [tT] _GLOBAL__sub_I_' || true)
  [ -z "$shared" ] || { failed=1; printf '%s: weak symbols without an ISA namespace:\n%s\n' "$object" "$shared"; }
  [ -z "$needed" ] || { failed=1; printf '%s: kernels call:\n%s\n' "$object" "$needed"; }
  [ -z "$guards" ] || { failed=1; printf '%s: runs code at program start\n' "$object"; }
done
[ -z "$failed" ] || exit 1
echo "$# objects are clean"
