// SPDX-License-Identifier: Apache-2.0
// A layer between its projections in one call, fused per tile of at most 16 tokens and one value head:
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

/// Rows of one value head from raw projections, and its outputs through the norm.
template <class Spec> class step_source {
  using t = detail::traits<Spec>;
  using raw = typename t::io::qkv;
  using stage_qkv = typename t::stage::qkv;
  using stage_out = typename t::stage::out;
  using windows = sequence_windows<t::conv::order, raw>;

 public:
  KDA_INLINE step_source(const step_args<Spec>& args, const step_channels<Spec>& channels,
                         const head_prologue<Spec>& prologue, const sequence& s, const tile& tile, arena& scratch)
      : args_(args),
        prologue_(prologue),
        s_(s),
        K_(args.q.shape[2]),
        columns_(tile.columns),
        key_stride_(detail::round_up(K_, 16)),
        width_(tile.width),
        q_channel_(prologue.q_head * K_),
        k_channel_(channels.k + q_channel_),
        v_channel_(channels.v + prologue.head * args.v.shape[2] + prologue.first_column) {
    const windows w(channels.pool, args.sequences, s, args.conv_weight.shape[1]);
    before_q_ = w.before(q_channel_), before_k_ = w.before(k_channel_), before_v_ = w.before(v_channel_);
    q_ = rows<stage_qkv>(scratch, tile.room * key_stride_);
    k_ = rows<stage_qkv>(scratch, tile.room * key_stride_);
    v_ = rows<stage_qkv>(scratch, tile.room * width_);
    out_ = rows<stage_out>(scratch, width_);
  }

  KDA_INLINE void fill(std::ptrdiff_t first, std::ptrdiff_t n, tile& tile) const {
    const std::ptrdiff_t begin = first - s_.first, end = begin + n;
    convolve<t::conv::act>(args_.q.at(s_.first, prologue_.q_head), args_.q.stride[0], taps(q_channel_, K_), q_,
                           key_stride_, begin, end, K_, before_q_);
    convolve<t::conv::act>(args_.k.at(s_.first, prologue_.q_head), args_.k.stride[0], taps(k_channel_, K_), k_,
                           key_stride_, begin, end, K_, before_k_);
    convolve<t::conv::act>(args_.v.at(s_.first, prologue_.head, prologue_.first_column), args_.v.stride[0],
                           taps(v_channel_, columns_), v_, width_, begin, end, columns_, before_v_);
    prologue_.fill(first, n, {q_, key_stride_}, {k_, key_stride_}, {v_, width_}, tile);
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
      store_row(out_, out + i * stride, columns_);
      norm_row<t::norm::act, t::norm::order>(out_, args_.output_gate.at(first + i, prologue_.head),
                                             args_.norm_weight.data, args_.norm_eps.value, columns_, y);
    }
  }

 private:
  [[nodiscard]] KDA_INLINE conv_taps taps(std::ptrdiff_t first, std::ptrdiff_t n) const {
    return {args_.conv_weight, args_.conv_bias, first, n};
  }
  template <class T> KDA_INLINE static T* rows(arena& scratch, std::ptrdiff_t floats) {
    return reinterpret_cast<T*>(scratch.take(floats));
  }

  const step_args<Spec>& args_;
  const head_prologue<Spec>& prologue_;
  const sequence& s_;
  std::ptrdiff_t K_, columns_, key_stride_, width_, q_channel_, k_channel_, v_channel_;
  conv_window<const raw> before_q_{}, before_k_{}, before_v_{};
  stage_qkv *q_, *k_, *v_;
  stage_out* out_;
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
        grid_(make_head_grid(
            args.sequences, order, args.heads.first, heads_in(args.heads, args.v.shape[1]), args.v.shape[2], e,
            args.y.data == nullptr || std::is_same_v<typename t::stage::out, typename t::io::out>, 0)) {}

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
      write_zeros(args_.y, s, at.head, at.column, at.columns);
      return;
    }
    const mode core = *args_.modes.at(s.index);
    tile tile = make_tile(scratch, args_.q.shape[2], at.columns, core, s.tokens);
    const head_prologue<Spec> prologue(core_, at.head, at.column);
    const step_source<Spec> source(args_, channels_, prologue, s, tile, scratch);
    const head_walk<Spec> walk(core_, s, at.head, at.column, at.columns);
    if (core == mode::decode)
      walk.decode(source, tile, scratch);
    else
      walk.prefill([&](std::ptrdiff_t) KDA_INLINE_LAMBDA -> const step_source<Spec>& { return source; }, 1, tile,
                   scratch);
    if (!leaves_keys()) {
      store_windows(args_, channels_, s, args_.q, at.head, 0);
      store_windows(args_, channels_, s, args_.k, at.head, channels_.k);
    }
    if (!leaves_values()) store_windows(args_, channels_, s, args_.v, at.head, channels_.v);
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
