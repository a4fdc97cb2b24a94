#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs one consumer project, as a user of kda would.
#   run.sh WAY BUILD CXX   WAY: find_package, fetch_content, add_subdirectory or plain_include; BUILD: kda's own build folder
set -euo pipefail
way=$1 build=$2 cxx=$3
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
source=$(cd "$here/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

case $way in
  plain_include) "$here/$way/build.sh" "$cxx" "$source" "$work" ;;
  find_package | fetch_content | add_subdirectory)
    [ "$(uname -m)" = aarch64 ] && vectors=neon || vectors=avx2
    options=(-DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_COMPILER=$cxx" -DVECTOR_ISA=$vectors)
    if [ "$way" = find_package ]; then
      cmake --install "$build" --prefix "$work/installed" > /dev/null
      ! grep -rlF "$source" "$work/installed" || { echo "the installed files above name the source folder" >&2; exit 1; }
      options+=("-DCMAKE_PREFIX_PATH=$work/installed")
    else
      options+=("-DKDA_SOURCE=$source")
    fi
    cmake -S "$here/$way" -B "$work" "${options[@]}"
    ! grep -E 'KDA_(BUILD_TESTS|BUILD_EXAMPLES|INSTALL):BOOL=ON' "$work/CMakeCache.txt" ||
      { echo "kda builds more than its library within another project" >&2; exit 1; }
    cmake --build "$work"
    ;;
  *) echo "run.sh: unknown way $way" >&2; exit 2 ;;
esac
"$work/engine"
