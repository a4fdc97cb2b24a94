// SPDX-License-Identifier: Apache-2.0
// Short causal depthwise convolution with state.
//
//   y[t, c] = act(bias[c] + sum over j < W of weight[c, j] x[t - W + 1 + j, c])
//
// Shapes: x, y [T, C]; weight [C, W]; state: the last `columns` >= W - 1 raw inputs of each channel, oldest first.
// Plan: one vector of channels at a time, its W weights and the W - 1 inputs before the current token in registers, so
// that a token costs one load, W fused multiply-adds and one store. Terms are added from the oldest input to the newest.
#pragma once
#include "sequence.hpp"
#include "simd/math.hpp"
#include "tasks.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

// p[0], p[stride], ..., n <= lanes of them, zeros for the rest.
template <class T> KDA_INLINE vec gathered(const T* p, std::ptrdiff_t stride, std::ptrdiff_t n) {
  if (stride == 1) return n == vec::lanes ? load(p) : load(p, n);
  T part[vec::lanes] = {};
  for (std::ptrdiff_t i = 0; i < n; ++i) part[i] = p[i * stride];
  return load(part);
}

/// Window of n neighbouring channels, W - 1 columns or more: element (column, i) at data[column * column_stride + i *
/// channel_stride].
template <class T> struct conv_window {
  T* data;
  std::ptrdiff_t columns, column_stride, channel_stride;

  // Column `column` of the channels [c, c + n), n <= lanes.
  [[nodiscard]] KDA_INLINE vec read(std::ptrdiff_t column, std::ptrdiff_t c, std::ptrdiff_t n) const {
    return gathered(data + column * column_stride + c * channel_stride, channel_stride, n);
  }
};

/// Weights of n neighbouring channels.
struct conv_taps {
  view<const float, 2> weight;  // [n, W]
  view<const float, 1> bias;    // [n], or left out

  KDA_INLINE conv_taps(const view<const float, 2>& weights, const view<const float, 1>& biases, std::ptrdiff_t first,
                       std::ptrdiff_t n)
      : weight(weights.part<0>(first, n)), bias(biases.part<0>(first, n)) {}

  // Those of the channels [c, c + n), n <= lanes, tap by tap.
  template <int W>
  KDA_INLINE void read(std::ptrdiff_t c, std::ptrdiff_t n, vec (&w)[static_cast<std::size_t>(W)], vec& start) const {
    start = broadcast(0.f);
    if (bias.data != nullptr) start = gathered(bias.at(c), 1, n);
    if constexpr (W == 4) {  // without gaps, as checkpoints have them
      if (n == vec::lanes && weight.stride[0] == 4 && weight.stride[1] == 1) {
        load_columns(weight.at(c), w);
        return;
      }
    }
    KDA_UNROLL
    for (int j = 0; j < W; ++j) w[j] = gathered(weight.at(c, j), weight.stride[0], n);
  }
};

