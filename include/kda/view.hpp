// SPDX-License-Identifier: Apache-2.0
// Strided views: how an engine's tensors reach a kernel without a copy.
#pragma once
#include "config.hpp"

#include <cstddef>
#include <type_traits>

namespace kda::inline v0 {

/// `Rank`-dimensional view of elements that somebody else owns. Extents and strides are counted in elements; a stride
/// may be larger than what lies inside it, so a column block of a wider matrix is a view like any other:
///
///     auto projection = kda::packed(data, tokens, width);
///     auto q = projection.heads(0, heads, 128), k = projection.heads(heads * 128, heads, 128);
template <class T, std::size_t Rank> struct view {
  T* data = nullptr;
  std::ptrdiff_t shape[Rank] = {};
  std::ptrdiff_t stride[Rank] = {};

  /// Pointer to element (i...); indices that are left out are 0.
  template <class... Index> [[nodiscard]] KDA_INLINE constexpr T* at(Index... i) const {
    static_assert(sizeof...(Index) <= Rank, "kda::view::at: more indices than dimensions");
    const std::ptrdiff_t index[] = {static_cast<std::ptrdiff_t>(i)..., 0};
    std::ptrdiff_t offset = 0;
    for (std::size_t n = 0; n < sizeof...(Index); ++n) offset += index[n] * stride[n];
    return data + offset;
  }

  /// The same view with another distance, in elements, between neighbours of the first dimension (tokens).
  [[nodiscard]] KDA_INLINE constexpr view token_stride(std::ptrdiff_t elements) const {
    view v = *this;
    v.stride[0] = elements;
    return v;
  }

  /// Elements [first, first + n) of dimension `Dimension`: `v.part<1>(a, n)` is heads a to a + n - 1 of [T, H, K].
  template <std::size_t Dimension>
  [[nodiscard]] KDA_INLINE constexpr view part(std::ptrdiff_t first, std::ptrdiff_t n) const {
    static_assert(Dimension < Rank, "kda::view::part: there is no such dimension");
    view v = *this;
    v.data = offset(first * stride[Dimension]);
    v.shape[Dimension] = n;
    return v;
  }

  /// Columns [first, first + heads * channels) of a matrix [T, width] as [T, heads, channels]: one tensor of a wide
  /// projection.
  [[nodiscard]] KDA_INLINE constexpr view<T, 3> heads(std::ptrdiff_t first, std::ptrdiff_t heads,
                                                      std::ptrdiff_t channels) const requires(Rank == 2) {
    return {.data = offset(first * stride[1]),
            .shape = {shape[0], heads, channels},
            .stride = {stride[0], channels * stride[1], stride[1]}};
  }

  /// Address of the element `elements` further on; null stays null.
  [[nodiscard]] KDA_INLINE constexpr T* offset(std::ptrdiff_t elements) const {
    return data == nullptr ? nullptr : data + elements;
  }

  /// A view to write through is a view to read through.
  KDA_INLINE constexpr operator view<const T, Rank>() const requires(!std::is_const_v<T>) {
    view<const T, Rank> v{.data = data};
    for (std::size_t i = 0; i < Rank; ++i) v.shape[i] = shape[i], v.stride[i] = stride[i];
    return v;
  }
};

/// Row-major view without gaps of the elements at `data`: `packed(q, T, H, K)` is [T, H, K].
template <class T, class... Extent>
[[nodiscard]] KDA_INLINE constexpr view<T, sizeof...(Extent)> packed(T* data, Extent... extent) {
  view<T, sizeof...(Extent)> v{.data = data, .shape = {static_cast<std::ptrdiff_t>(extent)...}};
  std::ptrdiff_t stride = 1;
  for (std::size_t i = sizeof...(Extent); i-- > 0;) {
    v.stride[i] = stride;
    if (i > 0) stride *= v.shape[i];
  }
  return v;
}

}  // namespace kda::inline v0
