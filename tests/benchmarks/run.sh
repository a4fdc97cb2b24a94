#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The benchmarks, from nothing: installs what is missing (Debian 12), builds under build/benchmarks with gcc for the ISAs of this
# CPU, measures this machine's limits and the kernels in one run.
#   run.sh [--quick] [--json FILE] [--peers] [OPTIONS OF kda_benchmarks]
#     --quick      minutes instead of half an hour
#     --json FILE  where the results go (default build/benchmarks/results.json)
#     --peers      other implementations too, in the same file; peers/setup.sh installs them under build/benchmarks/peers
#     --stages     instead, where the time of the kernels goes (stages.py)
#     --predict    instead, what llvm-mca says of the inner loops on CPUs that are not here (predict.py)
# table.py and plot.py make tables and pictures of FILE.
set -euo pipefail
json= peers= stages= predict= options=()
while [ $# -gt 0 ]; do
  case $1 in
    --json) json=$(realpath -m "${2:?--json: no file}") && shift ;;
    --peers) peers=1 ;;
    --stages) stages=1 ;;
    --predict) predict=1 ;;
    *) options+=("$1") ;;
  esac
  shift
done
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
if [ -n "$predict" ]; then
  tests/install.sh g++:g++ aarch64-linux-gnu-g++:g++-aarch64-linux-gnu libxsimd-dev llvm-mca-19:llvm-19 python3:python3
  exec python3 tests/benchmarks/predict.py "${options[@]}"
fi
tests/install.sh g++:g++ cmake:cmake ninja:ninja-build libxsimd-dev libbenchmark-dev nlohmann-json3-dev python3:python3
[ -z "$peers" ] || tests/benchmarks/peers/setup.sh

build=build/benchmarks
mkdir -p $build
json=${json:-$PWD/$build/results.json}
echo "== building $build"
cmake -S . -B $build -G Ninja -DCMAKE_CXX_COMPILER=g++ -DCMAKE_BUILD_TYPE=Release -DKDA_BUILD_TESTS=OFF -DKDA_BUILD_EXAMPLES=OFF \
  -DKDA_BUILD_BENCHMARKS=ON -DCMAKE_CXX_FLAGS=-g1 "-DKDA_BENCHMARK_ISAS=$(tests/emulated/on.sh --native)" > $build.log 2>&1 || { tail -20 $build.log >&2; exit 1; }
cmake --build $build --target kda_benchmarks

if [ -n "$stages" ]; then
  tests/install.sh perf:linux-perf addr2line:binutils
  exec python3 tests/benchmarks/stages.py $build/tests/benchmarks/kda_benchmarks "${options[@]}"
fi

echo "== measuring"
$build/tests/benchmarks/kda_benchmarks --json "$json" "${options[@]}"
if [ -n "$peers" ]; then
  echo "== measuring peers"
  case " ${options[*]} " in *" --quick "*) quick=(--quick) ;; *) quick=() ;; esac
  $build/peers/venv/bin/python tests/benchmarks/peers/measure.py --into "$json" "${quick[@]}"
fi
python3 tests/benchmarks/table.py "$json" reach ratios
echo "benchmarks: $json"