/// Tokens [begin, end) of a sequence, n channels. x points at the sequence's first token; y at the output of token
/// `begin`. `before` holds the inputs before x, and is null for a fresh sequence.
template <int W, activation Activation, class X, class Y>
KDA_INLINE void conv_rows(const X* x, std::ptrdiff_t x_stride, const conv_taps& taps, Y* y, std::ptrdiff_t y_stride,
                          std::ptrdiff_t begin, std::ptrdiff_t end, std::ptrdiff_t n,
                          const conv_window<const X>& before) {
  for (std::ptrdiff_t c = 0; c < n; c += vec::lanes) {
    const std::ptrdiff_t channels = n - c < vec::lanes ? n - c : vec::lanes;
    const bool whole = channels == vec::lanes;
    vec w[static_cast<std::size_t>(W)], window[static_cast<std::size_t>(W)], start;
    taps.read<W>(c, channels, w, start);
    KDA_UNROLL
    for (int j = 0; j + 1 < W; ++j) {
      const std::ptrdiff_t token = begin - (W - 1) + j;
      if (token >= 0)
        window[j] = whole ? load(x + token * x_stride + c) : load(x + token * x_stride + c, channels);
      else
        window[j] = before.data != nullptr ? before.read(before.columns + token, c, channels) : broadcast(0.f);
    }
    for (std::ptrdiff_t t = begin; t < end; ++t) {
      window[W - 1] = whole ? load(x + t * x_stride + c) : load(x + t * x_stride + c, channels);
      vec sum = start;
      KDA_UNROLL
      for (int j = 0; j < W; ++j) sum = fma(w[j], window[j], sum);
      const vec result = Activation == activation::silu ? silu(sum) : sum;
      Y* to = y + (t - begin) * y_stride + c;
      whole ? store(to, result) : store(to, result, channels);
      KDA_UNROLL
      for (int j = 0; j + 1 < W; ++j) window[j] = window[j + 1];
    }
  }
}
template <activation Activation, class X, class Y>
KDA_NOINLINE void convolve(const X* x, std::ptrdiff_t x_stride, const conv_taps& taps, Y* y, std::ptrdiff_t y_stride,
                           std::ptrdiff_t begin, std::ptrdiff_t end, std::ptrdiff_t n,
                           const conv_window<const X>& before) {
  if (taps.weight.shape[1] == 4)
    conv_rows<4, Activation>(x, x_stride, taps, y, y_stride, begin, end, n, before);
  else if (taps.weight.shape[1] == 3)
    conv_rows<3, Activation>(x, x_stride, taps, y, y_stride, begin, end, n, before);
  else
    conv_rows<2, Activation>(x, x_stride, taps, y, y_stride, begin, end, n, before);
}

// n channels of one column to another, which is the same or apart.
template <class T>
KDA_INLINE void copy_column(const T* from, std::ptrdiff_t from_stride, T* to, std::ptrdiff_t to_stride,
                            std::ptrdiff_t n) {
  if (from_stride == 1 && to_stride == 1)
    for (std::ptrdiff_t i = 0; i < n; ++i) to[i] = from[i];
  else
    for (std::ptrdiff_t i = 0; i < n; ++i) to[i * to_stride] = from[i * from_stride];
}

/// The window after `tokens` inputs x: the last columns of [before | x], bits as they are, or zeros where there are fewer.
/// `before` may overlap `to` if its columns are not ahead of the ones they become (columns are moved from the oldest
/// on); it is null for a fresh sequence, whose past is zeros.
template <class T>
KDA_NOINLINE void advance_window(const T* x, std::ptrdiff_t x_stride, std::ptrdiff_t tokens, std::ptrdiff_t n,
                                 const conv_window<const T>& before, const conv_window<T>& to) {
  for (std::ptrdiff_t column = 0; column < to.columns; ++column) {
    const std::ptrdiff_t source = before.columns + tokens - to.columns + column;  // index into [before | x]
    T* p = to.data + column * to.column_stride;
    if (source >= before.columns)
      copy_column(x + (source - before.columns) * x_stride, 1, p, to.channel_stride, n);
    else if (before.data != nullptr && source >= 0)
      copy_column(before.data + source * before.column_stride, before.channel_stride, p, to.channel_stride, n);
    else
      for (std::ptrdiff_t i = 0; i < n; ++i) p[i * to.channel_stride] = T{};
  }
}

