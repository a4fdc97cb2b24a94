// SPDX-License-Identifier: Apache-2.0
// The engine's kernels; compiled once per ISA.
#include "engine.hpp"

KDA_EXPORT_KERNELS(engine_kernels, engine_spec)
