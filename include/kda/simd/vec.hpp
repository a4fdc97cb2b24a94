// SPDX-License-Identifier: Apache-2.0
// One vector of floats of the ISA this file is compiled for. The only file that includes xsimd; `scalar` is a vector of
// one.
//
// Every operation rounds once and as written. Kernels write fma(a, b, c) where a product meets a sum and never `a * b +
// c`, which a compiler may or may not contract: results then do not depend on register blocking or compiler.
#pragma once
#include "../bf16.hpp"
#include "../config.hpp"
#include "../f16.hpp"

#include <concepts>
#include <cstddef>
#include <cstdint>

// gcc 12 takes the undefined operands of its own AVX-512 intrinsics for mistakes of ours (gcc bug 105593).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#if defined(__SSE2__)
#include <immintrin.h>
#endif
#if !KDA_ISA_IS_SCALAR()
#include <xsimd/xsimd.hpp>
#if XSIMD_VERSION_MAJOR < 8
#error "kda needs xsimd 8.1 or newer"
#endif
#endif
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

// Numbers of 16 bits: one way through memory, two conversions.
template <class T>
concept word16 = std::same_as<T, bf16> || std::same_as<T, f16>;

#if KDA_ISA_IS_SCALAR()

struct vec {
  static constexpr std::ptrdiff_t lanes = 1;
  float x;
};
using mask = bool;
KDA_INLINE vec broadcast(float x) { return {x}; }
KDA_INLINE vec load(const float* p) { return {*p}; }
template <word16 T> KDA_INLINE vec load(const T* p) { return {to_float(*p)}; }
KDA_INLINE void store(float* p, vec a) { *p = a.x; }
template <word16 T> KDA_INLINE void store(T* p, vec a) { *p = round_to<T>(a.x); }
template <class T> KDA_INLINE vec load(const T* p, std::ptrdiff_t n) { return n > 0 ? load(p) : vec{0.f}; }
template <class T> KDA_INLINE void store(T* p, vec a, std::ptrdiff_t n) {
  if (n > 0) store(p, a);
}
KDA_INLINE vec fma(vec a, vec b, vec c) {
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
  return {__builtin_fmaf(a.x, b.x, c.x)};
#else
  return {a.x * b.x + c.x};  // no such instruction, so nothing can be contracted
#endif
}
KDA_INLINE float fma(float a, float b, float c) { return fma(vec{a}, vec{b}, vec{c}).x; }
KDA_INLINE vec fnma(vec a, vec b, vec c) { return fma({-a.x}, b, c); }
KDA_INLINE vec sqrt(vec a) {
#if defined(__SSE2__)
  return {_mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(a.x)))};
#else
  return {__builtin_sqrtf(a.x)};
#endif
}
KDA_INLINE float reduce_add(vec a) { return a.x; }
KDA_INLINE mask less(vec a, vec b) { return a.x < b.x; }
KDA_INLINE vec select(mask m, vec a, vec b) { return m ? a : b; }
// The operand that stands second survives a NaN in either, as in maxps.
KDA_INLINE vec max(vec a, vec b) { return a.x > b.x ? a : b; }
KDA_INLINE vec min(vec a, vec b) { return a.x < b.x ? a : b; }
KDA_INLINE vec shift_left_23(vec a) {
  return {__builtin_bit_cast(float, __builtin_bit_cast(std::uint32_t, a.x) << 23)};
}
// Denormals to zero, which fp_scope asks of the processor: a compiler that works out a case of scalar code by itself
// does not heed it.
KDA_INLINE vec flushed(vec a) { return {(__builtin_bit_cast(std::uint32_t, a.x) & 0x7f800000u) == 0 ? 0.f : a.x}; }
KDA_INLINE vec sum_lanes(const vec (&x)[1]) { return x[0]; }
KDA_INLINE void sum_lanes(const vec (&x)[4], float (&sum)[4]) {
  KDA_UNROLL
  for (int i = 0; i < 4; ++i) sum[i] = x[i].x;
}
KDA_INLINE void transpose(vec (&)[1]) {}
KDA_INLINE void load_columns(const float* p, vec (&y)[4]) {
  KDA_UNROLL
  for (int j = 0; j < 4; ++j) y[j] = load(p + j);
}
KDA_INLINE vec pinned(vec a) { return a; }
KDA_INLINE vec add_where(mask m, vec a, vec b) { return m ? vec{a.x + b.x} : a; }

