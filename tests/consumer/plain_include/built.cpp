// SPDX-License-Identifier: Apache-2.0
// What kda_add_kernels() would generate: the ISAs that the kernels were built for, best first.
#include <kda/dispatch.hpp>

extern "C" {
const void* engine_kernels_avx2();
const void* engine_kernels_scalar();

extern const kda::built_kernels engine_kernels_built[];
const kda::built_kernels engine_kernels_built[] = {
    {"avx2", engine_kernels_avx2}, {"scalar", engine_kernels_scalar}, {nullptr, nullptr}};
}
