// SPDX-License-Identifier: Apache-2.0
// The kernels of loop_kernels.hpp for one ISA; kda_add_kernels() in CMakeLists.txt compiles this file once for each.
#include "loop_kernels.hpp"

KDA_EXPORT_KERNELS(loop_kernels, engine::served)