#else

#if KDA_ISA_IS_AVX512()
using arch = xsimd::avx512bw;
#else
using arch = xsimd::fma3<xsimd::avx2>;
#endif
struct vec {
  using batch = xsimd::batch<float, arch>;
  static constexpr std::ptrdiff_t lanes = static_cast<std::ptrdiff_t>(batch::size);
  batch x;
};
using mask = xsimd::batch_bool<float, arch>;

KDA_INLINE vec broadcast(float x) { return {vec::batch(x)}; }
KDA_INLINE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
KDA_INLINE vec load(const float* p) { return {vec::batch::load_unaligned(p)}; }
KDA_INLINE void store(float* p, vec a) { a.x.store_unaligned(p); }
KDA_INLINE vec fma(vec a, vec b, vec c) {
#if KDA_ISA_IS_AVX512()
  return {vec::batch(_mm512_fmadd_ps(a.x, b.x, c.x))};  // xsimd 8.1 multiplies, then adds
#else
  return {xsimd::fma(a.x, b.x, c.x)};
#endif
}
KDA_INLINE vec fnma(vec a, vec b, vec c) {
#if KDA_ISA_IS_AVX512()
  return {vec::batch(_mm512_fnmadd_ps(a.x, b.x, c.x))};
#else
  return {xsimd::fnma(a.x, b.x, c.x)};
#endif
}
KDA_INLINE vec sqrt(vec a) { return {xsimd::sqrt(a.x)}; }
KDA_INLINE float reduce_add(vec a) {
#if XSIMD_VERSION_MAJOR >= 9
  return xsimd::reduce_add(a.x);
#else
  return xsimd::hadd(a.x);
#endif
}
KDA_INLINE mask less(vec a, vec b) { return a.x < b.x; }
KDA_INLINE vec select(mask m, vec a, vec b) { return {xsimd::select(m, a.x, b.x)}; }

// Written with intrinsics: the instruction's rule that the second operand survives a NaN is relied upon; xsimd has no
// partial loads and stores, no bf16 and no f16.
#if KDA_ISA_IS_AVX512()
KDA_INLINE vec max(vec a, vec b) { return {vec::batch(_mm512_max_ps(a.x, b.x))}; }
KDA_INLINE vec min(vec a, vec b) { return {vec::batch(_mm512_min_ps(a.x, b.x))}; }
KDA_INLINE vec shift_left_23(vec a) {
  return {vec::batch(_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(a.x), 23)))};
}
KDA_INLINE vec flushed(vec a) { return a; }
// A loaded vector that several instructions use, kept in a register: gcc folds the load into each of them otherwise, and
// loads, of which a core does two a cycle, become the limit.
KDA_INLINE vec pinned(vec a) {
  __m512 x = a.x;
  asm("" : "+v"(x));
  return {vec::batch(x)};
}
// a + b where m is set, a elsewhere.
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
template <word16 T> KDA_INLINE __m256i narrow(vec a) {  // as round_to<T>() has it, denormals and NaN included
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  // all lanes by a mask: the macro of the form without one, which gcc 12 has at -O0, draws a warning
  if constexpr (std::same_as<T, f16>) return _mm512_maskz_cvtps_ph(first_lanes(16), a.x, nearest);
  const __m512i bits = _mm512_castps_si512(a.x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.x, a.x, _CMP_UNORD_Q);
  const __m512i kept = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x400000));
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

