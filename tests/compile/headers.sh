#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Every header compiles alone, and included twice, clean of warnings, for every ISA, with every compiler; the kernel headers
# without exceptions and RTTI. Environment: see common.sh.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

jobs=$work/jobs
for compiler in $compilers; do
  level=$(level_of "$compiler")
  for header in $kernel_headers; do
    for isa in $isas; do
      printf '%s\n' "$compiler $level $isa $header"$'\t'"printf '#include <%s>\n' $header $header | $compiler $base $warnings $bare $level $(isa_flags $isa) -fsyntax-only -x c++ -"
    done
  done
  for header in $opt_in_headers; do
    [ "$header" = kda/executor/openmp.hpp ] && extra=-fopenmp || extra=
    printf '%s\n' "$compiler $level $header"$'\t'"printf '#include <%s>\n' $header $header | $compiler $base $warnings $level $extra -fsyntax-only -x c++ -"
  done
done > "$jobs"
run_jobs "$jobs" || fail "headers do not compile alone"
