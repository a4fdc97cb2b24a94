// SPDX-License-Identifier: Apache-2.0
// expect: kda::spec: two intermediate options
#include <kda/kda.hpp>

using wrong = kda::spec<kda::decay::per_channel, kda::gate::bounded, kda::beta::logits, kda::qk::l2_normalized,
                        kda::io<kda::bf16>, kda::intermediate<float>, kda::state<float, kda::layout::value_major>,
                        kda::intermediate<kda::bf16>>;
KDA_EXPORT_KERNELS(wrong_kernels, wrong)
