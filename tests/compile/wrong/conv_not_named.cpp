// SPDX-License-Identifier: Apache-2.0
// expect: kda::kernels::conv: the spec names no kda::conv option
#include <kda/kda.hpp>

using glm = kda::spec<kda::decay::per_channel, kda::gate::bounded, kda::beta::logits, kda::qk::l2_normalized,
                      kda::io<kda::bf16>, kda::state<float, kda::layout::value_major>>;
const auto wrong = &kda::kernels<glm>::conv;
