// SPDX-License-Identifier: Apache-2.0
// expect: kda::spec: two products options
#include <kda/kda.hpp>

using wrong = kda::spec<kda::decay::per_channel, kda::gate::bounded, kda::beta::logits, kda::qk::l2_normalized,
                        kda::io<kda::bf16>, kda::state<float, kda::layout::value_major>, kda::products<float>,
                        kda::products<kda::bf16>>;
KDA_EXPORT_KERNELS(wrong_kernels, wrong)
