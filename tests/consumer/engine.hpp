// SPDX-License-Identifier: Apache-2.0
// The engine that each consumer project builds: what it needs, said once, without an ISA.
#pragma once
#include <kda/kda.hpp>

using engine_spec = kda::spec<kda::decay::per_head, kda::gate::given, kda::beta::given, kda::qk::as_given,
                              kda::io<float>, kda::state<float, kda::layout::key_major>>;
KDA_DECLARE_KERNELS(engine_kernels, engine_spec)
