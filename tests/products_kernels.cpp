// SPDX-License-Identifier: Apache-2.0
// Kernels with bf16 products, for the ISA that has instructions for them and for those that have not.
#include "support/specs.hpp"

#include <kda/kda.hpp>

#if defined(KDA_FORCE_1X1_BLOCKING)
KDA_EXPORT_KERNELS(products_kernels_1x1, KDA_PRODUCTS_SPECS)
#else
KDA_EXPORT_KERNELS(products_kernels, KDA_PRODUCTS_SPECS)
#endif
