#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The examples, from nothing: installs what is missing (Debian 12), builds under build/examples with gcc, runs.
#   examples/run.sh [OPTIONS OF glm_layer]     --quick: fewer tokens; --isa scalar|neon|avx2|avx512|avx512_bf16
# build/examples/examples/engine_loop is built too, and runs by itself.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
tests/install.sh g++:g++ cmake:cmake ninja:ninja-build libxsimd-dev nlohmann-json3-dev

build=build/examples
mkdir -p build
echo "== building $build"
options=(-DCMAKE_CXX_COMPILER=g++ -DCMAKE_BUILD_TYPE=Release -DKDA_BUILD_TESTS=OFF)
cmake -S . -B $build -G Ninja "${options[@]}" > $build.log 2>&1 || { tail -20 $build.log >&2; exit 1; }
cmake --build $build

echo "== minimal"
$build/examples/minimal
echo "== glm_layer $*"
$build/examples/glm_layer "$@"
echo "examples: OK"
