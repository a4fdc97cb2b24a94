// SPDX-License-Identifier: Apache-2.0
// What kda_add_kernels() would generate: the ISAs that the kernels were built for, best first.
#include <kda/dispatch.hpp>

extern "C" {
const void* engine_kernels_scalar();
#if defined(__aarch64__)
const void* engine_kernels_neon();
#else
const void* engine_kernels_avx2();
#endif

extern const kda::built_kernels engine_kernels_built[];
const kda::built_kernels engine_kernels_built[] = {
#if defined(__aarch64__)
    {"neon", engine_kernels_neon},
#else
    {"avx2", engine_kernels_avx2},
#endif
    {"scalar", engine_kernels_scalar},
    {nullptr, nullptr}};
}
