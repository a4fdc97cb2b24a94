// SPDX-License-Identifier: Apache-2.0
// The layer that engine_loop serves: small, and yet with more value heads than q/k heads, K and V that differ and are
// no multiples of a vector, tensors in bf16. Outputs are float: nothing hides below their rounding.
#pragma once
#include <kda/kda.hpp>

#include <cstddef>
#include <stdexcept>
#include <string>

namespace engine {

using served = kda::spec<kda::decay::per_channel, kda::gate::bounded, kda::beta::logits, kda::qk::l2_normalized,
                         kda::io<kda::bf16, kda::bf16, kda::bf16, float>, kda::intermediate<float>,
                         kda::state<float, kda::layout::value_major>,
                         kda::conv<kda::activation::silu, kda::conv_state::time_major>,
                         kda::norm<kda::activation::sigmoid, kda::weight::before_cast>>;

/// A refusal is the engine's own mistake.
inline void require(kda::status s) {
  if (!s) throw std::runtime_error(std::string("kda: ") + s.argument + " " + kda::message(s.what));
}

namespace shape {
inline constexpr std::ptrdiff_t H = 2, HV = 4, K = 36, V = 20, W = 4;
inline constexpr std::ptrdiff_t channels = 2 * H * K + HV * V;  ///< of the convolution: q, k, v
inline constexpr std::ptrdiff_t outputs = HV * V;
inline constexpr std::ptrdiff_t state = HV * V * K;
}

}

KDA_DECLARE_KERNELS(loop_kernels, engine::served)
