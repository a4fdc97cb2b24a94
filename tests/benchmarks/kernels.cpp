// SPDX-License-Identifier: Apache-2.0
// The kernels of one spec: CMakeLists.txt compiles this file for each (KDA_BENCHMARK_SPEC) and for each ISA.
#include "specs.hpp"

#include <kda/kda.hpp>

KDA_EXPORT_KERNELS(KDA_BENCHMARK_SPEC, specs::KDA_BENCHMARK_SPEC)
