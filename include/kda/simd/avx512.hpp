// SPDX-License-Identifier: Apache-2.0
// AVX-512: 16 lanes, masks in registers of their own. With AVX512-BF16, pairs of bf16 as factors besides.
#pragma once
#include "xsimd_vec.hpp"

#if KDA_ISA_IS_AVX512()
namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

KDA_INLINE vec fma(vec a, vec b, vec c) {
  return {vec::batch(_mm512_fmadd_ps(a.x, b.x, c.x))};  // xsimd 8.1 multiplies, then adds
}
KDA_INLINE vec fnma(vec a, vec b, vec c) { return {vec::batch(_mm512_fnmadd_ps(a.x, b.x, c.x))}; }
KDA_INLINE vec max(vec a, vec b) { return {vec::batch(_mm512_max_ps(a.x, b.x))}; }
KDA_INLINE vec min(vec a, vec b) { return {vec::batch(_mm512_min_ps(a.x, b.x))}; }
KDA_INLINE vec shift_left_23(vec a) {
  return {vec::batch(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.x), 23)))};
}
KDA_INLINE vec flushed(vec a) { return a; }
KDA_INLINE vec pinned(vec a) {
  __m512 x = a.x;
  asm("" : "+v"(x));
  return {vec::batch(x)};
}
KDA_INLINE vec add_where(mask m, vec a, vec b) {
  return {vec::batch(_mm512_mask_add_ps(a.x, static_cast<__mmask16>(m.data), a.x, b.x))};
}
KDA_INLINE __mmask16 first_lanes(std::ptrdiff_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffffu : n > 0 ? (1u << n) - 1u : 0u);
}
KDA_INLINE vec load(const float* p, std::ptrdiff_t n) { return {vec::batch(_mm512_maskz_loadu_ps(first_lanes(n), p))}; }
KDA_INLINE void store(float* p, vec a, std::ptrdiff_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.x); }
template <word16 T> KDA_INLINE vec widen(__m256i words) {
  if constexpr (std::same_as<T, f16>) return {vec::batch(_mm512_cvtph_ps(words))};
  return {vec::batch(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16)))};
}
// A number rounded to bf16, in the upper half of each lane; the lower half is rubbish.
KDA_INLINE __m512i rounded_words(vec a) {
  const __m512i bits = _mm512_castps_si512(a.x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
}
template <word16 T> KDA_INLINE __m256i narrow(vec a) {  // as round_to<T>() has it, denormals and NaN included
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  // all lanes by a mask: the macro of the form without one, which gcc 12 has at -O0, draws a warning
  if constexpr (std::same_as<T, f16>) return _mm512_maskz_cvtps_ph(first_lanes(16), a.x, nearest);
  const __mmask16 nan = _mm512_cmp_ps_mask(a.x, a.x, _CMP_UNORD_Q);
  const __m512i kept =
      _mm512_mask_or_epi32(rounded_words(a), nan, _mm512_castps_si512(a.x), _mm512_set1_epi32(0x400000));
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16));
}
template <word16 T> KDA_INLINE vec load(const T* p) {
  return widen<T>(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
template <word16 T> KDA_INLINE vec load(const T* p, std::ptrdiff_t n) {
  return widen<T>(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
template <word16 T> KDA_INLINE void store(T* p, vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow<T>(a));
}
template <word16 T> KDA_INLINE void store(T* p, vec a, std::ptrdiff_t n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), narrow<T>(a));
}
template <int Quarters> KDA_INLINE vec shuffle_quarters(vec a, vec b) {
  return {vec::batch(_mm512_shuffle_f32x4(a.x, b.x, Quarters))};
}
KDA_INLINE vec interleave_low(vec a, vec b) { return {vec::batch(_mm512_unpacklo_ps(a.x, b.x))}; }
KDA_INLINE vec interleave_high(vec a, vec b) { return {vec::batch(_mm512_unpackhi_ps(a.x, b.x))}; }
KDA_INLINE vec low_pairs(vec a, vec b) { return {vec::batch(_mm512_shuffle_ps(a.x, b.x, 0x44))}; }
KDA_INLINE vec high_pairs(vec a, vec b) { return {vec::batch(_mm512_shuffle_ps(a.x, b.x, 0xee))}; }

KDA_INLINE vec merge_sums(const vec (&x)[4]) {
  constexpr int even = 0x88, odd = 0xdd;
  const vec low = shuffle_quarters<even>(x[0], x[1]) + shuffle_quarters<odd>(x[0], x[1]);
  const vec high = shuffle_quarters<even>(x[2], x[3]) + shuffle_quarters<odd>(x[2], x[3]);
  return shuffle_quarters<even>(low, high) + shuffle_quarters<odd>(low, high);
}
KDA_INLINE void transpose_quarters(vec (&x)[4]) {
  constexpr int even = 0x88, odd = 0xdd;
  const vec low_even = shuffle_quarters<even>(x[0], x[1]), low_odd = shuffle_quarters<odd>(x[0], x[1]);
  const vec high_even = shuffle_quarters<even>(x[2], x[3]), high_odd = shuffle_quarters<odd>(x[2], x[3]);
  x[0] = shuffle_quarters<even>(low_even, high_even);
  x[1] = shuffle_quarters<even>(low_odd, high_odd);
  x[2] = shuffle_quarters<odd>(low_even, high_even);
  x[3] = shuffle_quarters<odd>(low_odd, high_odd);
}
KDA_INLINE void store_sum_of_quarters(float* to, vec a) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.x), _mm512_extractf32x8_ps(a.x, 1));
  _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