#else
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
template <word16 T> KDA_INLINE __m128i narrow(vec a) {  // as round_to<T>() has it, denormals and NaN included
  if constexpr (std::same_as<T, f16>) return _mm256_cvtps_ph(a.x, _MM_FROUND_TO_NEAREST_INT);
  const __m256i bits = _mm256_castps_si256(a.x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.x, a.x, _CMP_UNORD_Q));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  const __m256i kept = _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(kept, kept), 0x08);
  return _mm256_castsi256_si128(packed);
}
template <word16 T> KDA_INLINE vec load(const T* p) {
  return widen<T>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
template <word16 T> KDA_INLINE void store(T* p, vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow<T>(a));
}
template <word16 T> KDA_INLINE vec load(const T* p, std::ptrdiff_t n) {
  T part[vec::lanes] = {};
  for (std::ptrdiff_t i = 0; i < n && i < vec::lanes; ++i) part[i] = p[i];
  return load(part);
}
template <word16 T> KDA_INLINE void store(T* p, vec a, std::ptrdiff_t n) {
  T part[vec::lanes];
  store(part, a);
  for (std::ptrdiff_t i = 0; i < n && i < vec::lanes; ++i) p[i] = part[i];
}
KDA_INLINE vec interleave_low(vec a, vec b) { return {vec::batch(_mm256_unpacklo_ps(a.x, b.x))}; }
KDA_INLINE vec interleave_high(vec a, vec b) { return {vec::batch(_mm256_unpackhi_ps(a.x, b.x))}; }
KDA_INLINE vec low_pairs(vec a, vec b) { return {vec::batch(_mm256_shuffle_ps(a.x, b.x, 0x44))}; }
KDA_INLINE vec high_pairs(vec a, vec b) { return {vec::batch(_mm256_shuffle_ps(a.x, b.x, 0xee))}; }
KDA_INLINE vec low_halves(vec a, vec b) { return {vec::batch(_mm256_permute2f128_ps(a.x, b.x, 0x20))}; }
KDA_INLINE vec high_halves(vec a, vec b) { return {vec::batch(_mm256_permute2f128_ps(a.x, b.x, 0x31))}; }
#endif
#endif

// ---- pairs of vectors -----------------------------------------------------------------------------------------------
//
// Rows of a state are worked on 2 * lanes elements at a time. Floats are two neighbouring vectors; bf16 are the even
// and the odd elements: one shift and one mask widen them, and nothing crosses lanes.
using pair = vec[2];

