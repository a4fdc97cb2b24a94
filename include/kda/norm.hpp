// SPDX-License-Identifier: Apache-2.0
// Norms of a row: l2 norm of q and k, gated RMS norm of the output.
//
//   l2norm   y = scale x / sqrt(sum x^2 + eps)
//   norm     before_cast:  y = round(x r w act(gate)),   after_cast:  y = round(round(w round(x r)) act(gate))
//            with r = 1 / sqrt(mean x^2 + eps), rounding to the output type, weight w per channel
//
// Sums of squares are kept per lane and added once at the end of the row.
#pragma once
#include "args.hpp"
#include "simd/math.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

template <class T> KDA_INLINE float sum_of_squares(const T* x, std::ptrdiff_t n) {
  vec sum = broadcast(0.f);
  std::ptrdiff_t d = 0;
  for (; d + vec::lanes <= n; d += vec::lanes) {
    const vec a = load(x + d);
    sum = fma(a, a, sum);
  }
  if (d < n) {
    const vec a = load(x + d, n - d);
    sum = fma(a, a, sum);
  }
  return reduce_add(sum);
}

/// y[d] = factor x[d] over d < K, and zeros up to `padded`, a multiple of the lanes.
template <class T>
KDA_INLINE void scale_row(const T* x, std::ptrdiff_t K, vec factor, float* y, std::ptrdiff_t padded) {
  for (std::ptrdiff_t d = 0; d < padded; d += vec::lanes)
    store(y + d, factor * (d + vec::lanes <= K ? load(x + d) : load(x + d, K - d)));
}

/// The first n numbers of a row of whole vectors, rounded to T.
template <class T> KDA_INLINE void store_row(T* to, const float* row, std::ptrdiff_t n) {
  std::ptrdiff_t d = 0;
  for (; d + vec::lanes <= n; d += vec::lanes) store(to + d, load(row + d));
  if (d < n) store(to + d, load(row + d), n - d);
}

KDA_INLINE vec l2norm_factor(vec sum, float eps, float scale) { return broadcast(scale) / sqrt(sum + broadcast(eps)); }

/// y[d] = scale x[d] / sqrt(sum x^2 + eps) over d < K, and zeros up to `padded`.
template <class T>
KDA_INLINE void l2norm_row(const T* x, std::ptrdiff_t K, float eps, float scale, float* y, std::ptrdiff_t padded) {
  scale_row(x, K, l2norm_factor(broadcast(sum_of_squares(x, K)), eps, scale), y, padded);
}

template <activation Activation, weight Order, class T> KDA_INLINE vec gated(vec x, vec r, vec w, vec gate) {
  const vec opening = Activation == activation::sigmoid ? sigmoid(gate) : silu(gate);
  if constexpr (Order == weight::before_cast)
    return w * (x * r) * opening;
  else
    return rounded<T>(w * rounded<T>(x * r)) * opening;
}

/// One row of the gated norm: x, gate, y [V].
template <activation Activation, weight Order, class X, class T>
KDA_INLINE void norm_row(const X* x, const T* gate, const float* w, float eps, std::ptrdiff_t V, T* y) {
  const vec mean = broadcast(sum_of_squares(x, V)) / broadcast(static_cast<float>(V));
  const vec r = broadcast(1.f) / sqrt(mean + broadcast(eps));
  std::ptrdiff_t d = 0;
  for (; d + vec::lanes <= V; d += vec::lanes)
    store(y + d, gated<Activation, Order, T>(load(x + d), r, load(w + d), load(gate + d)));
  if (d < V) {
    const std::ptrdiff_t n = V - d;
    store(y + d, gated<Activation, Order, T>(load(x + d, n), r, load(w + d, n), load(gate + d, n)), n);
  }
}

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
