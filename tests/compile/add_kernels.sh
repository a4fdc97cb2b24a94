#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What kda_add_kernels() refuses, each with its one sentence.
#   add_kernels.sh CXX
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '%s\n' 'cmake_minimum_required(VERSION 3.21)' 'project(refused LANGUAGES CXX)' "add_subdirectory($root kda)" \
  "file(WRITE \${PROJECT_BINARY_DIR}/nothing.cpp \"\")" 'add_library(engine STATIC ${PROJECT_BINARY_DIR}/nothing.cpp)' \
  'kda_add_kernels(${arguments})' > "$work/CMakeLists.txt"

count=0
refused() { # refused SENTENCE ARGUMENTS [CMAKE OPTIONS]
  local sentence=$1 arguments=$2 output
  shift 2
  count=$((count + 1))
  rm -rf "$work/build"
  if output=$(cmake -S "$work" -B "$work/build" "-DCMAKE_CXX_COMPILER=$cxx" "-Darguments=$arguments" "$@" 2>&1); then
    echo "kda_add_kernels($arguments) is accepted" >&2
    exit 1
  fi
  # CMake wraps long lines
  [ "$(grep -c '^CMake Error' <<< "$output")" = 1 ] && [[ $(tr -s ' \n' ' ' <<< "$output") == *"$sentence"* ]] ||
    { printf 'kda_add_kernels(%s) should say only: %s\nand says:\n%s\n' "$arguments" "$sentence" "$output" >&2; exit 1; }
}
cxx=$1
[ "$(uname -m)" = aarch64 ] && vectors=neon || vectors=avx2
refused "kda_add_kernels(engine ...): unknown ISA sse9 (known: avx512_bf16, avx512, avx2, neon, scalar)" "engine;NAME;k;SOURCE;k.cpp;ISAS;scalar;sse9"
refused "kda_add_kernels(engine ...): ISA avx2 is not one of aarch64" "engine;NAME;k;SOURCE;k.cpp;ISAS;avx2" \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64
refused "kda_add_kernels(engine ...): ISA neon is not one of x86_64" "engine;NAME;k;SOURCE;k.cpp;ISAS;neon" \
  -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=x86_64
refused "kda_add_kernels(engine ...): ISAS is empty" "engine;NAME;k;SOURCE;k.cpp;ISAS"
refused "kda_add_kernels(engine ...): unknown argument FLAGS" "engine;FLAGS;NAME;k;SOURCE;k.cpp"
refused "kda_add_kernels(engine ...): NAME and SOURCE are needed" "engine;SOURCE;k.cpp"
refused "kda_add_kernels(motor ...): no such target" "motor;NAME;k;SOURCE;k.cpp"
refused "needs xsimd's headers (Debian: libxsimd-dev), and they were not found" "engine;NAME;k;SOURCE;k.cpp;ISAS;$vectors" \
  -DCMAKE_DISABLE_FIND_PACKAGE_xsimd=ON -DCMAKE_FIND_ROOT_PATH=/nonexistent -DCMAKE_FIND_ROOT_PATH_MODE_INCLUDE=ONLY
echo "$count refusals, each with its one sentence"
