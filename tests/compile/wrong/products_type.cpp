// SPDX-License-Identifier: Apache-2.0
// expect: kda::products: factors are float or rounded to kda::bf16
#include <kda/kda.hpp>

using wrong = kda::spec<kda::decay::per_channel, kda::gate::bounded, kda::beta::logits, kda::qk::l2_normalized,
                        kda::io<kda::bf16>, kda::state<float, kda::layout::key_major>, kda::products<double>>;
KDA_EXPORT_KERNELS(wrong_kernels, wrong)
