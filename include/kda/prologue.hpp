// SPDX-License-Identifier: Apache-2.0
// Everything between an engine's tensors and the canonical tile: types, strides, head map, normalisation, scale, gate
// law and form of beta end here. The cores in recurrent.hpp and chunked.hpp see fp32 rows and nothing else.
#pragma once
#include "gate.hpp"
#include "norm.hpp"
#include "simd/matrix.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

/// Rows that the next tile will read or write: the chunk before it fetches them into the L1 cache, a line now and then,
/// since token-major rows lie pages apart, where no hardware prefetcher follows. A hint; no rows by default.
struct upcoming_rows {
  struct rows {
    const char* data;
    std::ptrdiff_t stride, lines;  // bytes from row to row, cache lines of a row
  };
  static constexpr std::ptrdiff_t line_bytes = 64;
  rows part[8];
  std::ptrdiff_t parts, tokens;

  template <class T> KDA_INLINE void add(const T* data, std::ptrdiff_t stride, std::ptrdiff_t size) {
    constexpr auto bytes = static_cast<std::ptrdiff_t>(sizeof(T));
    part[parts++] = {reinterpret_cast<const char*>(data), stride * bytes, (size * bytes + line_bytes - 1) / line_bytes};
  }
};

/// At most `room` tokens, no more than chunk_tokens, of one value head and of a block of its value columns. Rows of q, k,
/// g, alpha hold key_stride floats: K channels, then zeros in q and k and anything finite in g and alpha. With per-head
/// decay g and alpha hold one number a token. Rows of v hold width floats, zeros past the columns, v_stride apart: in
/// room of their own or, where they need neither, in the tensor. key_stride and width are multiples of 16, whatever the
/// lanes; key_stride is one of 32 for decode, which works on pairs of vectors.
struct tile {
  std::ptrdiff_t tokens, room, key_dim, key_stride, columns, width, v_stride;
  float* q;      ///< normalised and scaled
  float* k;      ///< normalised
  float* g;      ///< log decay
  float* alpha;  ///< exp(g)
  const float* v;
  float* v_room;  ///< [room, width]
  float* beta;    ///< [chunk_tokens]
  upcoming_rows upcoming;
};

/// Rows of one head in a tensor, or in scratch: token i of the tile at data + i * stride.
template <class T> struct head_rows {
  const T* data;
  std::ptrdiff_t stride;
};

/// Hands out pieces of one task's scratch.
struct arena {
  float* next;
  KDA_INLINE float* take(std::ptrdiff_t floats) {
    float* p = next;
    next += detail::round_up(floats, detail::alignment / static_cast<std::ptrdiff_t>(sizeof(float)));
    return p;
  }
};

/// The tile of a sequence. That of decode is no larger than its tokens need.
KDA_INLINE tile make_tile(arena& scratch, std::ptrdiff_t key_dim, std::ptrdiff_t columns, mode m,
                          std::ptrdiff_t tokens) {
  constexpr std::ptrdiff_t stagger = 32;  // two cache lines: a channel of all four then takes different sets of L1
  tile t{};
  t.key_dim = key_dim;
  t.room = m == mode::decode && tokens < chunk_tokens ? tokens : chunk_tokens;
  t.key_stride = detail::round_up(key_dim, m == mode::decode ? 32 : 16);
  t.columns = columns;
  t.width = t.v_stride = detail::round_up(columns, 16);
  t.q = scratch.take(t.room * t.key_stride + stagger);
  t.k = scratch.take(t.room * t.key_stride + stagger);
  t.g = scratch.take(t.room * t.key_stride + stagger);
  t.alpha = scratch.take(t.room * t.key_stride + stagger);
  t.v = t.v_room = scratch.take(t.room * t.width);
  t.beta = scratch.take(chunk_tokens);
  return t;
}

