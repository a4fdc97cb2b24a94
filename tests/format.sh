#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# All C++ files are as clang-format 14 with .clang-format leaves them.
#   format.sh [CLANG_FORMAT] [--fix]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
mode=(--dry-run -Werror)
[ "${2:-}" != --fix ] || mode=(-i)
find include tests examples \( -name '*.hpp' -o -name '*.cpp' -o -name '*.c' -o -name '*.h' \) -print0 |
  xargs -0 -P "$(nproc)" -n 8 "${1:-clang-format-14}" "${mode[@]}"
echo "format: clean"
