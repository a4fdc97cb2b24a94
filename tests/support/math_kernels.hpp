// SPDX-License-Identifier: Apache-2.0
// The vector functions of simd/vec.hpp and simd/math.hpp over arrays: one table per ISA, compiled from
// tests/math_kernels.cpp. Included by code of every ISA, hence declarations only.
#pragma once
#include <kda/bf16.hpp>
#include <kda/dispatch.hpp>
#include <kda/f16.hpp>

#include <cstddef>

namespace testing {

/// Vectors in memory as numbers of 16 bits: bf16 or f16.
template <class T> struct word_table {
  void (*load)(const T* from, std::ptrdiff_t count, float* to);
  void (*store)(const float* from, T* to, std::ptrdiff_t count);
  void (*widen)(const T* from, float* to, std::ptrdiff_t n);
  void (*narrow)(const float* from, T* to, std::ptrdiff_t n);
  void (*rounded)(const float* x, float* y, std::ptrdiff_t n);
};

/// Every function runs in the kernels' floating-point environment. n is a multiple of `lanes`, `count` at most `lanes`.
struct math_table {
  using unary = void (*)(const float* x, float* y, std::ptrdiff_t n);
  using ternary = void (*)(const float* a, const float* b, const float* c, float* y, std::ptrdiff_t n);

  std::ptrdiff_t lanes;
  bool fused;  // fma rounds once
  unary exp, exp_nonpositive, expm1_nonpositive, sigmoid, log1p_ratio, silu, sqrt;
  ternary fma, fnma;
  ternary clamp;                                                      // a within [*b, *c]
  float (*reduce_add)(const float* x);                                // x[lanes]
  void (*sum_lanes)(const float* x, float* y);                        // x[lanes * lanes], y[lanes]
  void (*transpose)(const float* x, float* y);                        // both [lanes * lanes]
  void (*load)(const float* from, std::ptrdiff_t count, float* to);   // to[lanes]
  void (*store)(const float* from, float* to, std::ptrdiff_t count);  // from[lanes]
  word_table<kda::bf16> bf16;
  word_table<kda::f16> f16;
};

}  // namespace testing

extern "C" const kda::built_kernels math_kernels_built[];
