#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The README's first snippet is examples/minimal.cpp, which is under 60 lines; every header and folder that it names exists, and
# it names every header.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
fail() { echo "readme: $*" >&2; exit 1; }
diff <(awk '/^```cpp$/ {inside = 1; next} /^```$/ {exit} inside' README.md) examples/minimal.cpp >&2 || fail "its first snippet is not examples/minimal.cpp"
[ "$(wc -l < examples/minimal.cpp)" -lt 60 ] || fail "examples/minimal.cpp has 60 lines or more"
for header in $(cd include/kda && find . -name '*.hpp' | sed 's|^\./||; s|^simd/||'); do
  grep -qF "\`$header\`" README.md || fail "it does not name $header"
done
for path in $(grep -oE '`(include|tests|examples|golden|cmake|docs)/[A-Za-z0-9_./]*`' README.md | tr -d '`' | sort -u); do
  [ -e "$path" ] || fail "it names $path, which does not exist"
done
for link in $(grep -oE '\]\([a-z_/]+\.md\)' README.md | tr -d ']()' | sort -u); do [ -e "$link" ] || fail "it links to $link, which does not exist"; done
echo "readme: names what is there"
