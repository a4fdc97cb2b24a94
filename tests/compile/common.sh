# SPDX-License-Identifier: Apache-2.0
# Shared by the compile tests: where the headers are, how they are compiled, and a loop over jobs on all cores.
# Read with `source`, after `set -euo pipefail`. The environment names what differs between machines:
#   KDA_COMPILERS      compilers to test with, blanks between ("g++ clang++")
#   KDA_EXTRA_INCLUDE  folders with xsimd and nlohmann/json, blanks between
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "$*" >&2; exit 1; }

compilers=${KDA_COMPILERS:?names the compilers to test with}
base="-std=c++20 -I$root/include"
for folder in ${KDA_EXTRA_INCLUDE:-}; do # said by hand, the compiler's own folder would change place and hide the C library's
  [ "$folder" = /usr/include ] || base+=" -isystem $folder"
done
# gcc at -O0, where its intrinsics are macros, clang at -O2: with the builds of the tests, gcc's at -O3 and clang's at -O0, that
# makes both levels of both.
level_of() { case $("$1" --version) in *clang*) echo -O2 ;; *) echo -O0 ;; esac; } # level_of COMPILER
warnings="-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wold-style-cast -Wdouble-promotion -Wundef -Werror"
bare="-fno-exceptions -fno-rtti"
case $(${compilers%% *} -dumpmachine) in
  x86_64-*) isas="scalar avx2 avx512 avx512_bf16" ;;
  aarch64-*) isas="scalar neon" ;;
  *) isas="scalar" ;;
esac
isa_flags() { # isa_flags ISA: what kda_add_kernels() compiles it with
  case $1 in
    scalar) echo "-DKDA_TARGET_SCALAR=1" ;;
    neon) echo "-DKDA_TARGET_NEON=1" ;;
    avx2) echo "-DKDA_TARGET_AVX2=1 -mavx2 -mfma -mf16c" ;;
    avx512) echo "-DKDA_TARGET_AVX512=1 -mavx2 -mfma -mf16c -mavx512f -mavx512cd -mavx512bw -mavx512dq -mavx512vl" ;;
    avx512_bf16) echo "-DKDA_TARGET_AVX512_BF16=1 -mavx2 -mfma -mf16c -mavx512f -mavx512cd -mavx512bw -mavx512dq -mavx512vl -mavx512bf16" ;;
  esac
}

cd "$root/include"
all_headers=$(find kda -name '*.hpp' | sort)
# The kernel headers are the umbrella and what it includes; the others are opt-in and may use exceptions and allocate.
kernel_headers=$(${compilers%% *} $base -DKDA_TARGET_SCALAR=1 -MM -x c++ kda/kda.hpp | tr ' \\' '\n\n' | grep '\.hpp$' |
  xargs realpath --relative-to=. | sort -u)
opt_in_headers=$(comm -23 <(echo "$all_headers") <(echo "$kernel_headers"))
[ -n "$kernel_headers" ] || fail "no kernel headers found"

# run_jobs FILE: runs the lines of FILE, each "LABEL<TAB>COMMAND", on all cores; prints output and label of those that fail.
run_jobs() {
  local count
  count=$(wc -l < "$1")
  [ "$count" -gt 0 ] || fail "nothing to test"
  export -f run_job
  if ! tr '\n' '\0' < "$1" | xargs -0 -n1 -P "$(nproc)" bash -c 'run_job "$0"'; then return 1; fi
  echo "$count compiled"
}
run_job() {
  local output
  if ! output=$(bash -c "${1#*$'\t'}" 2>&1); then
    printf 'FAILED %s\n%s\n' "${1%%$'\t'*}" "$output"
    return 1
  fi
}