/// The windows of one sequence in a pool.
template <conv_state Order, class T> class sequence_windows {
 public:
  KDA_INLINE sequence_windows(const conv_pool<T>& pool, const sequences& lists, const sequence& s, std::ptrdiff_t taps)
      : pool_(pool),
        lists_(lists),
        s_(s),
        taps_(taps),
        rolling_(s.speculative && lists.speculation.rolling_windows),
        first_column_(rolling_ ? static_cast<std::ptrdiff_t>(lists.speculation.num_accepted[s.index]) - 1 : -1) {}

  /// What stands before the sequence's first token, from channel c on.
  [[nodiscard]] KDA_INLINE conv_window<const T> before(std::ptrdiff_t c) const {
    if (!s_.has_initial_state) return {nullptr, pool_.columns, 0, 0};
    const conv_window<T> w = at(s_.load_window, c);
    if (first_column_ < 0) return {w.data, w.columns, w.column_stride, w.channel_stride};
    return {w.data + first_column_ * w.column_stride, taps_ - 1, w.column_stride, w.channel_stride};
  }

  /// Writes all that the call is to keep of the channels [c, c + n); x points at the sequence's first token. What the
  /// sequence was loaded from is overwritten last.
  KDA_NOINLINE void store(const T* x, std::ptrdiff_t x_stride, std::ptrdiff_t c, std::ptrdiff_t n) const {
    if (s_.frozen) return;
    const conv_window<const T> from = before(c);
    for (int last = 0; last < 2; ++last)
      each_kept([&](std::int64_t slot, std::ptrdiff_t tokens, std::ptrdiff_t columns) KDA_INLINE_LAMBDA {
        if ((s_.has_initial_state && slot == s_.load_window) != (last == 1)) return;
        conv_window<T> to = at(slot, c);
        to.columns = columns;
        advance_window(x, x_stride, tokens, n, from, to);
      });
  }

 private:
  // f(slot, tokens, columns) for each window that is kept, after so many tokens.
  template <class F> KDA_INLINE void each_kept(F f) const {
    for (checkpoint_walk k(lists_, s_.index); !k.done(); k.advance())
      if (k.slot() >= pool_.first_slot) f(k.slot(), static_cast<std::ptrdiff_t>(k.tokens()), pool_.columns);
    if (!s_.speculative)
      f(s_.store, s_.tokens, pool_.columns);
    else if (!rolling_)
      for (std::ptrdiff_t j = 0; j < s_.tokens; ++j) f(lists_.speculation.slots.at(s_.index, j), j + 1, pool_.columns);
    else if (s_.tokens > 0)
      f(lists_.speculation.slots.at(s_.index, 0), s_.tokens, taps_ - 2 + s_.tokens);
  }
  [[nodiscard]] KDA_INLINE conv_window<T> at(std::int64_t slot, std::ptrdiff_t c) const {
    T* base = pool_.data + static_cast<std::ptrdiff_t>(slot) * pool_.slot_stride;
    if constexpr (Order == conv_state::channel_major)
      return {base + c * pool_.stride, pool_.columns, 1, pool_.stride};
    else
      return {base + c, pool_.columns, pool_.stride, 1};
  }

  const conv_pool<T>& pool_;
  const sequences& lists_;
  const sequence& s_;
  std::ptrdiff_t taps_;
  bool rolling_;
  std::ptrdiff_t first_column_;  // of the window in a rolling one; -1: the window is the slot's last columns
};

/// One call of conv: task i is (sequence, block of channels).
template <class Spec> class conv_tasks {
  using t = detail::traits<Spec>;
  static constexpr std::ptrdiff_t block = 256;

 public:
  KDA_INLINE explicit conv_tasks(const conv_args<Spec>& args)
      : args_(args),
        pool_(spelt_out<t::conv::order>(args.states, args.x.shape[1], args.weight.shape[1])),
        channels_(args.x.shape[1]),
        blocks_((channels_ + block - 1) / block) {}

  [[nodiscard]] KDA_INLINE std::ptrdiff_t count() const { return args_.sequences.has_initial_state.shape[0] * blocks_; }

  KDA_NOINLINE void operator()(std::ptrdiff_t i, arena) const {
    const sequence s = sequence_at(args_.sequences, i / blocks_, pool_.first_slot);
    const std::ptrdiff_t c = i % blocks_ * block, n = channels_ - c < block ? channels_ - c : block;
    if (s.padding) {
      for (std::ptrdiff_t token = s.first; args_.y.data != nullptr && token < s.first + s.tokens; ++token)
        for (std::ptrdiff_t j = c; j < c + n; ++j) *args_.y.at(token, j) = {};
      return;
    }
    const sequence_windows<t::conv::order, typename t::io::qkv> windows(pool_, args_.sequences, s,
                                                                        args_.weight.shape[1]);
    const auto* x = s.tokens == 0 ? nullptr : args_.x.at(s.first, c);
    if (args_.y.data != nullptr && s.tokens > 0)
      convolve<t::conv::act>(x, args_.x.stride[0], conv_taps(args_.weight, args_.bias, c, n), args_.y.at(s.first, c),
                             args_.y.stride[0], 0, s.tokens, n, windows.before(c));
    windows.store(x, args_.x.stride[0], c, n);
  }

 private:
  const conv_args<Spec>& args_;
  conv_pool<typename t::io::qkv> pool_;
  std::ptrdiff_t channels_, blocks_;
};

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
