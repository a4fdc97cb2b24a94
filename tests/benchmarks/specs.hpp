// SPDX-License-Identifier: Apache-2.0
// What is measured: specs as engines write them, one list of kernels each, and the layers of real models.
#pragma once
#include <kda/args.hpp>
#include <kda/dispatch.hpp>
#include <kda/spec.hpp>

namespace specs {

using kda::bf16;
template <class T> using value_major = kda::state<T, kda::layout::value_major>;
template <class T> using key_major = kda::state<T, kda::layout::key_major>;

template <class Decay, class Gate, class IO, class State, class Norm, class... More>
using layer = kda::spec<Decay, Gate, kda::beta::logits, kda::qk::l2_normalized, kda::io<IO>, State, kda::dims<128, 128>,
                        kda::conv<kda::activation::silu, kda::conv_state::time_major>, Norm, More...>;
using kda_norm = kda::norm<kda::activation::sigmoid, kda::weight::before_cast>;
using gdn_norm = kda::norm<kda::activation::silu, kda::weight::after_cast>;

template <class IO, class State, class... More>
using glm_layer = layer<kda::decay::per_channel, kda::gate::bounded, IO, State, kda_norm, More...>;
template <class IO, class State>
using kimi_layer = layer<kda::decay::per_channel, kda::gate::softplus, IO, State, kda_norm>;
template <class IO, class State, class... More>
using qwen_layer = layer<kda::decay::per_head, kda::gate::softplus, IO, State, gdn_norm, More...>;

using glm_f32 = glm_layer<float, value_major<float>>;
using glm_f32_key = glm_layer<float, key_major<float>>;
using glm_f32_state_bf16 = glm_layer<float, value_major<bf16>>;
using glm_f32_state_bf16_key = glm_layer<float, key_major<bf16>>;
using glm_f32_products = glm_layer<float, value_major<float>, kda::products<bf16>>;
using glm_bf16 = glm_layer<bf16, value_major<float>>;
using glm_bf16_state_bf16 = glm_layer<bf16, value_major<bf16>>;
using kimi_bf16 = kimi_layer<bf16, value_major<float>>;
using gdn_f32 = qwen_layer<float, value_major<float>>;
using gdn_f32_key = qwen_layer<float, key_major<float>>;
using gdn_f32_products = qwen_layer<float, value_major<float>, kda::products<bf16>>;
using gdn_bf16 = qwen_layer<bf16, value_major<float>>;

}  // namespace specs

// CMakeLists.txt names the same lists.
KDA_DECLARE_KERNELS(glm_f32, specs::glm_f32)
KDA_DECLARE_KERNELS(glm_f32_key, specs::glm_f32_key)
KDA_DECLARE_KERNELS(glm_f32_state_bf16, specs::glm_f32_state_bf16)
KDA_DECLARE_KERNELS(glm_f32_state_bf16_key, specs::glm_f32_state_bf16_key)
KDA_DECLARE_KERNELS(glm_f32_products, specs::glm_f32_products)
KDA_DECLARE_KERNELS(glm_bf16, specs::glm_bf16)
KDA_DECLARE_KERNELS(glm_bf16_state_bf16, specs::glm_bf16_state_bf16)
KDA_DECLARE_KERNELS(kimi_bf16, specs::kimi_bf16)
KDA_DECLARE_KERNELS(gdn_f32, specs::gdn_f32)
KDA_DECLARE_KERNELS(gdn_f32_key, specs::gdn_f32_key)
KDA_DECLARE_KERNELS(gdn_f32_products, specs::gdn_f32_products)
KDA_DECLARE_KERNELS(gdn_bf16, specs::gdn_bf16)

namespace bench {

/// Heads of 128 channels in one layer: H for q and k, HV for v.
struct geometry {
  const char* name;
  std::ptrdiff_t H, HV;
};
inline constexpr std::ptrdiff_t head_dim = 128, conv_width = 4;
inline constexpr geometry glm{"GLM-5.3-Flash", 64, 64}, kimi{"Kimi-Linear", 32, 32}, qwen3_next{"Qwen3-Next", 16, 32},
    qwen3_5{"Qwen3.5-0.8B", 16, 16};
inline constexpr geometry one_head{"one head", 1, 1}, two_heads{"two heads", 2, 2};

}  // namespace bench
