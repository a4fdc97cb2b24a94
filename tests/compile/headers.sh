#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every header compiles alone, and included twice, clean of warnings, for every ISA, at -O0 and -O2, with every compiler;
# the kernel headers without exceptions and RTTI. Environment: see common.sh.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

jobs=$work/jobs
for compiler in $compilers; do
  for level in -O0 -O2; do
    for header in $kernel_headers; do
      for isa in $isas; do
        printf '%s\n' "$compiler $level $isa $header"$'\t'"printf '#include <%s>\n' $header $header | $compiler $base $warnings $bare $level $(isa_flags $isa) -fsyntax-only -x c++ -"
      done
    done
    for header in $opt_in_headers; do
      [ "$header" = kda/executor/openmp.hpp ] && extra=-fopenmp || extra=
      printf '%s\n' "$compiler $level $header"$'\t'"printf '#include <%s>\n' $header $header | $compiler $base $warnings $level $extra -fsyntax-only -x c++ -"
    done
  done
done > "$jobs"
run_jobs "$jobs" || fail "headers do not compile alone"
