// SPDX-License-Identifier: Apache-2.0
// What the vectors of every ISA but `scalar` have from xsimd; the only file that includes it. The rest is written with
// intrinsics, in the ISAs' files: xsimd has no partial loads and stores, no bf16 and no f16, and does not say which
// operand of max and min survives a NaN.
#pragma once
#include "../bf16.hpp"
#include "../config.hpp"
#include "../f16.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>

#if !KDA_ISA_IS_SCALAR()
// gcc 12 takes the undefined operands of its own AVX-512 intrinsics for mistakes of ours (gcc bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#if defined(__SSE2__)
#include <immintrin.h>
#else
#include <arm_neon.h>
#endif
#include <xsimd/xsimd.hpp>
#if XSIMD_VERSION_MAJOR < 8
#error "kda needs xsimd 8.1 or newer"
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

#if KDA_ISA_IS_AVX512()
using arch = xsimd::avx512bw;
#elif KDA_ISA_IS_AVX2()
using arch = xsimd::fma3<xsimd::avx2>;
#else
using arch = xsimd::neon64;
#endif
struct vec {
  using batch = xsimd::batch<float, arch>;
  static constexpr std::ptrdiff_t lanes = static_cast<std::ptrdiff_t>(batch::size);
  batch x;
};
using mask = xsimd::batch_bool<float, arch>;
using pair = vec[2];

KDA_INLINE vec broadcast(float x) { return {vec::batch(x)}; }
KDA_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
KDA_INLINE vec load(const float* p) { return {vec::batch::load_unaligned(p)}; }
KDA_INLINE void store(float* p, vec a) { a.x.store_unaligned(p); }
KDA_INLINE vec operator+(vec a, vec b) { return {a.x + b.x}; }
KDA_INLINE vec operator-(vec a, vec b) { return {a.x - b.x}; }
KDA_INLINE vec operator*(vec a, vec b) { return {a.x * b.x}; }  // only where no sum takes the product: see vec.hpp
#if KDA_ISA_IS_NEON()                                           // xsimd 8.1 approximates both
KDA_INLINE vec sqrt(vec a) { return {vec::batch(vsqrtq_f32(a.x))}; }
KDA_INLINE vec operator/(vec a, vec b) { return {vec::batch(vdivq_f32(a.x, b.x))}; }
#else
KDA_INLINE vec sqrt(vec a) { return {xsimd::sqrt(a.x)}; }
KDA_INLINE vec operator/(vec a, vec b) { return {a.x / b.x}; }
#endif
KDA_INLINE float reduce_add(vec a) {
#if XSIMD_VERSION_MAJOR >= 9
  return xsimd::reduce_add(a.x);
#else
  return xsimd::hadd(a.x);
#endif
}
KDA_INLINE mask less(vec a, vec b) { return a.x < b.x; }
KDA_INLINE vec select(mask m, vec a, vec b) { return {xsimd::select(m, a.x, b.x)}; }

// The first n of at most N numbers, where the ISA has no masked loads and stores for their type.
template <std::ptrdiff_t N, class T> KDA_INLINE void copy_first(const T* from, std::ptrdiff_t n, T* to) {
  for (std::ptrdiff_t i = 0; i < n && i < N; ++i) to[i] = from[i];
}

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
#endif