KDA_INLINE void load_pair(const float* p, pair& x) { x[0] = load(p), x[1] = load(p + vec::lanes); }
KDA_INLINE void store_pair(float* p, const pair& x) { store(p, x[0]), store(p + vec::lanes, x[1]); }
// The first n of the elements, 0 < n < 2 * lanes; zeros for the rest.
KDA_INLINE void load_pair(const float* p, pair& x, std::ptrdiff_t n) {
  x[0] = n < vec::lanes ? load(p, n) : load(p);
  x[1] = n <= vec::lanes ? broadcast(0.f) : load(p + vec::lanes, n - vec::lanes);
}
KDA_INLINE void store_pair(float* p, const pair& x, std::ptrdiff_t n) {
  if (n < vec::lanes)
    store(p, x[0], n);
  else
    store(p, x[0]);
  if (n > vec::lanes) store(p + vec::lanes, x[1], n - vec::lanes);
}
#if KDA_ISA_IS_SCALAR()
KDA_INLINE void load_pair(const bf16* p, pair& x) { x[0] = load(p), x[1] = load(p + 1); }
KDA_INLINE void load_pair(const bf16* p, pair& x, std::ptrdiff_t) { x[0] = load(p), x[1] = {0.f}; }
KDA_INLINE void store_pair(bf16* p, const pair& x) { store(p, x[0]), store(p + 1, x[1]); }
KDA_INLINE void store_pair(bf16* p, const pair& x, std::ptrdiff_t) { store(p, x[0]); }
KDA_INLINE void to_even_odd(pair&) {}
KDA_INLINE void from_even_odd(pair&) {}
#elif KDA_ISA_IS_AVX512()
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
// Rounded to nearest, ties to even, in the upper half of each lane: as to_bf16() has it, but for a NaN whose lower half
// is not zero, which may become anything. See canonical_nan().
KDA_INLINE __m512i rounded_words(vec a) {
  const __m512i bits = _mm512_castps_si512(a.x);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  return _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
}
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
// Two neighbouring vectors to (even, odd), and back.
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
#else
KDA_INLINE void split_words(__m256i words, pair& x) {
  x[0] = {vec::batch(_mm256_castsi256_ps(_mm256_slli_epi32(words, 16)))};
  x[1] = {vec::batch(_mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(-65536))))};
}
// Rounded to nearest, ties to even, in the upper half of each lane: as to_bf16() has it, but for a NaN whose lower half
// is not zero, which may become anything. See canonical_nan().
KDA_INLINE __m256i rounded_words(vec a) {
  const __m256i bits = _mm256_castps_si256(a.x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
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
KDA_INLINE void load_pair(const bf16* p, pair& x, std::ptrdiff_t n) {
  bf16 some[2 * vec::lanes] = {};
  for (std::ptrdiff_t i = 0; i < n && i < 2 * vec::lanes; ++i) some[i] = p[i];
  load_pair(some, x);
}
KDA_INLINE void store_pair(bf16* p, const pair& x, std::ptrdiff_t n) {
  bf16 some[2 * vec::lanes];
  store_pair(some, x);
  for (std::ptrdiff_t i = 0; i < n && i < 2 * vec::lanes; ++i) p[i] = some[i];
}
// Two neighbouring vectors to (even, odd), and back.
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
#endif

// A NaN becomes one whose lower half is zero, and so does every NaN that arithmetic makes of it: store_pair() keeps it.
KDA_INLINE vec canonical_nan(vec x) {
#if KDA_ISA_IS_SCALAR()
  return x;
#elif KDA_ISA_IS_AVX512()
  const __mmask16 nan = _mm512_cmp_ps_mask(x.x, x.x, _CMP_UNORD_Q);
  return {vec::batch(_mm512_mask_mov_ps(x.x, nan, _mm512_castsi512_ps(_mm512_set1_epi32(0x7fc00000))))};
#else
  const __m256 nan = _mm256_cmp_ps(x.x, x.x, _CMP_UNORD_Q);
  return {vec::batch(_mm256_blendv_ps(x.x, _mm256_castsi256_ps(_mm256_set1_epi32(0x7fc00000)), nan))};
#endif
}

KDA_INLINE vec operator+(vec a, vec b) { return {a.x + b.x}; }
KDA_INLINE vec operator-(vec a, vec b) { return {a.x - b.x}; }
KDA_INLINE vec operator*(vec a, vec b) { return {a.x * b.x}; }  // only where no sum takes the product: see the top
KDA_INLINE vec operator/(vec a, vec b) { return {a.x / b.x}; }

#if !KDA_ISA_IS_SCALAR()
// Lane i of each quarter: the sum of the quarter of x[i].
KDA_INLINE vec sum_quarters(const vec* x) {
  const vec ab = interleave_low(x[0], x[1]) + interleave_high(x[0], x[1]);
  const vec cd = interleave_low(x[2], x[3]) + interleave_high(x[2], x[3]);
  return low_pairs(ab, cd) + high_pairs(ab, cd);
}
// Lane i is the sum of the lanes of x[i], added in an order that does not depend on i.
KDA_INLINE vec sum_lanes(const vec (&x)[vec::lanes]) {
  constexpr int quads = static_cast<int>(vec::lanes) / 4;
  vec quad[quads];  // quarter q of quad[i]: the sums of the four lanes q of x[4 i] to x[4 i + 3]
  KDA_UNROLL
  for (int i = 0; i < quads; ++i) quad[i] = sum_quarters(x + 4 * i);
#if KDA_ISA_IS_AVX512()
  constexpr int even = 0x88, odd = 0xdd;
  const vec low = shuffle_quarters<even>(quad[0], quad[1]) + shuffle_quarters<odd>(quad[0], quad[1]);
  const vec high = shuffle_quarters<even>(quad[2], quad[3]) + shuffle_quarters<odd>(quad[2], quad[3]);
  return shuffle_quarters<even>(low, high) + shuffle_quarters<odd>(low, high);
#else
  return low_halves(quad[0], quad[1]) + high_halves(quad[0], quad[1]);
#endif
}

// sum[i]: the lanes of x[i], added in an order that does not depend on i.
KDA_INLINE void sum_lanes(const vec (&x)[4], float (&sum)[4]) {
  const vec quads = sum_quarters(x);
#if KDA_ISA_IS_AVX512()
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(quads.x), _mm512_extractf32x8_ps(quads.x, 1));
#else
  const __m256 half = quads.x;
#endif
  _mm_storeu_ps(sum, _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1)));
}

