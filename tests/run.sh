#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tests, from nothing: installs what is missing (Debian 12), builds under build/, runs.
#   tests/run.sh           everything: gcc Release, clang Debug with sanitizers, gcc for AArch64 (under qemu), every ISA (emulated
#                          where this CPU lacks it), golden files, consumer projects, headers alone, format
#   tests/run.sh --quick   gcc Release alone, without consumers and headers
#   tests/run.sh --golden  the golden files alone (KDA_GOLDEN_DIR names another folder); last line "golden: N files, M failed"
set -euo pipefail
mode=${1:-}
case $mode in "" | --quick | --golden) ;; *) echo "usage: tests/run.sh [--quick | --golden]" >&2; exit 2 ;; esac
[ -z "${KDA_GOLDEN_DIR:-}" ] || export KDA_GOLDEN_DIR=$(realpath -m "$KDA_GOLDEN_DIR")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tests/install.sh g++:g++ cmake:cmake ninja:ninja-build libxsimd-dev catch2 nlohmann-json3-dev libbenchmark-dev
[ "$mode" = --golden ] || tests/install.sh clang-format-14:clang-format-14 python3:python3
[ -n "$mode" ] || tests/install.sh clang++-14:clang-14 libclang-rt-14-dev aarch64-linux-gnu-g++:g++-aarch64-linux-gnu \
  qemu-aarch64-static:qemu-user-static

build() { # build PRESET [CMAKE OPTIONS] [-- TARGET...]
  local preset=$1 options=()
  shift
  while [ $# -gt 0 ] && [ "$1" != -- ]; do options+=("$1"); shift; done
  [ $# -eq 0 ] || shift
  echo "== building $preset"
  cmake --preset "$preset" "${options[@]}" > "build/$preset.log" || { tail -20 "build/$preset.log"; exit 1; }
  cmake --build "build/$preset" --parallel "$(nproc)" ${*:+--target "$@"}
}

mkdir -p build
case $mode in
  --golden)
    build gcc-release -- kda_golden_test >&2
    exec tests/golden.sh build/gcc-release/tests/kda_golden_test
    ;;
  --quick)
    build gcc-release
    exec ctest --test-dir build/gcc-release --parallel "$(nproc)" --output-on-failure --no-tests=error -LE 'consumer|compile' --no-label-summary
    ;;
esac
build gcc-release
# A sanitized program cannot be emulated: it gets the vector ISAs that this CPU has, gcc-release tests the others. nightly.sh has
# scalar too.
isas=$(tests/emulated/on.sh --native)
build clang-sanitized -DCMAKE_CXX_COMPILER=clang++-14 "-DKDA_TEST_ISAS=${isas#scalar;}"
build aarch64
echo 'subdirs(gcc-release clang-sanitized aarch64)' > build/CTestTestfile.cmake # one run, one summary
exec ctest --test-dir build --parallel "$(nproc)" --output-on-failure --no-tests=error --no-label-summary
