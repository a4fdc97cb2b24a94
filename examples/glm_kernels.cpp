// SPDX-License-Identifier: Apache-2.0
// The kernels of glm.hpp for one ISA; kda_add_kernels() in CMakeLists.txt compiles this file once for each.
#include "glm.hpp"

KDA_EXPORT_KERNELS(glm_kernels, GLM_SPECS)
