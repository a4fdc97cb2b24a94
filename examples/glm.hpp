// SPDX-License-Identifier: Apache-2.0
// What an engine that runs GLM-5.3-Flash needs from kda, said once and without an ISA. glm_kernels.cpp is compiled once
// per ISA; kda::select(glm_kernels) takes the best that runs here.
#pragma once
#include <kda/kda.hpp>

/// As a serving engine runs it: bf16 tensors, states as vLLM lays them out.
using glm = kda::spec<kda::decay::per_channel, kda::gate::bounded, kda::beta::logits, kda::qk::l2_normalized,
                      kda::io<kda::bf16>, kda::state<float, kda::layout::value_major>, kda::dims<128, 128>,
                      kda::conv<kda::activation::silu, kda::conv_state::time_major>,
                      kda::norm<kda::activation::sigmoid, kda::weight::before_cast>>;

/// As transformers computes it in float32: heads of any size, states as transformers lays them out.
template <class Gate, kda::activation Convolution>
using transformers_layer =
    kda::spec<kda::decay::per_channel, Gate, kda::beta::logits, kda::qk::l2_normalized, kda::io<float>,
              kda::state<float, kda::layout::key_major>, kda::conv<Convolution, kda::conv_state::time_major>,
              kda::norm<kda::activation::sigmoid, kda::weight::before_cast>>;
using glm_f32 = transformers_layer<kda::gate::bounded, kda::activation::silu>;
using glm_f32_no_silu = transformers_layer<kda::gate::bounded, kda::activation::none>;
using glm_f32_softplus = transformers_layer<kda::gate::softplus, kda::activation::silu>;

#define GLM_SPECS glm, glm_f32, glm_f32_no_silu, glm_f32_softplus
KDA_DECLARE_KERNELS(glm_kernels, GLM_SPECS)