// Lane j of x[i] and lane i of x[j] change places.
KDA_INLINE void transpose(vec (&x)[vec::lanes]) {
  constexpr int quads = static_cast<int>(vec::lanes) / 4;
  vec y[vec::lanes];  // quarter q of y[4 i + j]: lane j of quarter q of x[4 i] to x[4 i + 3]
  KDA_UNROLL
  for (int i = 0; i < quads; ++i) {
    const vec ab_low = interleave_low(x[4 * i], x[4 * i + 1]), ab_high = interleave_high(x[4 * i], x[4 * i + 1]);
    const vec cd_low = interleave_low(x[4 * i + 2], x[4 * i + 3]),
              cd_high = interleave_high(x[4 * i + 2], x[4 * i + 3]);
    y[4 * i] = low_pairs(ab_low, cd_low);
    y[4 * i + 1] = high_pairs(ab_low, cd_low);
    y[4 * i + 2] = low_pairs(ab_high, cd_high);
    y[4 * i + 3] = high_pairs(ab_high, cd_high);
  }
  KDA_UNROLL
  for (int j = 0; j < 4; ++j) {
#if KDA_ISA_IS_AVX512()
    constexpr int even = 0x88, odd = 0xdd;
    const vec low_even = shuffle_quarters<even>(y[j], y[4 + j]), low_odd = shuffle_quarters<odd>(y[j], y[4 + j]);
    const vec high_even = shuffle_quarters<even>(y[8 + j], y[12 + j]),
              high_odd = shuffle_quarters<odd>(y[8 + j], y[12 + j]);
    x[j] = shuffle_quarters<even>(low_even, high_even);
    x[4 + j] = shuffle_quarters<even>(low_odd, high_odd);
    x[8 + j] = shuffle_quarters<odd>(low_even, high_even);
    x[12 + j] = shuffle_quarters<odd>(low_odd, high_odd);
#else
    x[j] = low_halves(y[j], y[4 + j]);
    x[4 + j] = high_halves(y[j], y[4 + j]);
#endif
  }
}

// Lane l of y[j] is p[4 l + j]: rows of four numbers as four columns.
KDA_INLINE void load_columns(const float* p, vec (&y)[4]) {
  vec x[4], row[4];  // quarter q of row[i]: row 4 q + i
  KDA_UNROLL
  for (int i = 0; i < 4; ++i) x[i] = load(p + i * vec::lanes);
#if KDA_ISA_IS_AVX512()
  constexpr int even = 0x88, odd = 0xdd;
  const vec low_even = shuffle_quarters<even>(x[0], x[1]), low_odd = shuffle_quarters<odd>(x[0], x[1]);
  const vec high_even = shuffle_quarters<even>(x[2], x[3]), high_odd = shuffle_quarters<odd>(x[2], x[3]);
  row[0] = shuffle_quarters<even>(low_even, high_even);
  row[1] = shuffle_quarters<even>(low_odd, high_odd);
  row[2] = shuffle_quarters<odd>(low_even, high_even);
  row[3] = shuffle_quarters<odd>(low_odd, high_odd);
#else
  row[0] = low_halves(x[0], x[2]);
  row[1] = high_halves(x[0], x[2]);
  row[2] = low_halves(x[1], x[3]);
  row[3] = high_halves(x[1], x[3]);
#endif
  const vec ab_low = interleave_low(row[0], row[1]), ab_high = interleave_high(row[0], row[1]);
  const vec cd_low = interleave_low(row[2], row[3]), cd_high = interleave_high(row[2], row[3]);
  y[0] = low_pairs(ab_low, cd_low);
  y[1] = high_pairs(ab_low, cd_low);
  y[2] = low_pairs(ab_high, cd_high);
  y[3] = high_pairs(ab_high, cd_high);
}
#endif

// ---- pairs of bf16 as one factor -------------------------------------------------------------------------------------

#if KDA_ISA_IS_AVX512_BF16()
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

// p, of which the compiler knows nothing: it loads from there again, and computes no addresses ahead.
template <class T> KDA_INLINE const T* opaque(const T* p) {
  asm volatile("" : "+r"(p) : : "memory");
  return p;
}

// Asks for the cache line at p, into L1: into L2 (prefetcht1) it gained nothing on Zen 4.
KDA_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }

// x within [low, high]; a NaN stays a NaN.
KDA_INLINE vec clamp(vec x, float low, float high) { return min(broadcast(high), max(broadcast(low), x)); }

// x rounded to T and back.
template <class T> KDA_INLINE vec rounded(vec x) {
  if constexpr (std::same_as<T, float>) {
    return x;
  } else {
    T part[vec::lanes];
    store(part, x);
    return load(part);
  }
}

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
