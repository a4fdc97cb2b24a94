#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs a statically linked x86-64 program on an emulated Sapphire Rapids (AVX-512, AVX512_BF16, AMX).
#   run.sh [options] -- PROGRAM [ARGS...]
#     --timeout S         the program's time limit in seconds of wall clock, boot not counted (300)
#     --boot-timeout S    limit for the boot (120)
#     --mem MB            guest memory (512)
#     --cpu MODEL         Bochs CPU model (sapphire_rapids); "bochs -help cpu" in the cache lists them
#     --file HOST[:GUEST] copies a file or directory into the guest (same path if GUEST is left out); repeatable
#     --env NAME=VALUE    environment of the program (repeatable; nothing is inherited)
#     --cwd DIR           working directory in the guest (/tmp)
#     --sched other       time-sliced threads instead of first-in-first-out: see README.md
#     --verbose, --keep   boot time and log; keep the scratch directory
# Exit status: the program's; 128+signal if it died of one; 124 timeout; 125 the emulator failed (no result).
set -euo pipefail
cache=${KDA_BOCHS_CACHE:-${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/kda-bochs}
for f in host bochs kernel init rom.bin; do
  [ -e "$cache/$f" ] || { echo "kda-bochs: $cache/$f is missing: run $(dirname "$0")/setup.sh first" >&2; exit 125; }
done
exec "$cache/host" run "$cache" "$@"
