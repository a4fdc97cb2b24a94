// SPDX-License-Identifier: Apache-2.0
// expect: kda::state: states are stored as float or kda::bf16; kda::f16 is for tensors, a state would drift in it
#include <kda/kda.hpp>

using wrong = kda::spec<kda::decay::per_channel, kda::gate::bounded, kda::beta::logits, kda::qk::l2_normalized,
                        kda::io<kda::bf16>, kda::state<double, kda::layout::key_major>>;
KDA_EXPORT_KERNELS(wrong_kernels, wrong)
