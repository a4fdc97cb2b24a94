// SPDX-License-Identifier: Apache-2.0
// The specs that the tests run: every option at least once, and every pair of options that meet in one loop. Kernels
// for them are compiled once per ISA from tests/kernels.cpp and, with bf16 products, products_kernels.cpp; the tests
// themselves are baseline code and drive the tables.
#pragma once
#include <kda/args.hpp>
#include <kda/dispatch.hpp>
#include <kda/spec.hpp>

namespace specs {

using kda::activation;
using kda::bf16;
using kda::conv_state;
using kda::f16;
using kda::io;
using kda::layout;
using kda::weight;

using f32_key_major = kda::state<float, layout::key_major>;
using f32_value_major = kda::state<float, layout::value_major>;
using bf16_key_major = kda::state<bf16, layout::key_major>;
using bf16_value_major = kda::state<bf16, layout::value_major>;

template <class Decay, class State, class QK, class... More>
using given = kda::spec<Decay, kda::gate::given, kda::beta::given, QK, io<float>, State, More...>;
template <class State>
using ungated = kda::spec<kda::decay::none, kda::beta::given, kda::qk::as_given, io<float>, State>;

using per_channel = kda::decay::per_channel;
using per_head = kda::decay::per_head;
using as_given = kda::qk::as_given;
using normalized = kda::qk::l2_normalized;

// the delta rule alone
using kda_given_key = given<per_channel, f32_key_major, as_given>;
using kda_given_value = given<per_channel, f32_value_major, as_given>;
using kda_norm_key = given<per_channel, f32_key_major, normalized>;
using kda_norm_value = given<per_channel, f32_value_major, normalized>;
using gdn_given_key = given<per_head, f32_key_major, as_given>;
using gdn_given_value = given<per_head, f32_value_major, as_given>;
using gdn_norm_key = given<per_head, f32_key_major, normalized>;
using gdn_norm_value = given<per_head, f32_value_major, normalized>;
using delta_key = ungated<f32_key_major>;
using delta_value = ungated<f32_value_major>;
using kda_tiled = given<per_channel, f32_key_major, as_given, kda::head_map::tiled>;
using gdn_tiled = given<per_head, f32_value_major, as_given, kda::head_map::tiled>;
using kda_bf16_key = given<per_channel, bf16_key_major, normalized>;
using kda_bf16_value = given<per_channel, bf16_value_major, normalized>;
using kda_fixed_dims = given<per_channel, f32_key_major, normalized, kda::dims<128, 128>>;

// gate laws, forms of beta, convolutions and norms; float throughout
using kda_bounded =
    kda::spec<per_channel, kda::gate::bounded, kda::beta::logits, normalized, io<float>, f32_value_major,
              kda::conv<activation::silu, conv_state::time_major>, kda::norm<activation::sigmoid, weight::before_cast>>;
using kda_softplus =
    kda::spec<per_channel, kda::gate::softplus, kda::beta::logits_doubled, normalized, io<float>, f32_key_major,
              kda::conv<activation::none, conv_state::channel_major>, kda::norm<activation::silu, weight::before_cast>>;
using gdn_softplus =
    kda::spec<per_head, kda::gate::softplus, kda::beta::logits, normalized, io<float>, f32_key_major,
              kda::conv<activation::silu, conv_state::channel_major>, kda::norm<activation::silu, weight::after_cast>>;
using gdn_bounded = kda::spec<per_head, kda::gate::bounded, kda::beta::logits, normalized, io<float>, f32_value_major,
                              kda::conv<activation::none, conv_state::time_major>>;

// as the models run: bf16 tensors
using glm = kda::spec<per_channel, kda::gate::bounded, kda::beta::logits, normalized, io<bf16>, f32_value_major,
                      kda::dims<128, 128>, kda::conv<activation::silu, conv_state::time_major>,
                      kda::norm<activation::sigmoid, weight::before_cast>>;
using qwen =
    kda::spec<per_head, kda::gate::softplus, kda::beta::logits, normalized, io<bf16>, f32_key_major,
              kda::conv<activation::silu, conv_state::channel_major>, kda::norm<activation::silu, weight::after_cast>>;
using kda_mixed = kda::spec<per_channel, kda::gate::given, kda::beta::given, normalized, io<bf16, float, float, float>,
                            f32_value_major>;
// and float between the stages; K and V are free
using glm_float_stages =
    kda::spec<per_channel, kda::gate::bounded, kda::beta::logits, normalized, io<bf16>, kda::intermediate<float>,
              f32_value_major, kda::conv<activation::silu, conv_state::time_major>,
              kda::norm<activation::sigmoid, weight::before_cast>>;
using qwen_float_stages =
    kda::spec<per_head, kda::gate::softplus, kda::beta::logits, normalized, io<bf16>, kda::intermediate<float>,
              f32_key_major, kda::conv<activation::silu, conv_state::channel_major>,
              kda::norm<activation::silu, weight::after_cast>>;

// kda_bounded with f16 tensors, and gdn_softplus with f16 between the stages and some of its tensors
using kda_f16 =
    kda::spec<per_channel, kda::gate::bounded, kda::beta::logits, normalized, io<f16>, f32_value_major,
              kda::conv<activation::silu, conv_state::time_major>, kda::norm<activation::sigmoid, weight::before_cast>>;
using gdn_f16_stages =
    kda::spec<per_head, kda::gate::softplus, kda::beta::logits, normalized, io<float, float, f16, f16>,
              kda::intermediate<f16>, f32_key_major, kda::conv<activation::silu, conv_state::channel_major>,
              kda::norm<activation::silu, weight::after_cast>>;

// products of bf16, and what they are compared with
using kda_products = given<per_channel, f32_key_major, as_given, kda::products<bf16>>;
using gdn_products = given<per_head, bf16_value_major, normalized, kda::products<bf16>>;
using gdn_bf16_value = given<per_head, bf16_value_major, normalized>;
using glm_products =
    kda::spec<per_channel, kda::gate::bounded, kda::beta::logits, normalized, io<bf16>, f32_value_major,
              kda::products<bf16>, kda::dims<128, 128>, kda::conv<activation::silu, conv_state::time_major>,
              kda::norm<activation::sigmoid, weight::before_cast>>;

}  // namespace specs

#define KDA_TEST_SPECS                                                                                            \
  specs::kda_given_key, specs::kda_given_value, specs::kda_norm_key, specs::kda_norm_value, specs::gdn_given_key, \
      specs::gdn_given_value, specs::gdn_norm_key, specs::gdn_norm_value, specs::delta_key, specs::delta_value,   \
      specs::kda_tiled, specs::gdn_tiled, specs::kda_bf16_key, specs::kda_bf16_value, specs::kda_fixed_dims,      \
      specs::kda_bounded, specs::kda_softplus, specs::gdn_softplus, specs::gdn_bounded, specs::glm, specs::qwen,  \
      specs::kda_mixed, specs::glm_float_stages, specs::qwen_float_stages, specs::kda_f16, specs::gdn_f16_stages

#define KDA_PRODUCTS_SPECS specs::kda_products, specs::gdn_products, specs::gdn_bf16_value, specs::glm_products

KDA_DECLARE_KERNELS(test_kernels, KDA_TEST_SPECS)
KDA_DECLARE_KERNELS(products_kernels, KDA_PRODUCTS_SPECS)
// The same, with every register-blocked loop forced to one row and one vector.
KDA_DECLARE_KERNELS(test_kernels_1x1, KDA_TEST_SPECS)
KDA_DECLARE_KERNELS(products_kernels_1x1, KDA_PRODUCTS_SPECS)
