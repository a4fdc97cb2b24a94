// SPDX-License-Identifier: Apache-2.0
// expect: kda::kernels::step: the spec needs a kda::conv and a kda::norm option
#include <kda/kda.hpp>

using glm = kda::spec<kda::decay::per_channel, kda::gate::bounded, kda::beta::logits, kda::qk::l2_normalized,
                      kda::io<kda::bf16>, kda::state<float, kda::layout::value_major>,
                      kda::norm<kda::activation::sigmoid, kda::weight::before_cast>>;
const auto wrong = &kda::kernels<glm>::step;
