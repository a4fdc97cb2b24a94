// SPDX-License-Identifier: Apache-2.0
// One vector of floats of the ISA this file is compiled for: what kernels are written over. scalar.hpp, neon.hpp, avx2.hpp
// and avx512.hpp hold what each ISA spells in its own way; what follows from that stands here, once.
//
// Every operation rounds once and as written. Kernels write fma(a, b, c) where a product meets a sum and never `a * b +
// c`, which a compiler may or may not contract: results then do not depend on register blocking or compiler.
//
// An ISA's file defines vec, mask and, for floats, bf16 and f16 alike, load() and store() of a vector or of the first n
// of its elements (zeros for the rest); broadcast, fma(a, b, c) = a b + c, fnma(a, b, c) = c - a b, operator/, sqrt,
// max, min (the operand that stands second survives a NaN in either), less, select, reduce_add;
//   add_where(m, a, b)  a + b where m is set, a elsewhere
//   shift_left_23(a)    the bits of a, 23 further left
//   flushed(a)          denormals to zero, where the processor cannot be relied upon for it
//   pinned(a)           a loaded vector that several instructions use, kept in a register: gcc folds the load into each
//                       of them otherwise, and loads, of which a core does two or three a cycle, become the limit
// and, of pairs (below), those of bf16:
//   load_pair, store_pair      rounded to nearest, ties to even, as to_bf16() has it, but for a NaN whose lower half is
//                              not zero, which may become anything
//   canonical_nan(x)           a NaN becomes one whose lower half is zero, and so does every NaN that arithmetic makes of
//                              it: store_pair() keeps it
//   to_even_odd, from_even_odd two neighbouring vectors to (even, odd), and back
#pragma once
#include "avx2.hpp"
#include "avx512.hpp"
#include "neon.hpp"
#include "scalar.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

KDA_INLINE vec operator+(vec a, vec b) { return {a.x + b.x}; }
KDA_INLINE vec operator-(vec a, vec b) { return {a.x - b.x}; }
KDA_INLINE vec operator*(vec a, vec b) { return {a.x * b.x}; }  // only where no sum takes the product: see the top

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
#elif KDA_ISA_IS_AVX2()
  return low_halves(quad[0], quad[1]) + high_halves(quad[0], quad[1]);
#else
  return quad[0];
#endif
}

// sum[i]: the lanes of x[i], added in an order that does not depend on i.
KDA_INLINE void sum_lanes(const vec (&x)[4], float (&sum)[4]) { store_sum_of_quarters(sum, sum_quarters(x)); }

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
#elif KDA_ISA_IS_AVX2()
    x[j] = low_halves(y[j], y[4 + j]);
    x[4 + j] = high_halves(y[j], y[4 + j]);
#else
    x[j] = y[j];
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
#elif KDA_ISA_IS_AVX2()
  row[0] = low_halves(x[0], x[2]);
  row[1] = high_halves(x[0], x[2]);
  row[2] = low_halves(x[1], x[3]);
  row[3] = high_halves(x[1], x[3]);
#else
  KDA_UNROLL
  for (int i = 0; i < 4; ++i) row[i] = x[i];
#endif
  const vec ab_low = interleave_low(row[0], row[1]), ab_high = interleave_high(row[0], row[1]);
  const vec cd_low = interleave_low(row[2], row[3]), cd_high = interleave_high(row[2], row[3]);
  y[0] = low_pairs(ab_low, cd_low);
  y[1] = high_pairs(ab_low, cd_low);
  y[2] = low_pairs(ab_high, cd_high);
  y[3] = high_pairs(ab_high, cd_high);
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
