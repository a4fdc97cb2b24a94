#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Wrong programs (wrong/*.cpp) fail with exactly one error, and that is the sentence of their "// expect: ..." line.
# Environment: see common.sh.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

failed=
count=0
for program in "$root"/tests/compile/wrong/*.cpp; do
  name=$(basename "$program")
  sentence=$(sed -n 's|^// expect: ||p' "$program")
  [ -n "$sentence" ] && [ "$(wc -l <<< "$sentence")" = 1 ] || fail "$name has no line '// expect: SENTENCE', or several"
  for compiler in $compilers; do
    count=$((count + 1))
    if $compiler $base -fsyntax-only "$program" > "$work/output" 2>&1; then
      echo "$name compiles with $compiler; it should say: $sentence"
      failed=1
      continue
    fi
    errors=$(grep -E '(^|[ :])(fatal )?error:' "$work/output" || true)
    if [ "$(wc -l <<< "$errors")" != 1 ] || [[ $errors != *"$sentence"* ]]; then
      printf '%s with %s should say only: %s\nand says:\n%s\n' "$name" "$compiler" "$sentence" "$errors"
      failed=1
    fi
  done
done
[ -z "$failed" ] || fail "wrong programs are not refused with one sentence"
echo "$count refusals, each with its one sentence"
