// SPDX-License-Identifier: Apache-2.0
// Register-blocked products, the only loops that a core spends its time in.
//
// Plan: `rows` x `vectors` accumulators stay in registers; a step loads `vectors` vectors of b, broadcasts `rows`
// numbers of a and does rows * vectors fused multiply-adds. AVX2: 6 x 2 = 12 accumulators, 2 of b, 1 of a, of 16
// registers. NEON: 5 x 4 = 20, 4 and 5 of 32, since it multiplies by a lane of a register and needs no broadcast (6 x 4
// spills). AVX-512: 8 x 2 = 16, 2 and 1 of 32 (12 x 2 is 6 % slower in the product, 11 x 2 9 % in the update of the
// state). b lies in panels of `vectors` vectors, so a step reads neighbouring lines. 95 to 97 % of the peak for 32 x 128
// against a panel of 128 rows. An element's sum runs over k upwards whatever the blocking, so blocking, tails and the
// split of columns never change a bit.
//
// With bf16_pair for float, a step takes two terms of each sum: the same text, and the same registers.
#pragma once
#include "vec.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

#if defined(KDA_FORCE_1X1_BLOCKING)
inline constexpr int block_rows = 1, block_vectors = 1;
#elif KDA_ISA_IS_AVX512()
inline constexpr int block_rows = 8, block_vectors = 2;
#elif KDA_ISA_IS_AVX2()
inline constexpr int block_rows = 6, block_vectors = 2;
#elif KDA_ISA_IS_NEON()
inline constexpr int block_rows = 5, block_vectors = 4;
#else
inline constexpr int block_rows = 4, block_vectors = 2;
#endif

template <int N> using vectors = vec[static_cast<std::size_t>(N)];
template <int Rows, int Vectors>
using accumulators = vec[static_cast<std::size_t>(Rows)][static_cast<std::size_t>(Vectors)];

// acc[i][j] += sum over k < n of a(i, k) b(k, j), where a(i, k) = a[i * row + k * step] and b(k, j) is vector j of row k
// of the panel b, whose rows of Vectors vectors lie side by side.
template <int Rows, int Vectors, class T>
KDA_INLINE void multiply_add(const T* a, std::ptrdiff_t row, std::ptrdiff_t step, const T* b, std::ptrdiff_t n,
                             accumulators<Rows, Vectors>& acc) {
  KDA_NO_UNROLL
  for (std::ptrdiff_t k = 0; k < n; ++k) {
    decltype(load(b)) x[static_cast<std::size_t>(Vectors)];
    KDA_UNROLL
    for (int j = 0; j < Vectors; ++j) x[j] = load(b + (k * Vectors + j) * vec::lanes);
    KDA_UNROLL
    for (int i = 0; i < Rows; ++i) {
      const auto y = broadcast(a[i * row + k * step]);
      KDA_UNROLL
      for (int j = 0; j < Vectors; ++j) acc[i][j] = fma(y, x[j], acc[i][j]);
    }
  }
}

// Covers [0, n) with steps of Size, then Size / 2, ... 1: f.template operator()<size>(first).
template <int Size, class F> KDA_INLINE void in_blocks(std::ptrdiff_t first, std::ptrdiff_t n, F f) {
  for (; first + Size <= n; first += Size) f.template operator()<Size>(first);
  if constexpr (Size > 1) in_blocks<Size / 2>(first, n, f);
}

// Covers [0, n) with steps of block_rows and block_rows - 1 where such a sum exists, so that no step is short: 32 = 6 +
// 6 + 5 + 5 + 5 + 5 does 98 % of the peak on AVX2, where 5 * 6 + 2 does 93 %.
template <class F> KDA_INLINE void in_row_blocks(std::ptrdiff_t n, F f) {
  if constexpr (block_rows > 2) {
    const std::ptrdiff_t blocks = (n + block_rows - 1) / block_rows, short_blocks = blocks * block_rows - n;
    if (short_blocks <= blocks) {
      const std::ptrdiff_t whole = (blocks - short_blocks) * block_rows;
      KDA_NO_UNROLL
      for (std::ptrdiff_t i = 0; i < whole; i += block_rows) f.template operator()<block_rows>(i);
      KDA_NO_UNROLL
      for (std::ptrdiff_t i = whole; i < n; i += block_rows - 1) f.template operator()<block_rows - 1>(i);
      return;
    }
  }
  in_blocks<block_rows>(0, n, f);
}

