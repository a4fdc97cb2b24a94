// SPDX-License-Identifier: Apache-2.0
// expect: kda::io: tensors are float, kda::bf16 or kda::f16
#include <kda/kda.hpp>

using wrong = kda::spec<kda::decay::per_channel, kda::gate::bounded, kda::beta::logits, kda::qk::l2_normalized,
                        kda::io<double>, kda::state<float, kda::layout::value_major>>;
KDA_EXPORT_KERNELS(wrong_kernels, wrong)
