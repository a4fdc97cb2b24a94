#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Kernels of every option (kernels.cpp) compile clean of warnings for every ISA, at -O0 and -O2, with every compiler, without
# exceptions and RTTI. Environment: see common.sh.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

jobs=$work/jobs
for compiler in $compilers; do
  for level in -O0 -O2; do
    for isa in $isas; do
      printf '%s\n' "$compiler $level $isa"$'\t'"$compiler $base $warnings $bare $level $(isa_flags $isa) -c $root/tests/compile/kernels.cpp -o $work/$(basename "$compiler")$level$isa.o"
    done
  done
done > "$jobs"
run_jobs "$jobs" || fail "kernels do not compile clean"
