// SPDX-License-Identifier: Apache-2.0
// expect: kda::dims: K is at most 256 and neither is negative (0: known at run time)
#include <kda/kda.hpp>

using wrong = kda::spec<kda::decay::per_channel, kda::gate::bounded, kda::beta::logits, kda::qk::l2_normalized,
                        kda::io<kda::bf16>, kda::state<float, kda::layout::value_major>, kda::dims<257, 128>>;
KDA_EXPORT_KERNELS(wrong_kernels, wrong)
