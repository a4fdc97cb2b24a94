// SPDX-License-Identifier: Apache-2.0
// expect: kda: the template argument must be a kda::spec<...>
#include <kda/kda.hpp>

const kda::kernels<kda::decay::per_channel> wrong{};
const auto prefill = &kda::kernels<kda::decay::per_channel>::prefill;
