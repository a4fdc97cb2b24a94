#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a test program for one ISA: on this CPU if it has that ISA, else on an emulated CPU that has just that.
#   on.sh [--file PATH]... ISA PROGRAM [ARGS...]
#   on.sh --native                prints the ISAs that this CPU has, semicolons between
#     ISA          scalar, avx2, avx512 or avx512_bf16
#     --file PATH  a file or folder that the program reads; the emulator sees it under the same absolute path
#   KDA_FORCE_EMULATION=1    emulates whatever this CPU has
#   KDA_EMULATION_TIMEOUT=S  the program's time limit in the emulator (default 900 s)
# Prints "isa ISA: native" or "isa ISA: emulated (bochs)" first. The program gets KDA_TEST_ISA=ISA and the KDA_* variables
# of the environment; in the emulator also KDA_EMULATED=bochs. The emulator is set up at its first use (setup.sh, minutes).
# Exit status: the program's; 124 and 125 as in run.sh.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
die() { echo "on.sh: ERROR: $*" >&2; exit 2; }

# has ISA: this CPU has it
cpu_flags=" $(sed -n '/^flags[[:space:]]*:/{s///p;q}' /proc/cpuinfo) "
has() {
  local needed flag
  case $1 in
    scalar) needed="" ;;
    avx2) needed="avx2 fma f16c" ;;
    avx512) needed="avx2 fma f16c avx512f avx512cd avx512bw avx512dq avx512vl" ;;
    avx512_bf16) needed="avx2 fma f16c avx512f avx512cd avx512bw avx512dq avx512vl avx512_bf16" ;;
  esac
  for flag in $needed; do [[ $cpu_flags == *" $flag "* ]] || return 1; done
}
if [ "${1:-}" = --native ]; then
  for isa in scalar avx2 avx512 avx512_bf16; do ! has $isa || echo $isa; done | paste -sd ';'
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

# The emulated model has the ISA and nothing newer: code of a higher ISA that the linker let slip into a lower one dies there
# of an illegal instruction.
case $isa in
  scalar) model=core2_penryn_t9600 ;;
  avx2) model=corei7_haswell_4770 ;;
  avx512) model=corei7_skylake_x ;;
  avx512_bf16) model=sapphire_rapids ;;
  *) die "unknown ISA: $isa (scalar, avx2, avx512 or avx512_bf16)" ;;
esac
if [ "${KDA_FORCE_EMULATION:-}" != 1 ] && has "$isa"; then
  echo "isa $isa: native"
  KDA_TEST_ISA=$isa exec "$program" "$@"
fi
echo "isa $isa: emulated (bochs)"
"$here/setup.sh" --quiet >&2
variables=(--env "KDA_TEST_ISA=$isa")
while IFS= read -r name; do
  case $name in KDA_TEST_ISA | KDA_EMULATED | KDA_FORCE_EMULATION | KDA_EMULATION_TIMEOUT | KDA_BOCHS_*) continue ;; esac
  variables+=(--env "$name=${!name}")
done < <(compgen -e KDA_)
exec "$here/run.sh" --cpu "$model" --timeout "${KDA_EMULATION_TIMEOUT:-900}" "${files[@]}" "${variables[@]}" -- "$program" "$@"
