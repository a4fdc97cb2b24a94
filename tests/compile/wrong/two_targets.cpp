// SPDX-License-Identifier: Apache-2.0
// expect: kda: two KDA_TARGET_<ISA> macros are defined; one translation unit is compiled for one ISA
#define KDA_TARGET_SCALAR 1
#define KDA_TARGET_AVX2 1
#include <kda/config.hpp>
