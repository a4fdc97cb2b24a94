#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# No header defines a macro but KDA_*: the macros after including it, against those after including alone the standard and
# third-party headers that kda includes anywhere. Environment: see common.sh.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

macros() { $compiler $base $(isa_flags $isa) -dM -E -x c++ - | sed -E 's/^#define ([A-Za-z0-9_]+).*/\1/' | sort -u; }
failed=
count=0
for compiler in $compilers; do
  for isa in $isas; do
    grep -hoE '^#[[:space:]]*include[[:space:]]*<[^>]+>' $all_headers | sed -E 's/.*<(.*)>/\1/' | grep -v '^kda/' | sort -u |
      while read -r foreign; do # those that are here, and for this architecture
        ! echo "#include <$foreign>" | $compiler $base $(isa_flags $isa) -E -x c++ - > /dev/null 2>&1 || echo "#include <$foreign>"
      done | macros > "$work/foreign"
    for header in $all_headers; do
      leaked=$(printf '#include <%s>\n' "$header" | macros | comm -23 - "$work/foreign" | grep -v '^KDA_' || true)
      [ -z "$leaked" ] || { failed=1; echo "$header ($compiler, $isa) defines" $leaked; }
      count=$((count + 1))
    done
  done
done
[ -z "$failed" ] || fail "macros leak"
echo "$count inclusions define no macro but KDA_*"
