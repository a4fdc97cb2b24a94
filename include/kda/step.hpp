// SPDX-License-Identifier: Apache-2.0
// A layer between its projections in one call, fused per tile of at most 16 tokens and one value head, or a few in turn:
//
//   q, k, v  = act(conv(raw q, k, v))            rounded to the intermediate type, in scratch
//   out      = delta rule(q, k, v, gate, beta)   rounded to the intermediate type, in scratch
//   y        = norm(out, output gate)
//
// by the very functions that the calls of one stage use, on the same numbers: equal to the bit. A task that is alone with
// channels of the convolution moves their windows once it has read them. What several tasks read (q/k heads that serve
// several value heads, heads whose columns are split) stays where it is until all are done, and is moved by tasks of its
// own: it does not matter which task runs first. With more runners than heads a head's columns go to several tasks; then
// norm, which needs whole rows, follows in place.
#pragma once
#include "conv.hpp"
#include "delta_rule.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

/// Contiguous q/k heads of the value heads in `r`.
template <class Map>
KDA_INLINE head_range key_heads(const head_range& r, std::ptrdiff_t heads, std::ptrdiff_t value_heads) {
  const std::ptrdiff_t count = heads_in(r, value_heads);
  if (heads == value_heads) return {r.first, count};
  if constexpr (std::is_same_v<Map, head_map::interleaved>)
    return {r.first / (value_heads / heads), count / (value_heads / heads)};
  else
    return {0, heads};
}

/// The convolution's view of a step: where the channels of each tensor begin, and the pool.
template <class Spec> struct step_channels {
  using t = detail::traits<Spec>;
  using T = typename t::io::qkv;
  conv_pool<T> pool;
  std::ptrdiff_t k, v;  // first channel of k and of v; q begins at 0

  KDA_INLINE explicit step_channels(const step_args<Spec>& a)
      : pool(a.conv_states), k(a.q.shape[1] * a.q.shape[2]), v(2 * k) {
    pool = spelt_out<t::conv::order>(pool, v + a.v.shape[1] * a.v.shape[2], a.conv_weight.shape[1]);
  }
};

/// Moves the windows of one head of x, whose channels begin at first_channel, past the sequence's tokens.
template <class Spec>
KDA_INLINE void store_windows(const step_args<Spec>& args, const step_channels<Spec>& channels, const sequence& s,
                              const view<const typename detail::traits<Spec>::io::qkv, 3>& x, std::ptrdiff_t head,
                              std::ptrdiff_t first_channel) {
  using t = detail::traits<Spec>;
  const sequence_windows<t::conv::order, typename t::io::qkv> windows(channels.pool, args.sequences, s,
                                                                      args.conv_weight.shape[1]);
  windows.store(s.tokens == 0 ? nullptr : x.at(s.first, head), x.stride[0], first_channel + head * x.shape[2],
                x.shape[2]);
}

/// Rows of q, k and v after the convolution, for the tokens of a tile, and one row of outputs.
template <class Spec> struct step_rows {
  using stage = typename detail::traits<Spec>::stage;
  std::ptrdiff_t key_stride, width;
  typename stage::qkv *q, *k, *v;
  typename stage::out* out;

  KDA_INLINE step_rows() = default;
  KDA_INLINE step_rows(arena& scratch, const tile& t) : key_stride(detail::round_up(t.key_dim, 16)), width(t.width) {
    take(scratch, t.room * key_stride, q);
    take(scratch, t.room * key_stride, k);
    take(scratch, t.room * width, v);
    take(scratch, width, out);
  }

 private:
  template <class T> KDA_INLINE static void take(arena& scratch, std::ptrdiff_t floats, T*& row) {
    row = reinterpret_cast<T*>(scratch.take(floats));
  }
};

