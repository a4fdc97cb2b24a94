// SPDX-License-Identifier: Apache-2.0
// Short causal depthwise convolution with state.
//
//   y[t, c] = act(bias[c] + sum over j < W of weight[c, j] x[t - W + 1 + j, c])
//
// Shapes: x, y [T, C]; weight [C, W]; state: the last `columns` >= W - 1 raw inputs of each channel, oldest first.
// Plan: one vector of channels at a time, the W weights and the W - 1 inputs before the current token in registers, so
// that a token costs one load, W fused multiply-adds and one store. Terms are added from the oldest input to the
// newest.
#pragma once
#include "args.hpp"
#include "simd/math.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

/// One sequence's state of the channels [c, c + lanes): element (column, lane) at data[column * column_stride + lane *
/// channel_stride].
template <class T> struct conv_window {
  T* data;
  std::ptrdiff_t columns, column_stride, channel_stride;

  // Column `column` of n channels.
  [[nodiscard]] KDA_INLINE vec read(std::ptrdiff_t column, std::ptrdiff_t n) const {
    const T* p = data + column * column_stride;
    if (channel_stride == 1) return n == vec::lanes ? load(p) : load(p, n);
    std::remove_const_t<T> part[vec::lanes] = {};
    for (std::ptrdiff_t i = 0; i < n; ++i) part[i] = p[i * channel_stride];
    return load(part);
  }
};

/// Convolution of tokens [0, tokens) and channels [0, n), n <= lanes, of one sequence. `from` is null for a fresh
/// sequence. x and y point at the first token's first channel, weight at its first channel's oldest tap.
template <int W, activation Activation, class T>
KDA_INLINE void conv_channels(const T* x, std::ptrdiff_t x_stride, const float* weight, std::ptrdiff_t weight_stride,
                              std::ptrdiff_t tap_stride, const float* bias, T* y, std::ptrdiff_t y_stride,
                              std::ptrdiff_t tokens, std::ptrdiff_t n, const conv_window<const T>& from) {
  const bool whole = n == vec::lanes;
  vec w[static_cast<std::size_t>(W)], window[static_cast<std::size_t>(W)];
  for (int j = 0; j < W; ++j) {
    float tap[vec::lanes] = {};
    for (std::ptrdiff_t i = 0; i < n; ++i) tap[i] = weight[i * weight_stride + j * tap_stride];
    w[j] = load(tap);
  }
  for (int j = 0; j + 1 < W; ++j)
    window[j] = from.data != nullptr ? from.read(from.columns - (W - 1) + j, n) : broadcast(0.f);
  const vec start = bias == nullptr ? broadcast(0.f) : whole ? load(bias) : load(bias, n);
  for (std::ptrdiff_t t = 0; t < tokens; ++t) {
    window[W - 1] = whole ? load(x + t * x_stride) : load(x + t * x_stride, n);
    vec sum = start;
    KDA_UNROLL
    for (int j = 0; j < W; ++j) sum = fma(w[j], window[j], sum);
    const vec result = Activation == activation::silu ? silu(sum) : sum;
    whole ? store(y + t * y_stride, result) : store(y + t * y_stride, result, n);
    KDA_UNROLL
    for (int j = 0; j + 1 < W; ++j) window[j] = window[j + 1];
  }
}

/// The state after `tokens` more inputs: its last columns of [state before | x], bits as they are. `from` may be `to`
/// (columns are moved from the oldest on) and is null for a fresh sequence, whose past is zeros.
template <class T>
KDA_INLINE void conv_advance(const T* x, std::ptrdiff_t x_stride, std::ptrdiff_t tokens, std::ptrdiff_t n,
                             const conv_window<const T>& from, const conv_window<T>& to) {
  for (std::ptrdiff_t column = 0; column < to.columns; ++column) {
    const std::ptrdiff_t source = column + tokens;  // index into [state before | x]
    T* p = to.data + column * to.column_stride;
    for (std::ptrdiff_t i = 0; i < n; ++i) {
      T value{};
      if (source >= to.columns)
        value = x[(source - to.columns) * x_stride + i];
      else if (from.data != nullptr)
        value = from.data[source * from.column_stride + i * from.channel_stride];
      p[i * to.channel_stride] = value;
    }
  }
}

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
