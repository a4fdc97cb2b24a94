// SPDX-License-Identifier: Apache-2.0
// The projections around the kernels: y = x weight^T. An engine has its own; this one is baseline code and 60 lines.
//
// A task has 32 outputs. It widens 32 x 1024 weights to float at a time, 128 KiB for the L2 cache, and meets them with
// 64 tokens in tiles of 4 tokens x 2 outputs: 8 sums of 4 lanes and 6 operands fit the 16 registers of SSE2.
#pragma once
#include "tensor.hpp"
#include "thread_pool.hpp"

#include <algorithm>
#include <cstring>

namespace engine {

namespace tiles {

typedef float lanes __attribute__((vector_size(16)));
constexpr index outputs = 32, depth = 1024, tokens = 64;

inline lanes load(const float* x) {
  lanes y;
  std::memcpy(&y, x, sizeof y);
  return y;
}

/// sums[t, r] += x[t] . weight[r] for t < Tokens and r < 2, over n channels, a multiple of 4.
template <std::size_t Tokens> void tile(const float* x, index x_stride, const float* weight, index n, float* sums) {
  lanes sum[Tokens][2] = {};
  for (index i = 0; i < n; i += 4) {
    const lanes w[] = {load(weight + i), load(weight + depth + i)};
    for (std::size_t t = 0; t < Tokens; ++t) {
      const lanes x_t = load(x + static_cast<index>(t) * x_stride + i);
      for (std::size_t r = 0; r < 2; ++r) sum[t][r] += x_t * w[r];
    }
  }
  for (std::size_t t = 0; t < Tokens; ++t)
    for (std::size_t r = 0; r < 2; ++r)
      sums[t * outputs + r] += (sum[t][r][0] + sum[t][r][1]) + (sum[t][r][2] + sum[t][r][3]);
}

/// to[i] = from[i] for i < n, then zeros up to a multiple of 4.
template <class T> void widen(const T* from, index n, float* to) {
  for (index i = 0; i < n; ++i) to[i] = kda::to_float(from[i]);
  for (index i = n; i % 4 != 0; ++i) to[i] = 0;
}

}

/// y = x weight^T, summed in fp32 and rounded once. x [T, in] and y [T, out], any token stride; weight [out, in].
template <class T> void linear(thread_pool& pool, kda::view<const T, 2> x, const matrix<T>& weight, kda::view<T, 2> y) {
  const index T_count = x.shape[0], in = weight.columns, stride = (in + 3) / 4 * 4;
  matrix<float> wide(T_count, stride);
  pool.for_each(T_count, [&](index t) { tiles::widen(x.at(t), in, wide.at(t)); });

  pool.for_each((weight.rows + tiles::outputs - 1) / tiles::outputs, [&](index task) {
    const index row = task * tiles::outputs, rows = std::min(tiles::outputs, weight.rows - row);
    float w[tiles::outputs * tiles::depth] = {};
    for (index first = 0; first < T_count; first += tiles::tokens) {
      const index count = std::min(tiles::tokens, T_count - first);
      float sums[tiles::tokens * tiles::outputs] = {};
      for (index channel = 0; channel < in; channel += tiles::depth) {
        const index n = std::min(tiles::depth, stride - channel);
        for (index r = 0; r < rows; ++r)
          tiles::widen(weight.at(row + r, channel), std::min(n, in - channel), w + r * tiles::depth);
        for (index t = 0; t < count;) {
          const index left = count - t;
          const float* x_t = wide.at(first + t, channel);
          for (index r = 0; r < rows; r += 2) {
            float* s = sums + t * tiles::outputs + r;
            const float* w_r = w + r * tiles::depth;
            left >= 4 ? tiles::tile<4>(x_t, stride, w_r, n, s) : tiles::tile<1>(x_t, stride, w_r, n, s);
          }
          t += left >= 4 ? 4 : 1;
        }
      }
      for (index t = 0; t < count; ++t)
        for (index r = 0; r < rows; ++r) *y.at(first + t, row + r) = kda::round_to<T>(sums[t * tiles::outputs + r]);
    }
  });
}

}