// A matrix [rows, columns] in panels, columns a multiple of 16: panels of block_vectors vectors, then narrower ones where
// such a panel has more than 16 columns, each with its rows side by side. f.template operator()<Vectors>(column): the
// panel begins at rows * column.
template <class F> KDA_INLINE void in_panels(std::ptrdiff_t columns, F f) {
  constexpr std::ptrdiff_t panel = block_vectors * vec::lanes;
  if constexpr (16 % panel == 0) {
    for (std::ptrdiff_t column = 0; column < columns; column += panel) f.template operator()<block_vectors>(column);
  } else {
    in_blocks<block_vectors>(0, columns / vec::lanes, [&]<int Vectors>(std::ptrdiff_t v) KDA_INLINE_LAMBDA {
      f.template operator()<Vectors>(v * vec::lanes);
    });
  }
}

// The dot products of rows l of a and r of b over n channels (a multiple of the lanes), left as vectors of partial sums:
// sums[(l * columns + r) * lanes].
template <int Rows, int Columns>
KDA_INLINE void partial_dots(const float* a, std::ptrdiff_t a_stride, const float* b, std::ptrdiff_t b_stride,
                             std::ptrdiff_t n, float* sums, std::ptrdiff_t columns) {
  accumulators<Rows, Columns> acc;
  KDA_UNROLL
  for (int i = 0; i < Rows; ++i) {
    KDA_UNROLL
    for (int j = 0; j < Columns; ++j) acc[i][j] = broadcast(0.f);
  }
  KDA_NO_UNROLL
  for (std::ptrdiff_t d = 0; d < n; d += vec::lanes) {
    vectors<Columns> y;
    KDA_UNROLL
    for (int j = 0; j < Columns; ++j) y[j] = load(b + j * b_stride + d);
    KDA_UNROLL
    for (int i = 0; i < Rows; ++i) {
      const vec x = load(a + i * a_stride + d);
      KDA_UNROLL
      for (int j = 0; j < Columns; ++j) acc[i][j] = fma(x, y[j], acc[i][j]);
    }
  }
  KDA_UNROLL
  for (int i = 0; i < Rows; ++i) {
    KDA_UNROLL
    for (int j = 0; j < Columns; ++j) store(sums + (i * columns + j) * vec::lanes, acc[i][j]);
  }
}

// y[i] = sum of the lanes of vector i, i < n (a multiple of 16).
KDA_INLINE void reduce_lanes(const float* sums, std::ptrdiff_t n, float* y) {
  for (std::ptrdiff_t i = 0; i < n; i += vec::lanes) {
    vec x[vec::lanes];
    KDA_UNROLL
    for (std::ptrdiff_t l = 0; l < vec::lanes; ++l) x[l] = load(sums + (i + l) * vec::lanes);
    store(y + i, sum_lanes(x));
  }
}

// Sum over d < n (a multiple of 16) of a[d] b[d], as two sums (four for one lane): shorter chains, and smaller errors.
KDA_INLINE float dot(const float* a, const float* b, std::ptrdiff_t n) {
  constexpr int sums = vec::lanes == 1 ? 4 : vec::lanes < 16 ? 2 : 1;
  vectors<sums> sum;
  KDA_UNROLL
  for (int i = 0; i < sums; ++i) sum[i] = broadcast(0.f);
  for (std::ptrdiff_t d = 0; d < n; d += sums * vec::lanes) {
    KDA_UNROLL
    for (int i = 0; i < sums; ++i) sum[i] = fma(load(a + d + i * vec::lanes), load(b + d + i * vec::lanes), sum[i]);
  }
  if constexpr (sums == 4)
    return reduce_add((sum[0] + sum[1]) + (sum[2] + sum[3]));
  else if constexpr (sums == 2)
    return reduce_add(sum[0] + sum[1]);
  else
    return reduce_add(sum[0]);
}

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
