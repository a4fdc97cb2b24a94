#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs the golden test on every ISA of its build: natively those that this CPU has, emulated the others.
#   golden.sh PROGRAM   PROGRAM: kda_golden_test; KDA_GOLDEN_DIR names another folder than golden/
# Prints last "golden: N files, M failed", a file that fails on several ISAs counted once. Exit status 1 if any failed.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
program=$1
foreign=$("$program" --foreign)

log=$(mktemp)
trap 'rm -f "$log"*' EXIT
judge() { # judge LABEL COMMAND...
  local label=$1 status=0
  shift
  "$@" > "$log.run" || status=$?
  [ "$status" -le 1 ] && grep -q '^golden: ' "$log.run" || echo "FAILED  $label: no result, exit status $status" >> "$log.run"
  grep -v '^golden: ' "$log.run"
  cat "$log.run" >> "$log"
}
judge native "$program"
for isa in $foreign; do
  judge "$isa" "$here/emulated/on.sh" --file "${KDA_GOLDEN_DIR:-$here/../golden}" "$isa" "$program"
done
files=$(sed -n 's/^golden: \([0-9]*\) files.*/\1/p' "$log" | sort -n | tail -1)
failed=$(awk '$1 == "FAILED" { print $2 }' "$log" | sort -u | wc -l)
echo "golden: ${files:-0} files, $failed failed"
[ "$failed" = 0 ]