// ---- pairs
KDA_INLINE void split_words(__m512i words, pair& x) {
  x[0] = {vec::batch(_mm512_castsi512_ps(_mm512_slli_epi32(words, 16)))};
  x[1] = {vec::batch(_mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32(-65536))))};
}
#if KDA_ISA_IS_AVX512_BF16()
// The instruction takes denormals for zeros; within an fp_scope arithmetic makes none.
KDA_INLINE __m512i join_words(const pair& x) {
  const __m512bh words = _mm512_cvtne2ps_pbh(x[1].x, x[0].x);  // all even, then all odd
  const __m512i spread =
      _mm512_setr_epi32(0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005, 0x160006, 0x170007, 0x180008,
                        0x190009, 0x1a000a, 0x1b000b, 0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f);
  return _mm512_permutexvar_epi16(spread, __builtin_bit_cast(__m512i, words));
}
#else
KDA_INLINE __m512i join_words(const pair& x) {
  return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(rounded_words(x[0]), 16), rounded_words(x[1]));
}
#endif
KDA_INLINE __mmask32 first_words(std::ptrdiff_t n) { return n >= 32 ? 0xffffffffu : (1u << n) - 1u; }
KDA_INLINE void load_pair(const bf16* p, pair& x) { split_words(_mm512_loadu_si512(p), x); }
KDA_INLINE void load_pair(const bf16* p, pair& x, std::ptrdiff_t n) {
  split_words(_mm512_maskz_loadu_epi16(first_words(n), p), x);
}
KDA_INLINE void store_pair(bf16* p, const pair& x) { _mm512_storeu_si512(p, join_words(x)); }
KDA_INLINE void store_pair(bf16* p, const pair& x, std::ptrdiff_t n) {
  _mm512_mask_storeu_epi16(p, first_words(n), join_words(x));
}
KDA_INLINE void to_even_odd(pair& x) {
  const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
  const __m512 a = _mm512_permutex2var_ps(x[0].x, even, x[1].x), b = _mm512_permutex2var_ps(x[0].x, odd, x[1].x);
  x[0] = {vec::batch(a)}, x[1] = {vec::batch(b)};
}
KDA_INLINE void from_even_odd(pair& x) {
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
  const __m512 a = _mm512_permutex2var_ps(x[0].x, first, x[1].x), b = _mm512_permutex2var_ps(x[0].x, second, x[1].x);
  x[0] = {vec::batch(a)}, x[1] = {vec::batch(b)};
}
KDA_INLINE vec canonical_nan(vec x) {
  const __mmask16 nan = _mm512_cmp_ps_mask(x.x, x.x, _CMP_UNORD_Q);
  return {vec::batch(_mm512_mask_mov_ps(x.x, nan, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000))))};
}

#if KDA_ISA_IS_AVX512_BF16()
// ---- pairs of bf16 as one factor

/// Two neighbours of a sum's terms, rounded to bf16: one instruction multiplies such pairs and adds both products.
struct alignas(4) bf16_pair {
  bf16 first, second;
};
struct pair_vec {
  __m512i x;
};
KDA_INLINE pair_vec broadcast(bf16_pair p) { return {_mm512_set1_epi32(__builtin_bit_cast(int, p))}; }
KDA_INLINE pair_vec load(const bf16_pair* p) { return {_mm512_loadu_si512(p)}; }
KDA_INLINE void store(bf16_pair* p, pair_vec a) { _mm512_storeu_si512(p, a.x); }
/// Lane i: the pair of lanes i of a and b.
KDA_INLINE pair_vec join(vec a, vec b) {
  const pair x = {a, b};
  return {join_words(x)};
}
/// Neighbouring lanes as pairs: what load(const bf16_pair*) takes up again.
KDA_INLINE void store_factors(bf16* p, vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), __builtin_bit_cast(__m256i, _mm512_cvtneps_pbh(a.x)));
}
/// c + a.first * b.first + a.second * b.second; denormals count as zero.
KDA_INLINE vec fma(pair_vec a, pair_vec b, vec c) {
  return {vec::batch(_mm512_dpbf16_ps(c.x, __builtin_bit_cast(__m512bh, a.x), __builtin_bit_cast(__m512bh, b.x)))};
}
#endif
}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
#endif
