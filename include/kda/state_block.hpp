// SPDX-License-Identifier: Apache-2.0
// Where a task's part of a recurrent state lies, and its ways to and from the fp32 state of prefill.
#pragma once
#include "batch.hpp"
#include "simd/matrix.hpp"
#include "spec.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

/// A head's state in a slot, cut to the task's columns: [K, columns] with rows V apart, or [columns, K] with rows K
/// apart.
template <class T, layout Layout> struct state_block {
  T* data;
  std::ptrdiff_t key_dim, columns, stride;

  KDA_INLINE state_block(const state_pool<T>& pool, std::int64_t slot, std::ptrdiff_t head, std::ptrdiff_t K,
                         std::ptrdiff_t HV, std::ptrdiff_t V, std::ptrdiff_t first_column, std::ptrdiff_t columns_)
      : data(pool.data + static_cast<std::ptrdiff_t>(slot) * (pool.slot_stride == 0 ? HV * K * V : pool.slot_stride) +
             head * K * V + (Layout == layout::key_major ? first_column : first_column * K)),
        key_dim(K),
        columns(columns_),
        stride(Layout == layout::key_major ? V : K) {}
  /// In memory of its own, without gaps.
  KDA_INLINE state_block(T* data_, std::ptrdiff_t K, std::ptrdiff_t columns_)
      : data(data_), key_dim(K), columns(columns_), stride(Layout == layout::key_major ? columns_ : K) {}

  [[nodiscard]] KDA_INLINE std::ptrdiff_t rows() const { return Layout == layout::key_major ? key_dim : columns; }
  [[nodiscard]] KDA_INLINE std::ptrdiff_t row_size() const { return Layout == layout::key_major ? columns : key_dim; }

  KDA_NOINLINE void clear() const {
    for (std::ptrdiff_t r = 0; r < rows(); ++r)
      for (std::ptrdiff_t c = 0; c < row_size(); ++c) data[r * stride + c] = T{};
  }
  KDA_NOINLINE void copy(const state_block& from) const {
    for (std::ptrdiff_t r = 0; r < rows(); ++r)
      for (std::ptrdiff_t c = 0; c < row_size(); ++c) data[r * stride + c] = from.data[r * stride + c];
  }
  /// To and from fp32 [K, width] in panels (in_panels of simd/matrix.hpp), width >= columns a multiple of 16; columns
  /// past the block are set to zero.
  KDA_NOINLINE void load_to(float* s, std::ptrdiff_t width) const {
    in_panels(width, [&]<int Vectors>(std::ptrdiff_t column) KDA_INLINE_LAMBDA {
      float* panel = s + key_dim * column;
      if constexpr (Layout == layout::key_major) {
        for (std::ptrdiff_t d = 0; d < key_dim; ++d) {
          KDA_UNROLL
          for (int c = 0; c < Vectors; ++c)
            store(panel + (d * Vectors + c) * vec::lanes,
                  load_present(data + d * stride + column + c * vec::lanes, columns - column - c * vec::lanes));
        }
      } else {
        for (int c = 0; c < Vectors; ++c) load_columns<Vectors>(column + c * vec::lanes, panel + c * vec::lanes);
      }
    });
  }
  KDA_NOINLINE void store_from(const float* s, std::ptrdiff_t width) const {
    in_panels(width, [&]<int Vectors>(std::ptrdiff_t column) KDA_INLINE_LAMBDA {
      const float* panel = s + key_dim * column;
      if constexpr (Layout == layout::key_major) {
        for (std::ptrdiff_t d = 0; d < key_dim; ++d) {
          KDA_UNROLL
          for (int c = 0; c < Vectors; ++c)
            store_present(data + d * stride + column + c * vec::lanes, load(panel + (d * Vectors + c) * vec::lanes),
                          columns - column - c * vec::lanes);
        }
      } else {
        for (int c = 0; c < Vectors; ++c) store_columns<Vectors>(column + c * vec::lanes, panel + c * vec::lanes);
      }
    });
  }

 private:
  // The first n of a vector's numbers; n may be more than the lanes, or nothing.
  KDA_INLINE static vec load_present(const T* from, std::ptrdiff_t n) {
    return n >= vec::lanes ? load(from) : n > 0 ? load(from, n) : broadcast(0.f);
  }
  KDA_INLINE static void store_present(T* to, vec x, std::ptrdiff_t n) {
    if (n >= vec::lanes)
      store(to, x);
    else if (n > 0)
      store(to, x, n);
  }
  // Columns [j, j + lanes) of a value-major state, from and to a panel's rows of Vectors vectors.
  template <int Vectors> KDA_INLINE void load_columns(std::ptrdiff_t j, float* s) const {
    for (std::ptrdiff_t d = 0; d < key_dim; d += vec::lanes) {
      vec x[vec::lanes];
      KDA_UNROLL
      for (std::ptrdiff_t l = 0; l < vec::lanes; ++l)
        x[l] = load_present(data + (j + l) * stride + d, j + l < columns ? key_dim - d : 0);
      transpose(x);
      KDA_UNROLL
      for (std::ptrdiff_t l = 0; l < vec::lanes; ++l)
        if (d + l < key_dim) store(s + (d + l) * Vectors * vec::lanes, x[l]);
    }
  }
  template <int Vectors> KDA_INLINE void store_columns(std::ptrdiff_t j, const float* s) const {
    for (std::ptrdiff_t d = 0; d < key_dim; d += vec::lanes) {
      vec x[vec::lanes];
      KDA_UNROLL
      for (std::ptrdiff_t l = 0; l < vec::lanes; ++l)
        x[l] = d + l < key_dim ? load(s + (d + l) * Vectors * vec::lanes) : broadcast(0.f);
      transpose(x);
      KDA_UNROLL
      for (std::ptrdiff_t l = 0; l < vec::lanes; ++l)
        store_present(data + (j + l) * stride + d, x[l], j + l < columns ? key_dim - d : 0);
    }
  }
};

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
