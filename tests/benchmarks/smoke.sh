#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The benchmarks still run: tiny batches, every kind of row, the file's keys, the tables and the plots.
#   smoke.sh KDA_BENCHMARKS
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1" --smoke --json "$work/results.json" > "$work/log" 2>&1 || { tail -30 "$work/log" >&2; exit 1; }
python3 "$here/table.py" "$work/results.json" --check
python3 "$here/table.py" "$work/results.json" "$work/results.json" --check
python3 "$here/plot.py" "$work/results.json" "$work"
for picture in roofline peers; do
  grep -q '</svg>' "$work/$picture.svg" || { echo "smoke.sh: $picture.svg is no picture" >&2; exit 1; }
done
