// SPDX-License-Identifier: Apache-2.0
// expect: kda::spec: name the state: kda::state<float, kda::layout::key_major> or value_major
#include <kda/kda.hpp>

using wrong = kda::spec<kda::decay::per_channel, kda::gate::bounded, kda::beta::logits, kda::qk::l2_normalized,
                        kda::io<kda::bf16>>;
KDA_EXPORT_KERNELS(wrong_kernels, wrong)
