// SPDX-License-Identifier: Apache-2.0
// expect: kda: a required member was left out: lower_bound, eps and scale have no default
#include <kda/kda.hpp>

using glm = kda::spec<kda::decay::per_channel, kda::gate::given, kda::beta::logits, kda::qk::l2_normalized,
                      kda::io<kda::bf16>, kda::state<float, kda::layout::value_major>,
                      kda::conv<kda::activation::silu, kda::conv_state::time_major>,
                      kda::norm<kda::activation::sigmoid, kda::weight::before_cast>>;
const kda::step_args<glm> wrong{.scale = 1};
