// SPDX-License-Identifier: Apache-2.0
// One vector of floats of the ISA this file is compiled for: what kernels are written over. scalar.hpp, neon.hpp, avx2.hpp
// and avx512.hpp hold what each ISA spells in its own way, xsimd_vec.hpp what xsimd gives all but the first; what
// follows from that stands here, once.
//
// Every operation rounds once and as written. Kernels write fma(a, b, c) where a product meets a sum and never `a * b +
// c`, which a compiler may or may not contract: results then do not depend on register blocking or compiler.
//
//   vec, mask           a vector, vec::lanes floats; one truth value a lane
//   load, store         a vector, or the first n of its elements (zeros for the rest), of floats, bf16 or f16
//   broadcast, less, select, sqrt, + - * /
//   fma, fnma           a b + c, c - a b
//   max, min            a NaN that stands second survives
//   reduce_add          sum of the lanes
//   add_where(m, a, b)  a + b where m is set, a elsewhere
//   shift_left_23(a)    the bits of a, 23 further left
//   flushed(a)          denormals to zero, where the processor cannot be relied upon for it
//   pinned(a)           a loaded vector that several instructions use, kept in a register: gcc folds the load into each
//                       of them otherwise, and loads, of which a core does two or three a cycle, become the limit
//
// Of a pair (below) of bf16:
//   load_pair                   the elements widened
//   store_pair                  rounded to nearest, ties to even, as to_bf16() has it, but for a NaN whose lower half is
//                               not zero, which may become anything
//   canonical_nan(x)            a NaN becomes one whose lower half is zero, and so does every NaN that arithmetic makes
//                               of it: store_pair() keeps it
//   to_even_odd, from_even_odd  two neighbouring vectors to (even, odd), and back
//
// Lanes across vectors, of all but scalar, where a quarter is four lanes:
//   interleave_low, interleave_high, low_pairs, high_pairs(a, b)   within each quarter
//   merge_sums(x)               quarter i: the sum of the quarters of x[i]
//   transpose_quarters(x)       quarter j of x[i] and quarter i of x[j] change places
//   store_sum_of_quarters(p, a) four floats
#pragma once
#include "avx2.hpp"
#include "avx512.hpp"
#include "neon.hpp"
#include "scalar.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

#if KDA_ISA_IS_NEON() || KDA_ISA_IS_AVX2()
// Parts of a vector where there are no masks for them: numbers of 16 bits, and on NEON floats.
template <class T>
concept unmasked = word16<T> ||(KDA_ISA_IS_NEON() && std::same_as<T, float>);
template <unmasked T> KDA_INLINE vec load(const T* p, std::ptrdiff_t n) {
  T part[vec::lanes] = {};
  copy_first<vec::lanes>(p, n, part);
  return load(part);
}
template <unmasked T> KDA_INLINE void store(T* p, vec a, std::ptrdiff_t n) {
  T part[vec::lanes];
  store(part, a);
  copy_first<vec::lanes>(part, n, p);
}
#endif

// ---- pairs of vectors -----------------------------------------------------------------------------------------------
//
// Rows of a state are worked on 2 * lanes elements at a time. Floats are two neighbouring vectors; bf16 are the even
// and the odd elements: one shift and one mask widen them, and nothing crosses lanes.
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

#if KDA_ISA_IS_NEON() || KDA_ISA_IS_AVX2()
KDA_INLINE void load_pair(const bf16* p, pair& x, std::ptrdiff_t n) {
  bf16 part[2 * vec::lanes] = {};
  copy_first<2 * vec::lanes>(p, n, part);
  load_pair(part, x);
}
KDA_INLINE void store_pair(bf16* p, const pair& x, std::ptrdiff_t n) {
  bf16 part[2 * vec::lanes];
  store_pair(part, x);
  copy_first<2 * vec::lanes>(part, n, p);
}
#endif

// ---- lanes across vectors -------------------------------------------------------------------------------------------

#if !KDA_ISA_IS_SCALAR()
inline constexpr int quarters = static_cast<int>(vec::lanes) / 4;

// Lane i of each quarter: the sum of the quarter of x[i].
KDA_INLINE vec sum_quarters(const vec* x) {
  const vec ab = interleave_low(x[0], x[1]) + interleave_high(x[0], x[1]);
  const vec cd = interleave_low(x[2], x[3]) + interleave_high(x[2], x[3]);
  return low_pairs(ab, cd) + high_pairs(ab, cd);
}
// Lane i is the sum of the lanes of x[i], added in an order that does not depend on i.
KDA_INLINE vec sum_lanes(const vec (&x)[vec::lanes]) {
  vec quad[quarters];  // quarter q of quad[i]: the sums of the four lanes q of x[4 i] to x[4 i + 3]
  KDA_UNROLL
  for (int i = 0; i < quarters; ++i) quad[i] = sum_quarters(x + 4 * i);
  return merge_sums(quad);
}

// sum[i]: the lanes of x[i], added in an order that does not depend on i.
KDA_INLINE void sum_lanes(const vec (&x)[4], float (&sum)[4]) { store_sum_of_quarters(sum, sum_quarters(x)); }

// a[i], b[i], c[i], d[i] of each quarter as one quarter of the i-th result.
KDA_INLINE void transpose_within_quarters(vec& a, vec& b, vec& c, vec& d) {
  const vec ab_low = interleave_low(a, b), ab_high = interleave_high(a, b);
  const vec cd_low = interleave_low(c, d), cd_high = interleave_high(c, d);
  a = low_pairs(ab_low, cd_low);
  b = high_pairs(ab_low, cd_low);
  c = low_pairs(ab_high, cd_high);
  d = high_pairs(ab_high, cd_high);
}

// Lane j of x[i] and lane i of x[j] change places.
KDA_INLINE void transpose(vec (&x)[vec::lanes]) {
  KDA_UNROLL
  for (int i = 0; i < quarters; ++i) transpose_within_quarters(x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]);
  KDA_UNROLL
  for (int j = 0; j < 4; ++j) {
    vec part[quarters];
    KDA_UNROLL
    for (int i = 0; i < quarters; ++i) part[i] = x[4 * i + j];
    transpose_quarters(part);
    KDA_UNROLL
    for (int i = 0; i < quarters; ++i) x[4 * i + j] = part[i];
  }
}

// Lane l of y[j] is p[4 l + j]: rows of four numbers as four columns.
KDA_INLINE void load_columns(const float* p, vec (&y)[4]) {
  constexpr int steps = 4 / quarters;
  KDA_UNROLL
  for (int b = 0; b < steps; ++b) {
    vec part[quarters];
    KDA_UNROLL
    for (int q = 0; q < quarters; ++q) part[q] = load(p + (q * steps + b) * vec::lanes);
    transpose_quarters(part);
    KDA_UNROLL
    for (int q = 0; q < quarters; ++q) y[b * quarters + q] = part[q];  // quarter i of it: row 4 i + b * quarters + q
  }
  transpose_within_quarters(y[0], y[1], y[2], y[3]);
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
