// SPDX-License-Identifier: Apache-2.0
// expect: kda: a required member was left out: lower_bound, eps and scale have no default
#include <kda/kda.hpp>

using glm = kda::spec<kda::decay::per_channel, kda::gate::bounded, kda::beta::logits, kda::qk::l2_normalized,
                      kda::io<kda::bf16>, kda::state<float, kda::layout::value_major>>;
const kda::delta_rule_args<glm> wrong{.scale = 1};