/// How a log decay g is applied to an fp32 state (decode sweeps one of bf16 by exp g itself): S <- keep S + (factor S +
/// ...), the bracket first. Weak decay: keep 1, factor expm1(g); a rounded exp(g) near 1 would drift by its error at every
/// step. Strong decay: keep 0, factor exp(g); a large state would leave the rounding of its own cancellation behind.
struct applied_decay {
  vec keep, factor;
};
KDA_INLINE applied_decay apply_decay(vec g, vec alpha) {  // alpha: exp(g)
  const mask strong = less(g, broadcast(-0.5f));
  return {select(strong, broadcast(0.f), broadcast(1.f)), select(strong, alpha, expm1_nonpositive(g))};
}
KDA_INLINE applied_decay apply_decay(vec g) { return apply_decay(g, exp_nonpositive(g)); }

/// The q/k head of value head hv.
template <class Map>
KDA_INLINE std::ptrdiff_t key_head(std::ptrdiff_t hv, std::ptrdiff_t heads, std::ptrdiff_t value_heads) {
  if constexpr (std::is_same_v<Map, head_map::interleaved>)
    return hv / (value_heads / heads);
  else
    return hv % heads;
}

inline constexpr float l2norm_eps = 1e-6f;

/// What stays the same for all tiles of one value head: its gate law, its rows' place in the tensors, the scale of q.
template <class Spec> struct head_prologue {
  using t = detail::traits<Spec>;
  using qkv = typename t::stage::qkv;
  const delta_rule_args<Spec>& args;
  std::ptrdiff_t head, q_head, first_column;
  float scale;
  gate_law<typename t::gate> law;

  KDA_INLINE head_prologue(const delta_rule_args<Spec>& a, std::ptrdiff_t hv, std::ptrdiff_t column)
      : args(a),
        head(hv),
        q_head(key_head<typename t::head_map>(hv, a.q.shape[1], a.v.shape[1])),
        first_column(column),
        scale(a.scale),
        law(a.gate_params, hv) {
    if (scale == 0.f) {
      float inverse_root[vec::lanes];
      store(inverse_root, broadcast(1.f) / sqrt(broadcast(static_cast<float>(a.q.shape[2]))));
      scale = inverse_root[0];
    }
  }

  /// Fills `tile` with tokens [first, first + n) of the packed batch, n <= tile.room.
  KDA_INLINE void fill(std::ptrdiff_t first, std::ptrdiff_t n, tile& tile) const {
    fill(first, n, {args.q.at(first, q_head), args.q.stride[0]}, {args.k.at(first, q_head), args.k.stride[0]},
         {args.v.at(first, head, first_column), args.v.stride[0]}, tile);
  }

  /// The rows of gate and beta of tokens [first, first + n).
  [[nodiscard]] KDA_INLINE upcoming_rows gate_rows_of(std::ptrdiff_t first, std::ptrdiff_t n) const {
    upcoming_rows next{};
    next.tokens = n;
    if constexpr (detail::is_decaying<Spec>)
      next.add(args.gate.at(first, head), args.gate.stride[0], detail::is_per_channel<Spec> ? args.q.shape[2] : 1);
    next.add(args.beta.at(first, head), args.beta.stride[0], 1);
    return next;
  }
  /// All rows of tokens [first, first + n), for a tile of `columns` value columns.
  [[nodiscard]] KDA_INLINE upcoming_rows rows_of(std::ptrdiff_t first, std::ptrdiff_t n, std::ptrdiff_t columns) const {
    upcoming_rows next = gate_rows_of(first, n);
    next.add(args.q.at(first, q_head), args.q.stride[0], args.q.shape[2]);
    next.add(args.k.at(first, q_head), args.k.stride[0], args.q.shape[2]);
    next.add(args.v.at(first, head, first_column), args.v.stride[0], columns);
    if (args.out.data != nullptr) next.add(args.out.at(first, head, first_column), args.out.stride[0], columns);
    return next;
  }

  /// The same with q, k and v from elsewhere; gate and beta still are tokens [first, first + n) of the packed batch.
  KDA_NOINLINE void fill(std::ptrdiff_t first, std::ptrdiff_t n, head_rows<qkv> q_rows, head_rows<qkv> k_rows,
                         head_rows<qkv> v_rows, tile& tile) const {
    tile.tokens = n;
    const std::ptrdiff_t K = tile.key_dim, stride = tile.key_stride;
    if constexpr (std::is_same_v<typename t::qk, qk::l2_normalized>) {
      float factor[2 * chunk_tokens] = {};  // of q, then of k: roots of all rows at once
      for (std::ptrdiff_t i = 0; i < n; ++i) {
        factor[i] = sum_of_squares(q_rows.data + i * q_rows.stride, K);
        factor[chunk_tokens + i] = sum_of_squares(k_rows.data + i * k_rows.stride, K);
      }
      for (std::ptrdiff_t i = 0; i < 2 * chunk_tokens; i += vec::lanes)
        store(factor + i, l2norm_factor(load(factor + i), l2norm_eps, i < chunk_tokens ? scale : 1.f));
      for (std::ptrdiff_t i = 0; i < n; ++i) {
        scale_row(q_rows.data + i * q_rows.stride, K, broadcast(factor[i]), tile.q + i * stride, stride);
        scale_row(k_rows.data + i * k_rows.stride, K, broadcast(factor[chunk_tokens + i]), tile.k + i * stride, stride);
      }
    } else {
      for (std::ptrdiff_t i = 0; i < n; ++i) {
        scale_row(q_rows.data + i * q_rows.stride, K, broadcast(scale), tile.q + i * stride, stride);
        scale_row(k_rows.data + i * k_rows.stride, K, broadcast(1.f), tile.k + i * stride, stride);
      }
    }
    fill_values(n, v_rows, tile);
    beta_tokens<typename t::beta>(args.beta.at(first, head), args.beta.stride[0], n, tile.beta);
    fill_decay(first, n, tile);
  }

 private:
  KDA_INLINE void fill_values(std::ptrdiff_t n, head_rows<qkv> rows, tile& tile) const {
    if constexpr (std::is_same_v<qkv, float>) {
      if (tile.columns == tile.width) {
        tile.v = rows.data, tile.v_stride = rows.stride;
        return;
      }
    }
    for (std::ptrdiff_t i = 0; i < n; ++i)
      scale_row(rows.data + i * rows.stride, tile.columns, broadcast(1.f), tile.v_room + i * tile.width, tile.width);
  }

  KDA_INLINE void fill_decay(std::ptrdiff_t first, std::ptrdiff_t n, tile& tile) const {
    std::ptrdiff_t floats = chunk_tokens;
    if constexpr (detail::is_per_channel<Spec>) {
      const float* bias = dt_bias_of(args.gate_params);
      for (std::ptrdiff_t i = 0; i < n; ++i) {
        gate_channels(law, args.gate.at(first + i, head), bias == nullptr ? nullptr : bias + head * tile.key_dim,
                      tile.key_dim, tile.g + i * tile.key_stride);
        // what gate_channels leaves between its last vector and the stride
        for (std::ptrdiff_t d = detail::round_up(tile.key_dim, vec::lanes); d < tile.key_stride; d += vec::lanes)
          store(tile.g + i * tile.key_stride + d, broadcast(0.f));
      }
      floats = n * tile.key_stride;
    } else if constexpr (detail::is_decaying<Spec>) {
      const float* bias = dt_bias_of(args.gate_params);
      gate_tokens(law, args.gate.at(first, head), args.gate.stride[0], bias == nullptr ? 0.f : bias[head], n, tile.g);
    } else {
      for (std::ptrdiff_t d = 0; d < floats; d += vec::lanes) store(tile.g + d, broadcast(0.f));
    }
    for (std::ptrdiff_t d = 0; d < floats; d += vec::lanes) store(tile.alpha + d, exp_nonpositive(load(tile.g + d)));
  }
};

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
