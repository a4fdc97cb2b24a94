#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Uses kda without CMake: one include folder, one compilation per ISA, and a list of what was built.
#   build.sh CXX KDA_SOURCE OUTPUT_FOLDER
set -euo pipefail
cxx="$1 -std=c++20 -O2 -I $2/include"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$3"
$cxx -DKDA_TARGET_SCALAR -c "$here/../engine_kernels.cpp" -o scalar.o
case $(uname -m) in
  aarch64) $cxx -DKDA_TARGET_NEON -c "$here/../engine_kernels.cpp" -o vectors.o ;;
  *) $cxx -DKDA_TARGET_AVX2 -mavx2 -mfma -mf16c -c "$here/../engine_kernels.cpp" -o vectors.o ;;
esac
$cxx "$here/../main.cpp" "$here/built.cpp" scalar.o vectors.o -o engine
