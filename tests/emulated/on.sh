#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a test program for one ISA: on this CPU if it has that ISA, else on an emulated CPU that has just that.
#   on.sh [--file PATH]... ISA PROGRAM [ARGS...]
#   on.sh --native                prints the ISAs that this CPU has, semicolons between
#     ISA          of a program for x86-64: scalar, avx2, avx512, avx512_bf16; for AArch64: scalar, neon
#     --file PATH  a file or folder that the program reads; the emulator sees it under the same absolute path
#   KDA_FORCE_EMULATION=1    emulates whatever this CPU has
#   KDA_EMULATION_TIMEOUT=S  the program's time limit in the emulator (default 900 s)
# Prints "isa ISA: native" or "isa ISA: emulated (bochs)" first; a program for AArch64 is emulated by qemu. The program gets
# KDA_TEST_ISA=ISA and the KDA_* variables of the environment; emulated also KDA_EMULATED=bochs or qemu. Bochs is set up at its
# first use (setup.sh, minutes).
# Exit status: the program's; 124 and 125 as in run.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
die() { echo "on.sh: ERROR: $*" >&2; exit 2; }

# has ISA: this CPU has it
cpu_flags=" $(sed -n '/^flags[[:space:]]*:/{s///p;q}' /proc/cpuinfo) "
has() {
  local needed flag
  case $1 in
    neon) [ "$(uname -m)" = aarch64 ]; return ;;
    scalar) needed="" ;;
    avx2) needed="avx2 fma f16c" ;;
    avx512) needed="avx2 fma f16c avx512f avx512cd avx512bw avx512dq avx512vl" ;;
    avx512_bf16) needed="avx2 fma f16c avx512f avx512cd avx512bw avx512dq avx512vl avx512_bf16" ;;
  esac
  for flag in $needed; do [[ $cpu_flags == *" $flag "* ]] || return 1; done
}
if [ "${1:-}" = --native ]; then
  for isa in scalar neon avx2 avx512 avx512_bf16; do ! has $isa || echo $isa; done | paste -sd ';'
  exit
fi

files=()
while [ "${1:-}" = --file ]; do
  [ -e "${2:-}" ] || die "--file: no such file: ${2:-}"
  files+=(--file "$(realpath "$2")")
  shift 2
done
[ $# -ge 2 ] || die "usage: on.sh [--file PATH]... ISA PROGRAM [ARGS...]"
isa=$1 program=$2
shift 2
[ -x "$program" ] || die "no such program: $program"

case $(od -An -tu2 -j18 -N2 "$program" | tr -d ' ') in # the ELF header's e_machine
  62) architecture=x86_64 ;;
  183) architecture=aarch64 ;;
  *) die "a program for neither x86-64 nor AArch64: $program" ;;
esac
# The emulated model has the ISA and nothing newer: code of a higher ISA that the linker let slip into a lower one dies there
# of an illegal instruction. AArch64 is the first of its kind: every one has NEON.
case $architecture/$isa in
  x86_64/scalar) model=core2_penryn_t9600 ;;
  x86_64/avx2) model=corei7_haswell_4770 ;;
  x86_64/avx512) model=corei7_skylake_x ;;
  x86_64/avx512_bf16) model=sapphire_rapids ;;
  aarch64/scalar | aarch64/neon) ;;
  *) die "unknown ISA of $architecture: $isa (x86_64: scalar, avx2, avx512, avx512_bf16; aarch64: scalar, neon)" ;;
esac
if [ "${KDA_FORCE_EMULATION:-}" != 1 ] && [ $architecture = "$(uname -m)" ] && has "$isa"; then
  echo "isa $isa: native"
  KDA_TEST_ISA=$isa exec "$program" "$@"
fi
if [ $architecture = aarch64 ]; then
  command -v qemu-aarch64-static > /dev/null || die "qemu-aarch64-static is missing; as root: apt-get install qemu-user-static"
  echo "isa $isa: emulated (qemu)"
  KDA_TEST_ISA=$isa KDA_EMULATED=qemu exec timeout "${KDA_EMULATION_TIMEOUT:-900}" qemu-aarch64-static -cpu cortex-a57 "$program" "$@"
fi
echo "isa $isa: emulated (bochs)"
"$here/setup.sh" --quiet >&2
variables=(--env "KDA_TEST_ISA=$isa")
while IFS= read -r name; do
  case $name in KDA_TEST_ISA | KDA_EMULATED | KDA_FORCE_EMULATION | KDA_EMULATION_TIMEOUT | KDA_BOCHS_*) continue ;; esac
  variables+=(--env "$name=${!name}")
done < <(compgen -e KDA_)
exec "$here/run.sh" --cpu "$model" --timeout "${KDA_EMULATION_TIMEOUT:-900}" "${files[@]}" "${variables[@]}" -- "$program" "$@"
