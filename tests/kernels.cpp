// SPDX-License-Identifier: Apache-2.0
// The kernels that the tests drive: compiled once per ISA, and once more with KDA_FORCE_1X1_BLOCKING.
#include "support/specs.hpp"

#include <kda/kda.hpp>

#if defined(KDA_FORCE_1X1_BLOCKING)
KDA_EXPORT_KERNELS(test_kernels_1x1, KDA_TEST_SPECS)
#else
KDA_EXPORT_KERNELS(test_kernels, KDA_TEST_SPECS)
#endif
