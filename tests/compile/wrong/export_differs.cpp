// SPDX-License-Identifier: Apache-2.0
// expect: export_differs.cpp:10:
#include <kda/kda.hpp>

using key_major = kda::spec<kda::decay::none, kda::beta::given, kda::qk::as_given, kda::io<float>,
                            kda::state<float, kda::layout::key_major>>;
using value_major = kda::spec<kda::decay::none, kda::beta::given, kda::qk::as_given, kda::io<float>,
                              kda::state<float, kda::layout::value_major>>;
KDA_DECLARE_KERNELS(wrong, key_major)
KDA_EXPORT_KERNELS(wrong, value_major)
