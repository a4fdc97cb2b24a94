#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What tests/run.sh leaves out: the other compiler and mode pairs, most tests of avx512_bf16, AArch64 beyond NEON, emulation of ISAs that this CPU has, products contracted and
# not, the newest xsimd, and deliberate faults. Hours on two cores; logs under build/nightly.
#   tests/nightly.sh [STEP...]   only these steps (default: all, listed at the end of this file)
# Prints a table and exits with 1 if any step failed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD
logs=$root/build/nightly
mkdir -p "$logs"
tests/install.sh g++:g++ cmake:cmake ninja:ninja-build libxsimd-dev catch2 nlohmann-json3-dev clang++-14:clang-14 libclang-rt-14-dev \
  python3:python3 unzip:unzip aarch64-linux-gnu-g++:g++-aarch64-linux-gnu qemu-aarch64-static:qemu-user-static
python3 -m pip --version > /dev/null 2>&1 || tests/install.sh python3-pip

preset() { # preset NAME PRESET [CMAKE OPTIONS]: builds and tests it as build/NAME
  local name=$1 preset=$2
  shift 2
  cmake --preset "$preset" -B "build/$name" -DKDA_TEST_TREE=OFF -DKDA_BUILD_EXAMPLES=OFF -DKDA_BUILD_BENCHMARKS=OFF "$@" || return 1
  cmake --build "build/$name" --parallel "$(nproc)" || return 1
  ctest --test-dir "build/$name" --parallel "$(nproc)" --output-on-failure --no-tests=error --no-label-summary
}
gcc_sanitized() { preset gcc-sanitized gcc-sanitized "-DKDA_TEST_ISAS=$(tests/emulated/on.sh --native)"; }
# All tests of avx512_bf16, of which tests/run.sh runs those of its own kernels.
avx512_bf16() { preset nightly-avx512-bf16 gcc-release -DKDA_TEST_ISAS=avx512_bf16; }
clang_release() { preset clang-release clang-release -DCMAKE_CXX_COMPILER=clang++-14; }
# Portable code of AArch64, of which tests/run.sh runs NEON alone, and the bounds of docs/numerics.md there.
aarch64() {
  preset nightly-aarch64 aarch64 "-DKDA_TEST_ISAS=neon;scalar" || return 1
  tests/emulated/on.sh neon build/nightly-aarch64/tests/kda_numerics || return 1
  KDA_COMPILERS=aarch64-linux-gnu-g++ tests/compile/headers.sh || return 1
  clang++-14 --target=aarch64-linux-gnu -std=c++20 -O2 -Wall -Wextra -Werror -I include -c tests/compile/kernels.cpp -o /dev/null
}
# Every ISA on an emulated CPU that has nothing newer: shows code of a higher ISA that slipped into a lower one.
emulation() { KDA_FORCE_EMULATION=1 preset nightly-emulation gcc-release; }
# gcc contracts products and sums unless told otherwise: told so, nothing changes, in the errors of the golden files neither.
contract_off() {
  preset nightly-contract-off gcc-release -DCMAKE_CXX_FLAGS=-ffp-contract=off || return 1
  cmake --preset gcc-release -B build/nightly-emulation -DKDA_TEST_TREE=OFF -DKDA_BUILD_EXAMPLES=OFF -DKDA_BUILD_BENCHMARKS=OFF || return 1
  cmake --build build/nightly-emulation --parallel "$(nproc)" --target kda_golden_test || return 1
  diff <(build/nightly-emulation/tests/kda_golden_test) <(build/nightly-contract-off/tests/kda_golden_test)
}
contract_fast() { preset nightly-contract-fast clang-release -DCMAKE_CXX_COMPILER=clang++-14 -DCMAKE_CXX_FLAGS=-ffp-contract=fast; }
# The newest xsimd that PyPI has: pythran carries its headers.
newest_xsimd() {
  local folder=$root/build/nightly/xsimd
  rm -rf "$folder" && mkdir -p "$folder" || return 1
  python3 -m pip download --quiet --no-deps --only-binary :all: --dest "$folder" pythran || return 1
  unzip -q "$folder"/pythran-*.whl 'pythran/xsimd/*' -d "$folder" && mkdir "$folder/include" &&
    mv "$folder/pythran/xsimd" "$folder/include" || return 1
  grep -E 'define XSIMD_VERSION_(MAJOR|MINOR)' "$folder/include/xsimd/config/xsimd_config.hpp" || return 1
  preset nightly-newest-xsimd gcc-release "-DKDA_XSIMD_INCLUDE_DIR=$folder/include" || return 1
  preset nightly-newest-xsimd-aarch64 aarch64 "-DKDA_XSIMD_INCLUDE_DIR=$folder/include"
}
# Data races: the tests with threads, on the ISA that compiles fastest. OpenMP's have a program of their own, which is not run.
tsan() {
  cmake --preset gcc-sanitized -B build/nightly-tsan -DKDA_SANITIZE=thread "-DCMAKE_CXX_FLAGS_DEBUG=-O1 -g1" -DKDA_TEST_ISAS=scalar \
    -DKDA_BUILD_EXAMPLES=OFF || return 1
  cmake --build build/nightly-tsan --parallel "$(nproc)" --target kda_tests || return 1
  KDA_TEST_ISA=scalar KDA_TEST_SMALL=1 build/nightly-tsan/tests/kda_tests '[executors]'
}
faults() { tests/faults/run.sh; }

steps=(gcc_sanitized avx512_bf16 aarch64 clang_release emulation contract_off contract_fast newest_xsimd tsan faults)
[ $# -eq 0 ] || steps=("$@")
failed=
for step in "${steps[@]}"; do
  declare -F "$step" > /dev/null || { echo "nightly.sh: ERROR: no step $step" >&2; exit 2; }
  start=$SECONDS verdict=ok
  "$step" > "$logs/$step.log" 2>&1 || { verdict=FAILED failed=1; }
  printf '%-8s %-14s %5d s  %s\n' "$verdict" "$step" $((SECONDS - start)) "$(grep -E 'tests passed|tests failed|^faults:' "$logs/$step.log" | tail -1)"
  [ "$verdict" = ok ] || tail -30 "$logs/$step.log"
done
[ -z "$failed" ]
