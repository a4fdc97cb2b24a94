// SPDX-License-Identifier: Apache-2.0
// The vector functions of simd/vec.hpp and simd/math.hpp over arrays: one table per ISA, compiled from
// tests/math_kernels.cpp. Included by code of every ISA, hence declarations only.
#pragma once
#include <kda/bf16.hpp>
#include <kda/dispatch.hpp>

#include <cstddef>

namespace testing {

/// Every function runs in the kernels' floating-point environment. n is a multiple of `lanes`, `count` at most `lanes`.
struct math_table {
  using unary = void (*)(const float* x, float* y, std::ptrdiff_t n);
  using ternary = void (*)(const float* a, const float* b, const float* c, float* y, std::ptrdiff_t n);

  std::ptrdiff_t lanes;
  bool fused;  // fma rounds once
  unary exp, exp_nonpositive, expm1_nonpositive, sigmoid, log1p_ratio, silu, sqrt, rounded_to_bf16;
  ternary fma, fnma;
  ternary clamp;                                                      // a within [*b, *c]
  float (*reduce_add)(const float* x);                                // x[lanes]
  void (*sum_lanes)(const float* x, float* y);                        // x[lanes * lanes], y[lanes]
  void (*transpose)(const float* x, float* y);                        // both [lanes * lanes]
  void (*load)(const float* from, std::ptrdiff_t count, float* to);   // to[lanes]
  void (*store)(const float* from, float* to, std::ptrdiff_t count);  // from[lanes]
  void (*load_bf16)(const kda::bf16* from, std::ptrdiff_t count, float* to);
  void (*store_bf16)(const float* from, kda::bf16* to, std::ptrdiff_t count);
  void (*widen)(const kda::bf16* from, float* to, std::ptrdiff_t n);
  void (*narrow)(const float* from, kda::bf16* to, std::ptrdiff_t n);
};

}  // namespace testing

extern "C" const kda::built_kernels math_kernels_built[];
