// SPDX-License-Identifier: Apache-2.0
// expect: kda/executor/openmp.hpp: OpenMP is off; compile with -fopenmp
#include <kda/executor/openmp.hpp>
