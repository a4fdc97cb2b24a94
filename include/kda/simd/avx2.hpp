// SPDX-License-Identifier: Apache-2.0
// AVX2 with FMA and F16C: 8 lanes, masks are vectors.
#pragma once
#include "xsimd_vec.hpp"

#if KDA_ISA_IS_AVX2()
namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

KDA_INLINE vec fma(vec a, vec b, vec c) { return {xsimd::fma(a.x, b.x, c.x)}; }
KDA_INLINE vec fnma(vec a, vec b, vec c) { return {xsimd::fnma(a.x, b.x, c.x)}; }
KDA_INLINE vec max(vec a, vec b) { return {vec::batch(_mm256_max_ps(a.x, b.x))}; }
KDA_INLINE vec min(vec a, vec b) { return {vec::batch(_mm256_min_ps(a.x, b.x))}; }
KDA_INLINE vec shift_left_23(vec a) {
  return {vec::batch(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(a.x), 23)))};
}
KDA_INLINE vec flushed(vec a) { return a; }
KDA_INLINE vec pinned(vec a) {
  __m256 x = a.x;
  asm("" : "+x"(x));
  return {vec::batch(x)};
}
KDA_INLINE vec add_where(mask m, vec a, vec b) { return {vec::batch(_mm256_add_ps(a.x, _mm256_and_ps(m, b.x)))}; }
KDA_INLINE __m256i first_lanes(std::ptrdiff_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n < 8 ? n : 8)),
                            _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
KDA_INLINE vec load(const float* p, std::ptrdiff_t n) { return {vec::batch(_mm256_maskload_ps(p, first_lanes(n)))}; }
KDA_INLINE void store(float* p, vec a, std::ptrdiff_t n) { _mm256_maskstore_ps(p, first_lanes(n), a.x); }
template <word16 T> KDA_INLINE vec widen(__m128i words) {
  if constexpr (std::same_as<T, f16>) return {vec::batch(_mm256_cvtph_ps(words))};
  return {vec::batch(_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16)))};
}
// A number rounded to bf16, in the upper half of each lane; the lower half is rubbish.
KDA_INLINE __m256i rounded_words(vec a) {
  const __m256i bits = _mm256_castps_si256(a.x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
}
template <word16 T> KDA_INLINE __m128i narrow(vec a) {  // as round_to<T>() has it, denormals and NaN included
  if constexpr (std::same_as<T, f16>) return _mm256_cvtps_ph(a.x, _MM_FROUND_TO_NEAREST_INT);
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.x, a.x, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_or_si256(_mm256_castps_si256(a.x), _mm256_set1_epi32(0x400000));
  const __m256i kept = _mm256_srli_epi32(_mm256_blendv_epi8(rounded_words(a), quiet, nan), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(kept, kept), 0x08);
  return _mm256_castsi256_si128(packed);
}
template <word16 T> KDA_INLINE vec load(const T* p) {
  return widen<T>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
template <word16 T> KDA_INLINE void store(T* p, vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow<T>(a));
}
KDA_INLINE vec interleave_low(vec a, vec b) { return {vec::batch(_mm256_unpacklo_ps(a.x, b.x))}; }
KDA_INLINE vec interleave_high(vec a, vec b) { return {vec::batch(_mm256_unpackhi_ps(a.x, b.x))}; }
KDA_INLINE vec low_pairs(vec a, vec b) { return {vec::batch(_mm256_shuffle_ps(a.x, b.x, 0x44))}; }
KDA_INLINE vec high_pairs(vec a, vec b) { return {vec::batch(_mm256_shuffle_ps(a.x, b.x, 0xee))}; }
KDA_INLINE vec low_halves(vec a, vec b) { return {vec::batch(_mm256_permute2f128_ps(a.x, b.x, 0x20))}; }
KDA_INLINE vec high_halves(vec a, vec b) { return {vec::batch(_mm256_permute2f128_ps(a.x, b.x, 0x31))}; }

KDA_INLINE vec merge_sums(const vec (&x)[2]) { return low_halves(x[0], x[1]) + high_halves(x[0], x[1]); }
KDA_INLINE void transpose_quarters(vec (&x)[2]) {
  const vec low = low_halves(x[0], x[1]), high = high_halves(x[0], x[1]);
  x[0] = low, x[1] = high;
}
KDA_INLINE void store_sum_of_quarters(float* to, vec a) {
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(a.x), _mm256_extractf128_ps(a.x, 1)));
}

// ---- pairs
KDA_INLINE void split_words(__m256i words, pair& x) {
  x[0] = {vec::batch(_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)))};
  x[1] = {vec::batch(_mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(-65536))))};
}
KDA_INLINE __m256i join_words(const pair& x) {
  return _mm256_blend_epi16(_mm256_srli_epi32(rounded_words(x[0]), 16), rounded_words(x[1]), 0xaa);
}
KDA_INLINE void load_pair(const bf16* p, pair& x) {
  split_words(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), x);
}
KDA_INLINE void store_pair(bf16* p, const pair& x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), join_words(x));
}
KDA_INLINE void to_even_odd(pair& x) {
  const __m256d a = _mm256_castps_pd(_mm256_shuffle_ps(x[0].x, x[1].x, 0x88));
  const __m256d b = _mm256_castps_pd(_mm256_shuffle_ps(x[0].x, x[1].x, 0xdd));
  x[0] = {vec::batch(_mm256_castpd_ps(_mm256_permute4x64_pd(a, 0xd8)))};
  x[1] = {vec::batch(_mm256_castpd_ps(_mm256_permute4x64_pd(b, 0xd8)))};
}
KDA_INLINE void from_even_odd(pair& x) {
  const __m256 a = _mm256_unpacklo_ps(x[0].x, x[1].x), b = _mm256_unpackhi_ps(x[0].x, x[1].x);
  x[0] = {vec::batch(_mm256_permute2f128_ps(a, b, 0x20))};
  x[1] = {vec::batch(_mm256_permute2f128_ps(a, b, 0x31))};
}
KDA_INLINE vec canonical_nan(vec x) {
  const __m256 nan = _mm256_cmp_ps(x.x, x.x, _CMP_UNORD_Q);
  return {vec::batch(_mm256_blendv_ps(x.x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), nan))};
}

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
#endif
