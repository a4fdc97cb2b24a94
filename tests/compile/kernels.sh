#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Kernels of every option (kernels.cpp) compile clean of warnings for every ISA, with every compiler, without exceptions and RTTI.
# Environment: see common.sh.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

jobs=$work/jobs
for compiler in $compilers; do
  level=$(level_of "$compiler")
  for isa in $isas; do
    printf '%s\n' "$compiler $level $isa"$'\t'"$compiler $base $warnings $bare $level $(isa_flags $isa) -c $root/tests/compile/kernels.cpp -o $work/$(basename "$compiler")$isa.o"
  done
done > "$jobs"
run_jobs "$jobs" || fail "kernels do not compile clean"
