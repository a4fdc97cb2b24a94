// SPDX-License-Identifier: Apache-2.0
// One float as a vector of one lane, in portable C++: an operation that rounds once, rounds once here too where the
// processor has a fused multiply-add.
#pragma once
#include "../bf16.hpp"
#include "../config.hpp"
#include "../f16.hpp"

#include <cstddef>
#include <cstdint>

#if KDA_ISA_IS_SCALAR()
#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

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
KDA_INLINE vec operator+(vec a, vec b) { return {a.x + b.x}; }
KDA_INLINE vec operator-(vec a, vec b) { return {a.x - b.x}; }
KDA_INLINE vec operator*(vec a, vec b) { return {a.x * b.x}; }  // only where no sum takes the product: see vec.hpp
KDA_INLINE vec operator/(vec a, vec b) { return {a.x / b.x}; }
KDA_INLINE float reduce_add(vec a) { return a.x; }
KDA_INLINE mask less(vec a, vec b) { return a.x < b.x; }
KDA_INLINE vec select(mask m, vec a, vec b) { return m ? a : b; }
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

using pair = vec[2];
KDA_INLINE void load_pair(const bf16* p, pair& x) { x[0] = load(p), x[1] = load(p + 1); }
KDA_INLINE void load_pair(const bf16* p, pair& x, std::ptrdiff_t) { x[0] = load(p), x[1] = {0.f}; }
KDA_INLINE void store_pair(bf16* p, const pair& x) { store(p, x[0]), store(p + 1, x[1]); }
KDA_INLINE void store_pair(bf16* p, const pair& x, std::ptrdiff_t) { store(p, x[0]); }
KDA_INLINE void to_even_odd(pair&) {}
KDA_INLINE void from_even_odd(pair&) {}
KDA_INLINE vec canonical_nan(vec x) { return x; }

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
#endif
