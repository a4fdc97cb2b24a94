// SPDX-License-Identifier: Apache-2.0
// expect: kda::kernels::gate: the spec's gate is given, or there is none
#include <kda/kda.hpp>

using given = kda::spec<kda::decay::per_head, kda::gate::given, kda::beta::given, kda::qk::as_given, kda::io<float>,
                        kda::state<float, kda::layout::key_major>>;
const auto wrong = &kda::kernels<given>::gate;
