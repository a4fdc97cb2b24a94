// SPDX-License-Identifier: Apache-2.0
// Kernels of every option, for kernels.sh to compile.
#include <kda/kda.hpp>

using kda::activation, kda::bf16, kda::conv_state, kda::layout, kda::weight;

using glm =
    kda::spec<kda::decay::per_channel, kda::gate::bounded, kda::beta::logits, kda::qk::l2_normalized, kda::io<bf16>,
              kda::state<float, layout::value_major>, kda::products<bf16>, kda::dims<128, 128>,
              kda::conv<activation::silu, conv_state::time_major>, kda::norm<activation::sigmoid, weight::before_cast>>;
using qwen =
    kda::spec<kda::decay::per_head, kda::gate::softplus, kda::beta::logits_doubled, kda::qk::l2_normalized,
              kda::io<kda::f16>, kda::state<bf16, layout::key_major>, kda::products<bf16>, kda::head_map::tiled,
              kda::conv<activation::none, conv_state::channel_major>, kda::norm<activation::silu, weight::after_cast>>;
using given = kda::spec<kda::decay::per_channel, kda::gate::given, kda::beta::given, kda::qk::as_given,
                        kda::io<bf16, float, float, float>, kda::state<bf16, layout::value_major>>;
using plain = kda::spec<kda::decay::none, kda::beta::given, kda::qk::as_given, kda::io<float, float, bf16, bf16>,
                        kda::state<float, layout::key_major>>;

KDA_EXPORT_KERNELS(compiled_kernels, glm, qwen, given, plain)
