// SPDX-License-Identifier: Apache-2.0
// Where a task's part of a recurrent state lies, and its ways to and from the fp32 state of prefill.
#pragma once
#include "batch.hpp"
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
  /// To and from fp32 [K, width], width >= columns; columns past the block are set to zero.
  KDA_NOINLINE void load_to(float* s, std::ptrdiff_t width) const {
    for (std::ptrdiff_t d = 0; d < key_dim; ++d)
      for (std::ptrdiff_t j = columns; j < width; ++j) s[d * width + j] = 0.f;
    for (std::ptrdiff_t r = 0; r < rows(); ++r)
      for (std::ptrdiff_t c = 0; c < row_size(); ++c) {
        const std::ptrdiff_t d = Layout == layout::key_major ? r : c, j = Layout == layout::key_major ? c : r;
        s[d * width + j] = to_float(data[r * stride + c]);
      }
  }
  KDA_NOINLINE void store_from(const float* s, std::ptrdiff_t width) const {
    for (std::ptrdiff_t r = 0; r < rows(); ++r)
      for (std::ptrdiff_t c = 0; c < row_size(); ++c) {
        const std::ptrdiff_t d = Layout == layout::key_major ? r : c, j = Layout == layout::key_major ? c : r;
        data[r * stride + c] = round_to<T>(s[d * width + j]);
      }
  }
};

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
