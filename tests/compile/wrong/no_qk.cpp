// SPDX-License-Identifier: Apache-2.0
// expect: kda::spec: say whether the kernel normalises q and k: kda::qk::l2_normalized or as_given
#include <kda/kda.hpp>

using wrong = kda::spec<kda::decay::per_channel, kda::gate::bounded, kda::beta::logits, kda::io<kda::bf16>,
                        kda::state<float, kda::layout::value_major>>;
KDA_EXPORT_KERNELS(wrong_kernels, wrong)