/// Rows of one value head from raw projections, and its outputs through the norm. It is `ready` if prepare() has filled
/// its rows with all tokens; else fill() does, tile by tile.
template <class Spec> class step_source {
  using t = detail::traits<Spec>;
  using raw = typename t::io::qkv;
  using stage_out = typename t::stage::out;
  using windows = sequence_windows<t::conv::order, raw>;

 public:
  KDA_INLINE step_source(const step_args<Spec>& args, const delta_rule_args<Spec>& core,
                         const step_channels<Spec>& channels, const sequence& s, std::ptrdiff_t head,
                         std::ptrdiff_t column, std::ptrdiff_t columns, const step_rows<Spec>& rows, bool ready)
      : args_(args),
        prologue_(core, head, column),
        s_(s),
        rows_(rows),
        ready_(ready),
        K_(args.q.shape[2]),
        columns_(columns),
        q_channel_(prologue_.q_head * K_),
        k_channel_(channels.k + q_channel_),
        v_channel_(channels.v + head * args.v.shape[2] + column),
        windows_(channels.pool, args.sequences, s, args.conv_weight.shape[1]) {}

  /// Tokens [first, first + n) of the packed batch into the rows.
  KDA_INLINE void prepare(std::ptrdiff_t first, std::ptrdiff_t n) const {
    const std::ptrdiff_t begin = first - s_.first, end = begin + n;
    const auto part = [&](const view<const raw, 3>& x, std::ptrdiff_t head, std::ptrdiff_t column,
                          std::ptrdiff_t channel, std::ptrdiff_t channels, auto* to, std::ptrdiff_t stride)
                          KDA_INLINE_LAMBDA {
                            convolve<t::conv::act>(x.at(s_.first, head, column), x.stride[0],
                                                   conv_taps(args_.conv_weight, args_.conv_bias, channel, channels), to,
                                                   stride, begin, end, channels, windows_.before(channel));
                          };
    part(args_.q, prologue_.q_head, 0, q_channel_, K_, rows_.q, rows_.key_stride);
    part(args_.k, prologue_.q_head, 0, k_channel_, K_, rows_.k, rows_.key_stride);
    part(args_.v, prologue_.head, prologue_.first_column, v_channel_, columns_, rows_.v, rows_.width);
  }

  KDA_INLINE void fill(std::ptrdiff_t first, std::ptrdiff_t n, tile& tile) const {
    if (!ready_) prepare(first, n);
    prologue_.fill(first, n, {rows_.q, rows_.key_stride}, {rows_.k, rows_.key_stride}, {rows_.v, rows_.width}, tile);
  }

  [[nodiscard]] KDA_INLINE upcoming_rows upcoming(std::ptrdiff_t first, std::ptrdiff_t n) const {
    upcoming_rows next = prologue_.gate_rows_of(first, n);
    next.add(args_.q.at(first, prologue_.q_head), args_.q.stride[0], K_);
    next.add(args_.k.at(first, prologue_.q_head), args_.k.stride[0], K_);
    next.add(args_.v.at(first, prologue_.head, prologue_.first_column), args_.v.stride[0], columns_);
    if (args_.y.data == nullptr) return next;
    next.add(args_.y.at(first, prologue_.head, prologue_.first_column), args_.y.stride[0], columns_);
    if (columns_ == args_.v.shape[2])
      next.add(args_.output_gate.at(first, prologue_.head), args_.output_gate.stride[0], columns_);
    return next;
  }

  KDA_INLINE void emit(std::ptrdiff_t first, std::ptrdiff_t n, const float* out, std::ptrdiff_t stride) const {
    if (args_.y.data == nullptr) return;
    const bool whole = columns_ == args_.v.shape[2];
    for (std::ptrdiff_t i = 0; i < n; ++i) {
      auto* y = args_.y.at(first + i, prologue_.head, prologue_.first_column);
      if constexpr (std::is_same_v<stage_out, typename t::io::out>)
        if (!whole) {
          store_row(y, out + i * stride, columns_);
          continue;
        }
      store_row(rows_.out, out + i * stride, columns_);
      norm_row<t::norm::act, t::norm::order>(rows_.out, args_.output_gate.at(first + i, prologue_.head),
                                             args_.norm_weight.data, args_.norm_eps.value, columns_, y);
    }
  }

 private:
  const step_args<Spec>& args_;
  const head_prologue<Spec> prologue_;
  const sequence& s_;
  const step_rows<Spec>& rows_;
  bool ready_;
  std::ptrdiff_t K_, columns_, q_channel_, k_channel_, v_channel_;
  windows windows_;
};

/// The arguments of the delta rule within a step; q, k, v and out are in scratch, only their extents count.
template <class Spec> KDA_INLINE delta_rule_args<Spec> core_args(const step_args<Spec>& a) {
  return {.q = {.shape = {a.q.shape[0], a.q.shape[1], a.q.shape[2]}},
          .v = {.shape = {a.v.shape[0], a.v.shape[1], a.v.shape[2]}},
          .gate = a.gate,
          .beta = a.beta,
          .gate_params = a.gate_params,
          .scale = a.scale,
          .heads = a.heads,
          .sequences = a.sequences,
          .states = a.states};
}

