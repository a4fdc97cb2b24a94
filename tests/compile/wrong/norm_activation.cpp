// SPDX-License-Identifier: Apache-2.0
// expect: kda::norm: the activation is sigmoid or silu
#include <kda/kda.hpp>

using wrong = kda::spec<kda::decay::per_channel, kda::gate::bounded, kda::beta::logits, kda::qk::l2_normalized,
                        kda::io<kda::bf16>, kda::state<float, kda::layout::value_major>,
                        kda::norm<kda::activation::none, kda::weight::after_cast>>;
KDA_EXPORT_KERNELS(wrong_kernels, wrong)
