#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Makes the golden files anew with the pinned transformers, then checks their format.
#
# Usage: golden/generate.sh [OUTPUT_DIR]
#   OUTPUT_DIR  where the *.json go, replacing those there; the default is this folder
#
# Installs requirements.txt (about 1.2 GB with the CPU build of torch) into a virtual environment of its own,
# ${XDG_CACHE_HOME:-~/.cache}/kda-golden, on the first run. PYTHON names the interpreter (3.11 or newer; default python3).
# On one machine every run writes the same bytes: one thread, and no instruction set that depends on the CPU.
set -euo pipefail

here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
output="${1:-$here}"
environment="${XDG_CACHE_HOME:-$HOME/.cache}/kda-golden"

if ! "${PYTHON:-python3}" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "generate.sh: Python 3.11 or newer is needed; set PYTHON" >&2
  exit 1
fi
if [[ ! -x "$environment/bin/python" ]]; then
  "${PYTHON:-python3}" -m venv "$environment"
fi
"$environment/bin/python" -m pip install --quiet --disable-pip-version-check --requirement "$here/requirements.txt"

export ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE OMP_NUM_THREADS=1 # generate.py refuses to run without these
export TRANSFORMERS_VERBOSITY=error HF_HUB_OFFLINE=1 PYTHONDONTWRITEBYTECODE=1
"$environment/bin/python" "$here/generate.py" "$output"
"$environment/bin/python" "$here/check.py" "$output"