/// The tiles of a step.
template <class Spec> class step_tasks {
  using t = detail::traits<Spec>;

 public:
  KDA_INLINE step_tasks(const step_args<Spec>& args, const detail::slot_entry* order, const executor& e)
      : args_(args),
        core_(core_args(args)),
        channels_(args),
        grid_(make_head_grid(args.sequences, order, args.heads.first, heads_in(args.heads, args.v.shape[1]),
                             args.v.shape[2], e,
                             args.y.data == nullptr || std::is_same_v<typename t::stage::out, typename t::io::out>,
                             {most_in_turn, args.q.shape[2]})) {}

  [[nodiscard]] KDA_INLINE std::ptrdiff_t count() const { return grid_.count(); }
  /// Whether y holds what the delta rule gave, and is still to be normalised.
  [[nodiscard]] KDA_INLINE bool leaves_norm() const { return args_.y.data != nullptr && grid_.blocks > 1; }
  /// Whether windows of v, or of q and k, are still to be moved.
  [[nodiscard]] KDA_INLINE bool leaves_values() const { return grid_.blocks != 1; }
  [[nodiscard]] KDA_INLINE bool leaves_keys() const { return leaves_values() || args_.q.shape[1] != args_.v.shape[1]; }

  KDA_NOINLINE void operator()(std::ptrdiff_t i, arena scratch) const {
    const head_grid::place at = grid_.at(i);
    const sequence s = sequence_at(args_.sequences, at.sequence, args_.states.first_slot);
    if (s.padding) {
      for (std::ptrdiff_t h = 0; h < at.heads; ++h) write_zeros(args_.y, s, at.head + h, at.column, at.columns);
      return;
    }
    const mode core = *args_.modes.at(s.index);
    tile tile = make_tile(scratch, args_.q.shape[2], at.columns, core, s.tokens);
    // Decode convolves all heads of the task first: their windows and weights lie side by side, and what misses the caches
    // between two states waits behind the reads of both.
    const bool ready = core == mode::decode && s.tokens > 0 && s.tokens <= tile.room;
    step_rows<Spec> rows[most_in_turn];
    for (std::ptrdiff_t h = 0; h < (ready ? at.heads : 1); ++h) rows[h] = step_rows<Spec>(scratch, tile);
    const auto source_of = [&](std::ptrdiff_t h) KDA_INLINE_LAMBDA {
      return step_source<Spec>(args_, core_, channels_, s, at.head + h, at.column, at.columns, rows[ready ? h : 0],
                               ready);
    };
    if (core == mode::decode) {
      for (std::ptrdiff_t h = 0; ready && h < at.heads; ++h) source_of(h).prepare(s.first, s.tokens);
      for (std::ptrdiff_t h = 0; h < at.heads; ++h)
        head_walk<Spec>(core_, s, at.head + h, at.column, at.columns).decode(source_of(h), tile, scratch);
    } else {
      head_walk<Spec>(core_, s, at.head, at.column, at.columns).prefill(source_of, at.heads, tile, scratch);
    }
    for (std::ptrdiff_t h = at.head; h < at.head + at.heads; ++h) {
      if (!leaves_keys()) {
        store_windows(args_, channels_, s, args_.q, h, 0);
        store_windows(args_, channels_, s, args_.k, h, channels_.k);
      }
      if (!leaves_values()) store_windows(args_, channels_, s, args_.v, h, channels_.v);
    }
  }

 private:
  const step_args<Spec>& args_;
  const delta_rule_args<Spec> core_;
  const step_channels<Spec> channels_;
  const head_grid grid_;
};

/// The norm of a step whose heads were split: task i is (sequence, value head), in place.
template <class Spec> class step_norm_tasks {
  using t = detail::traits<Spec>;

 public:
  KDA_INLINE explicit step_norm_tasks(const step_args<Spec>& args)
      : args_(args), heads_(heads_in(args.heads, args.v.shape[1])) {}

  [[nodiscard]] KDA_INLINE std::ptrdiff_t count() const { return args_.modes.shape[0] * heads_; }

  KDA_NOINLINE void operator()(std::ptrdiff_t i, arena) const {
    const sequence s = sequence_at(args_.sequences, i / heads_, args_.states.first_slot);
    const std::ptrdiff_t head = args_.heads.first + i % heads_;
    for (std::ptrdiff_t token = s.first; !s.padding && token < s.first + s.tokens; ++token)
      norm_row<t::norm::act, t::norm::order>(args_.y.at(token, head), args_.output_gate.at(token, head),
                                             args_.norm_weight.data, args_.norm_eps.value, args_.v.shape[2],
                                             args_.y.at(token, head));
  }

 private:
  const step_args<Spec>& args_;
  std::ptrdiff_t heads_;
};

/// The windows that the tiles of a step leave, once all are done: task i is (sequence, head of q, k or v).
template <class Spec> class step_window_tasks {
  using t = detail::traits<Spec>;

 public:
  KDA_INLINE step_window_tasks(const step_args<Spec>& args, bool keys, bool values)
      : args_(args),
        channels_(args),
        key_(key_heads<typename t::head_map>(args.heads, args.q.shape[1], args.v.shape[1])),
        values_(heads_in(args.heads, args.v.shape[1])) {
    if (!keys) key_.count = 0;
    if (!values) values_ = 0;
  }

  [[nodiscard]] KDA_INLINE std::ptrdiff_t count() const { return args_.modes.shape[0] * (2 * key_.count + values_); }

  KDA_NOINLINE void operator()(std::ptrdiff_t i, arena) const {
    const std::ptrdiff_t heads = 2 * key_.count + values_, part = i % heads;
    const sequence s = sequence_at(args_.sequences, i / heads, args_.states.first_slot);
    if (s.padding) return;
    if (part < key_.count)
      store_windows(args_, channels_, s, args_.q, key_.first + part, 0);
    else if (part < 2 * key_.count)
      store_windows(args_, channels_, s, args_.k, key_.first + part - key_.count, channels_.k);
    else
      store_windows(args_, channels_, s, args_.v, args_.heads.first + part - 2 * key_.count, channels_.v);
  }

 private:
  const step_args<Spec>& args_;
  const step_channels<Spec> channels_;
  head_range key_;
  std::ptrdiff_t values_;
};

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
