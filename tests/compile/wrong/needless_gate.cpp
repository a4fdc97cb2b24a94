// SPDX-License-Identifier: Apache-2.0
// expect: kda::spec: decay::none has no gate; leave the gate option out
#include <kda/kda.hpp>

using wrong = kda::spec<kda::decay::none, kda::gate::bounded, kda::beta::logits, kda::qk::l2_normalized,
                        kda::io<kda::bf16>, kda::state<float, kda::layout::value_major>>;
KDA_EXPORT_KERNELS(wrong_kernels, wrong)
