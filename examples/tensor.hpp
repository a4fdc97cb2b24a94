// SPDX-License-Identifier: Apache-2.0
// Memory for the examples' tensors: a matrix that owns its elements, and the views of it that kda takes.
#pragma once
#include <kda/bf16.hpp>
#include <kda/view.hpp>

#include <cstddef>
#include <vector>

namespace engine {

using index = std::ptrdiff_t;

/// Row-major [rows, columns]; a row is a token, or an output of a weight.
template <class T> struct matrix {
  index rows = 0, columns = 0;
  std::vector<T> data;

  matrix() = default;
  matrix(index rows_, index columns_)
      : rows(rows_), columns(columns_), data(static_cast<std::size_t>(rows_ * columns_)) {}

  [[nodiscard]] T* at(index row, index column = 0) { return data.data() + row * columns + column; }
  [[nodiscard]] const T* at(index row, index column = 0) const { return data.data() + row * columns + column; }

  /// Rows [row, row + n), columns [column, column + width).
  [[nodiscard]] kda::view<T, 2> block(index row, index n, index column, index width) {
    return kda::packed(at(row, column), n, width).token_stride(columns);
  }
};

template <class T> [[nodiscard]] kda::view<const T, 1> all(const std::vector<T>& x) {
  return kda::packed(x.data(), std::ssize(x));
}

}
