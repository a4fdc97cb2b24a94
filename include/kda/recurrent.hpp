// SPDX-License-Identifier: Apache-2.0
// The delta rule token by token, on a state that stays where the engine keeps it: decode.
//
// With e = exp g, kd = e k, qd = e q (the decay is folded into k and q, the state is not swept for it) one token is two
// passes:
//
//   pass 1   r = S^T kd,  p = S^T qd                  d = beta (v - r),  out = p + (q . k) d
//   pass 2   S <- e S + k d^T                         (of an fp32 state as applied_decay in prologue.hpp says)
//
// S is [K, V] (key_major) or [V, K] (value_major), float or bf16; rows may lie further apart than they are long.
//
// Memory is read in the order in which it lies: one core gets its bandwidth from prefetchers, and those of Zen 4 follow
// one stream. Pass 1 therefore takes row after row. Four neighbouring rows at a time save a third of its loads and took
// 3 to 4 times as long from DRAM, stores out of order or software prefetch up to twice as long.
//
// value_major: pass 1 on the few rows of a group, which stay in L1; two rows' r and p are added up across the lanes
// while the next two are read. Then pass 2 on the same rows, four at a time. Registers of pass 1: r and p, two sums of
// each, one of S; kd and qd come from L1 or, on AVX-512 with 128 channels, stay in 16 registers. Pass 2: four d, two
// each of k, factor and mask, S. All tokens of a run are taken on a group before the next group is read. A group's sums
// kept as vectors until all its rows are read (2 KiB on the stack, one long pause) took 1.35 times as long from DRAM.
// key_major: pass 1 on the whole block, pass 2 of a token beside pass 1 of the next, eight rows at a time. r and p of 128
// columns stay in 16 registers on AVX-512, those of the first 48 in 12 on AVX2 and in 24 on NEON; the rest are in L1. Pass 2: k, factor,
// mask; d from L1.
//
// An element of the state costs 4 multiply-adds or products and, of an fp32 state, an addition. Additions of a sum run up
// the rows (key_major) or, value_major, over channels that are 2 * lanes apart, then over those sums by a fixed tree:
// neither grouping, blocking nor the number of tokens changes a bit. A bf16 state takes all even channels as one vector
// and all odd ones as the other, and is swept by exp g as it stands: what drifts there is far below its own rounding.
#pragma once
#include "prologue.hpp"
#include "simd/matrix.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

/// What the cores need of the tokens of a run, and their scratch. Rows of channels are a tile's key_stride apart, zeros
/// past K in k, kd and qd, (even, odd) apart where they meet pairs of bf16. They take the places of the tile's k and q
/// and, with decay per channel, alpha and g, so that all that one token needs, but for values that stay in the tensor, lies
/// in a few KiB: what a prologue misses in L1 waits behind the state's reads.
struct token_rows {
  float *k, *kd, *qd;    ///< [room, key_stride]
  float* factor;         ///< the decay to apply (applied_decay), below zero where it says `keep`; bf16 states: exp g
  float* qk;             ///< [chunk_tokens] q . k
  float *r, *p, *delta;  ///< [columns]
};

template <bool PerChannel> KDA_INLINE token_rows make_token_rows(arena& scratch, const tile& t) {
  token_rows x{};
  x.k = t.k, x.qd = t.q;
  x.kd = PerChannel ? t.alpha : scratch.take(t.room * t.key_stride);
  x.factor = PerChannel ? t.g : scratch.take(t.room * t.key_stride);
  x.qk = scratch.take(chunk_tokens);
  float** const of_columns[] = {&x.r, &x.p, &x.delta};
  for (float** row : of_columns) *row = scratch.take(detail::round_up(t.columns, 32));
  return x;
}

// Elements [d, d + 2 * lanes) of a row of n floats, zeros past it; EvenOdd: of what meets pairs of bf16.
template <bool EvenOdd> KDA_INLINE void load_row(const float* row, std::ptrdiff_t d, std::ptrdiff_t n, pair& x) {
  x[0] = load(row + d);
  x[1] = d + vec::lanes < n ? load(row + d + vec::lanes) : broadcast(0.f);
  if constexpr (EvenOdd) to_even_odd(x);
}

// What is to be kept is told by the sign of the factor: of the kept ones, zero becomes the first normal number below,
// whose product with S at most breaks a tie.
KDA_INLINE vec signed_factor(const applied_decay& decay) {
  constexpr float least_below = -1.17549435e-38f;
  return select(less(broadcast(0.f), decay.keep), min(broadcast(least_below), decay.factor), decay.factor);
}
KDA_INLINE mask kept(vec factor) { return less(factor, broadcast(0.f)); }

// fp32: S <- keep S + (factor S + k d), bf16: S <- factor S + k d, before it is rounded.
template <class T> KDA_INLINE vec updated(vec s, mask keep, vec factor, vec k, vec delta) {
  const vec sum = fma(k, delta, factor * s);
  return std::is_same_v<T, bf16> ? sum : add_where(keep, sum, s);
}

/// Forms the rows of token i of the tile, whose own are used up, for a state of T.
template <bool PerChannel, layout Layout, class T>
KDA_INLINE void prepare_token(const tile& t, std::ptrdiff_t i, token_rows& x) {
  constexpr bool even_odd = Layout == layout::value_major && std::is_same_v<T, bf16>;
  const std::ptrdiff_t row = i * t.key_stride;
  x.qk[i] = dot(t.q + row, t.k + row, t.key_stride);
  pair e, g;
  if constexpr (!PerChannel) e[0] = e[1] = broadcast(t.alpha[i]), g[0] = g[1] = broadcast(t.g[i]);
  for (std::ptrdiff_t d = 0; d < t.key_stride; d += 2 * vec::lanes) {
    pair a, b;
    load_row<even_odd>(t.k + row, d, t.key_stride, a);
    load_row<even_odd>(t.q + row, d, t.key_stride, b);
    if constexpr (PerChannel) {
      load_row<even_odd>(t.alpha + row, d, t.key_stride, e);
      load_row<even_odd>(t.g + row, d, t.key_stride, g);
    }
    KDA_UNROLL
    for (int h = 0; h < 2; ++h) {
      const std::ptrdiff_t to = row + d + h * vec::lanes;
      const vec factor = std::is_same_v<T, bf16> ? e[h] : signed_factor(apply_decay(g[h], e[h]));
      store(x.kd + to, e[h] * a[h]);
      store(x.qd + to, e[h] * b[h]);
      store(x.k + to, canonical_nan(a[h]));
      store(x.factor + to, canonical_nan(factor));
    }
  }
}

// ---- S [V, K] -------------------------------------------------------------------------------------------------------

// r and p of a row, before their lanes are added up: sums of the first and of the second vectors of all pairs.
struct row_sums {
  pair r, p;

  KDA_INLINE void clear() { r[0] = r[1] = p[0] = p[1] = broadcast(0.f); }
  KDA_INLINE void add(const pair& s, const pair& kd, const pair& qd) {
    KDA_UNROLL
    for (int i = 0; i < 2; ++i) {
      const vec z = pinned(s[i]);
      r[i] = fma(z, kd[i], r[i]);
      p[i] = fma(z, qd[i], p[i]);
    }
  }
  KDA_INLINE void add(const pair& s, const float* kd, const float* qd) {
    pair x, y;
    load_pair(kd, x);
    load_pair(qd, y);
    add(s, x, y);
  }
  KDA_INLINE void finish(vec& whole_r, vec& whole_p) const {
    whole_r = r[0] + r[1];
    whole_p = p[0] + p[1];
  }
};

// One row against kd and qd in memory.
struct row_products {
  const float *kd, *qd;
  std::ptrdiff_t K;

  template <class T> KDA_INLINE void operator()(const T* row, vec& r, vec& p) const {
    constexpr std::ptrdiff_t step = 2 * vec::lanes;
    const std::ptrdiff_t whole = K / step * step;
    row_sums sum;
    sum.clear();
    pair a;
    for (std::ptrdiff_t d = 0; d < whole; d += step) {
      load_pair(row + d, a);
      sum.add(a, kd + d, qd + d);
    }
    if (whole < K) {
      load_pair(row + whole, a, K - whole);
      sum.add(a, kd + whole, qd + whole);
    }
    sum.finish(r, p);
  }
};

// The same for the 128 channels that models have; AVX-512 holds kd and qd in registers.
struct row_products_of_128 {
  static constexpr std::ptrdiff_t channels = 128, step = 2 * vec::lanes;
#if KDA_ISA_IS_AVX512()
  pair kd[channels / step], qd[channels / step];

  KDA_INLINE row_products_of_128(const float* kd_row, const float* qd_row) {
    KDA_UNROLL
    for (std::ptrdiff_t c = 0; c < channels / step; ++c) {
      load_pair(kd_row + c * step, kd[c]);
      load_pair(qd_row + c * step, qd[c]);
    }
  }
  template <class T> KDA_INLINE void operator()(const T* row, vec& r, vec& p) const {
    row_sums sum;
    sum.clear();
    KDA_UNROLL
    for (std::ptrdiff_t c = 0; c < channels / step; ++c) {
      pair a;
      load_pair(row + c * step, a);
      sum.add(a, kd[c], qd[c]);
    }
    sum.finish(r, p);
  }
#else
  const float *kd, *qd;

  template <class T> KDA_INLINE void operator()(const T* row, vec& r, vec& p) const {
    row_sums sum;
    sum.clear();
    const T* s = opaque(row);  // else gcc holds kd, qd and addresses of both rows in registers, which spill
    const float *x = opaque(kd), *y = opaque(qd);
    KDA_UNROLL
    for (std::ptrdiff_t d = 0; d < channels; d += step) {
      pair a;
      load_pair(s + d, a);
      sum.add(a, x + d, y + d);
    }
    sum.finish(r, p);
  }
#endif
};

// Pass 1 of token i on the n rows at s, which hold columns [v, v + n): their outputs and deltas, and one more if n is
// odd: whatever comes of the last row and of what lies past the values.
template <class T, class Products>
KDA_INLINE void sum_rows(const tile& t, const token_rows& x, std::ptrdiff_t i, const T* s, std::ptrdiff_t stride,
                         std::ptrdiff_t v, std::ptrdiff_t n, const Products& products, float* out, float* deltas) {
  const float* values = t.v + i * t.v_stride + v;
  const float beta = t.beta[i], qk = x.qk[i];
  KDA_NO_UNROLL
  for (std::ptrdiff_t b = 0; b < n; b += 2) {
    vec of_lanes[4];  // r of two rows, p of two rows
    KDA_NO_UNROLL
    for (std::ptrdiff_t j = 0; j < 2; ++j) products(s + (b + j < n ? b + j : b) * stride, of_lanes[j], of_lanes[2 + j]);
    float sum[4];
    sum_lanes(of_lanes, sum);
    KDA_UNROLL
    for (int j = 0; j < 2; ++j) {
      const float delta = beta * (values[b + j] - sum[j]);
      out[v + b + j] = fma(qk, delta, sum[2 + j]);
      deltas[b + j] = delta;
    }
  }
}

template <int Rows, bool Whole, class T>
KDA_INLINE void update_pairs(const T* s, std::ptrdiff_t stride, T* to, std::ptrdiff_t to_stride, const float* k,
                             const float* factor, std::ptrdiff_t n, const vectors<Rows>& delta) {
  pair x, f;
  mask m[2];
  KDA_UNROLL
  for (int i = 0; i < 2; ++i) {
    x[i] = pinned(load(k + i * vec::lanes));
    f[i] = pinned(load(factor + i * vec::lanes));
    m[i] = kept(f[i]);
  }
  KDA_UNROLL
  for (int b = 0; b < Rows; ++b) {
    pair a;
    if constexpr (Whole)
      load_pair(s + b * stride, a);
    else
      load_pair(s + b * stride, a, n);
    KDA_UNROLL
    for (int i = 0; i < 2; ++i) a[i] = updated<T>(pinned(a[i]), m[i], f[i], x[i], delta[b]);
    if constexpr (Whole)
      store_pair(to + b * to_stride, a);
    else
      store_pair(to + b * to_stride, a, n);
  }
}

// Pass 2 of token i on Rows rows.
template <int Rows, class T>
KDA_INLINE void update_rows(const T* s, std::ptrdiff_t stride, T* to, std::ptrdiff_t to_stride, const float* k,
                            const float* factor, std::ptrdiff_t K, const float* deltas) {
  constexpr std::ptrdiff_t step = 2 * vec::lanes;
  vectors<Rows> delta;
  KDA_UNROLL
  for (int b = 0; b < Rows; ++b) {
    delta[b] = broadcast(deltas[b]);
    delta[b] = pinned(std::is_same_v<T, bf16> ? canonical_nan(delta[b]) : delta[b]);
  }
  std::ptrdiff_t d = 0;
  KDA_NO_UNROLL
  for (; d + step <= K; d += step)
    update_pairs<Rows, true>(s + d, stride, to + d, to_stride, k + d, factor + d, step, delta);
  if (d < K) update_pairs<Rows, false>(s + d, stride, to + d, to_stride, k + d, factor + d, K - d, delta);
}

// Rows of a group: those that are summed before the first of them is updated. 4 KiB with 128 channels, after which the
// prefetchers are still at work.
template <class T> inline constexpr std::ptrdiff_t group_rows = 32 / sizeof(T);
static_assert(group_rows<float> % 2 == 0 && group_rows<bf16> % 2 == 0, "sum_rows takes two at a time");
inline constexpr int row_block = block_rows < 4 ? block_rows : 4;

template <class T> KDA_INLINE void fetch(const T* row, std::ptrdiff_t n) {
  for (std::ptrdiff_t d = 0; d < n; d += 64 / static_cast<std::ptrdiff_t>(sizeof(T))) prefetch(row + d);
}

// Tokens [first, last) on value rows [v, v + n), n <= group_rows. Later tokens find the rows in L1; memory is idle then,
// and gets the next group's rows, a share for each token.
template <class T>
KDA_INLINE void run_rows(const tile& t, std::ptrdiff_t first, std::ptrdiff_t last, const T* from,
                         std::ptrdiff_t from_stride, T* to, std::ptrdiff_t to_stride, const token_rows& x,
                         std::ptrdiff_t v, std::ptrdiff_t n, float* out) {
  from += v * from_stride;
  to += v * to_stride;
  const T* next = from + n * from_stride;
  const std::ptrdiff_t next_rows = t.columns - v - n < n ? t.columns - v - n : n, next_stride = from_stride;
  for (std::ptrdiff_t i = first; i < last; ++i) {
    if (i > first) {
      const std::ptrdiff_t later = last - first - 1, share = (n + later - 1) / later, begin = (i - first - 1) * share;
      for (std::ptrdiff_t b = begin; b < begin + share && b < next_rows; ++b) fetch(next + b * next_stride, t.key_dim);
    }
    const std::ptrdiff_t row = i * t.key_stride;
    float* const token_out = out + (i - first) * t.width;
    float deltas[group_rows<T>];
    if (vec::lanes > 1 && t.key_dim == row_products_of_128::channels)
      sum_rows(t, x, i, from, from_stride, v, n, row_products_of_128{x.kd + row, x.qd + row}, token_out, deltas);
    else
      sum_rows(t, x, i, from, from_stride, v, n, row_products{x.kd + row, x.qd + row, t.key_dim}, token_out, deltas);
    in_blocks<row_block>(0, n, [&]<int Rows>(std::ptrdiff_t b) KDA_INLINE_LAMBDA {
      update_rows<Rows>(from + b * from_stride, from_stride, to + b * to_stride, to_stride, x.k + row, x.factor + row,
                        t.key_dim, deltas + b);
    });
    from = to, from_stride = to_stride;
  }
}

template <class T>
KDA_NOINLINE void run_value_major(const tile& t, std::ptrdiff_t first, std::ptrdiff_t last, const T* from,
                                  std::ptrdiff_t from_stride, T* to, std::ptrdiff_t to_stride, const token_rows& x,
                                  float* out) {
  for (std::ptrdiff_t v = 0; v < t.columns; v += group_rows<T>)
    run_rows(t, first, last, from, from_stride, to, to_stride, x, v,
             t.columns - v < group_rows<T> ? t.columns - v : group_rows<T>, out);
}

// ---- S [K, V] -------------------------------------------------------------------------------------------------------

KDA_INLINE void add_products(const pair& s, vec kd, vec qd, pair& r, pair& p) {
  KDA_UNROLL
  for (int i = 0; i < 2; ++i) {
    const vec z = pinned(s[i]);
    r[i] = fma(z, kd, r[i]);
    p[i] = fma(z, qd, p[i]);
  }
}

template <bool Whole, class T>
KDA_INLINE void add_row_products(const T* s, std::ptrdiff_t n, vec kd, vec qd, float* sum_r, float* sum_p) {
  pair a, r, p;
  if constexpr (Whole)
    load_pair(s, a);
  else
    load_pair(s, a, n);
  load_pair(sum_r, r);
  load_pair(sum_p, p);
  add_products(a, kd, qd, r, p);
  store_pair(sum_r, r);
  store_pair(sum_p, p);
}

// Pairs of columns whose r and p stay in registers while a block's rows are read.
inline constexpr int held_pairs = KDA_ISA_IS_NEON() ? 6 : KDA_ISA_IS_AVX512() ? 4 : KDA_ISA_IS_AVX2() ? 3 : 0;

// r += S^T kd, p += S^T qd over rows [first, last), row by row, the first Held pairs of columns in registers.
template <int Held, class T>
KDA_INLINE void sum_key_rows(const T* s, std::ptrdiff_t stride, const tile& t, std::ptrdiff_t i, token_rows& x,
                             std::ptrdiff_t first, std::ptrdiff_t last, std::ptrdiff_t columns) {
  constexpr std::ptrdiff_t step = 2 * vec::lanes;
  const std::ptrdiff_t whole = columns / step * step;
  const float *kd = x.kd + i * t.key_stride, *qd = x.qd + i * t.key_stride;
  accumulators<Held + 1, 2> r, p;  // one more: an array of none is no array
  KDA_UNROLL
  for (int c = 0; c < Held; ++c) load_pair(x.r + c * step, r[c]), load_pair(x.p + c * step, p[c]);
  KDA_NO_UNROLL
  for (std::ptrdiff_t row = first; row < last; ++row) {
    const vec k = broadcast(kd[row]), q = broadcast(qd[row]);
    const T* from = s + row * stride;
    KDA_UNROLL
    for (int c = 0; c < Held; ++c) {
      pair a;
      load_pair(from + c * step, a);
      add_products(a, k, q, r[c], p[c]);
    }
    for (std::ptrdiff_t j = Held * step; j < whole; j += step)
      add_row_products<true>(from + j, step, k, q, x.r + j, x.p + j);
    if (whole < columns) add_row_products<false>(from + whole, columns - whole, k, q, x.r + whole, x.p + whole);
  }
  KDA_UNROLL
  for (int c = 0; c < Held; ++c) store_pair(x.r + c * step, r[c]), store_pair(x.p + c * step, p[c]);
}

template <class T>
KDA_INLINE void sum_key_rows(const T* s, std::ptrdiff_t stride, const tile& t, std::ptrdiff_t i, token_rows& x,
                             std::ptrdiff_t first, std::ptrdiff_t last) {
  constexpr std::ptrdiff_t usual = 128;
  if (held_pairs > 0 && t.columns == usual)
    sum_key_rows<held_pairs>(s, stride, t, i, x, first, last, usual);
  else
    sum_key_rows<0>(s, stride, t, i, x, first, last, t.columns);
}

template <bool Whole, class T>
KDA_INLINE void update_key_pair(const T* s, T* to, std::ptrdiff_t n, mask keep, vec factor, vec k,
                                const float* deltas) {
  pair a;
  if constexpr (Whole)
    load_pair(s, a);
  else
    load_pair(s, a, n);
  KDA_UNROLL
  for (int i = 0; i < 2; ++i) a[i] = updated<T>(pinned(a[i]), keep, factor, k, load(deltas + i * vec::lanes));
  if constexpr (Whole)
    store_pair(to, a);
  else
    store_pair(to, a, n);
}

template <class T>
KDA_INLINE void update_key_rows(const T* s, std::ptrdiff_t stride, T* to, std::ptrdiff_t to_stride, const tile& t,
                                std::ptrdiff_t i, const token_rows& x, std::ptrdiff_t first, std::ptrdiff_t last) {
  constexpr std::ptrdiff_t step = 2 * vec::lanes;
  const std::ptrdiff_t columns = t.columns, whole = columns / step * step;
  KDA_NO_UNROLL
  for (std::ptrdiff_t row = first; row < last; ++row) {
    const std::ptrdiff_t at = i * t.key_stride + row;
    const vec k = pinned(broadcast(x.k[at])), factor = pinned(broadcast(x.factor[at]));
    const mask keep = kept(factor);
    const T* row_from = s + row * stride;
    T* row_to = to + row * to_stride;
    for (std::ptrdiff_t j = 0; j < whole; j += step)
      update_key_pair<true>(row_from + j, row_to + j, step, keep, factor, k, x.delta + j);
    if (whole < columns)
      update_key_pair<false>(row_from + whole, row_to + whole, columns - whole, keep, factor, k, x.delta + whole);
  }
}

// delta and out of token i from its sums, which are left zero.
template <bool EvenOdd> KDA_INLINE void finish_sums(const tile& t, std::ptrdiff_t i, token_rows& x, float* out) {
  const vec beta = broadcast(t.beta[i]), qk = broadcast(x.qk[i]);
  for (std::ptrdiff_t j = 0; j < t.columns; j += 2 * vec::lanes) {
    pair v, o;
    load_row<EvenOdd>(t.v + i * t.v_stride, j, t.width, v);
    KDA_UNROLL
    for (int b = 0; b < 2; ++b) {
      const std::ptrdiff_t at = j + b * vec::lanes;
      const vec delta = beta * (v[b] - load(x.r + at));
      o[b] = fma(qk, delta, load(x.p + at));
      store(x.delta + at, canonical_nan(delta));
      store(x.r + at, broadcast(0.f));
      store(x.p + at, broadcast(0.f));
    }
    if constexpr (EvenOdd) from_even_odd(o);
    store(out + j, o[0]);
    if (j + vec::lanes < t.width) store(out + j + vec::lanes, o[1]);
  }
}

template <class T>
KDA_NOINLINE void run_key_major(const tile& t, std::ptrdiff_t first, std::ptrdiff_t last, const T* from,
                                std::ptrdiff_t from_stride, T* to, std::ptrdiff_t to_stride, token_rows& x,
                                float* out) {
  constexpr std::ptrdiff_t rows = 8;
  const std::ptrdiff_t K = t.key_dim, columns = t.columns;
  for (std::ptrdiff_t j = 0; j < detail::round_up(columns, 2 * vec::lanes); j += vec::lanes) {
    store(x.r + j, broadcast(0.f));
    store(x.p + j, broadcast(0.f));
  }
  sum_key_rows(from, from_stride, t, first, x, 0, K);
  for (std::ptrdiff_t i = first; i < last; ++i) {
    finish_sums<std::is_same_v<T, bf16>>(t, i, x, out + (i - first) * t.width);
    if (i + 1 == last) {
      update_key_rows(from, from_stride, to, to_stride, t, i, x, 0, K);
    } else {
      for (std::ptrdiff_t row = 0; row < K; row += rows) {
        const std::ptrdiff_t end = K - row < rows ? K : row + rows;
        update_key_rows(from, from_stride, to, to_stride, t, i, x, row, end);
        sum_key_rows(to, to_stride, t, i + 1, x, row, end);
      }
    }
    from = to, from_stride = to_stride;
  }
}

/// Tokens [first, last) of the tile, each of them once after its fill(), on the block of a head's state at `from`:
/// [K, columns], or [columns, K], with rows from_stride apart. The state after the last of them goes to `to`, which is
/// `from` or apart from it; with bf16 it is rounded after each token. out: [last - first, width].
template <bool PerChannel, layout Layout, class T>
KDA_NOINLINE void recurrent_run(const tile& t, std::ptrdiff_t first, std::ptrdiff_t last, const T* from,
                                std::ptrdiff_t from_stride, T* to, std::ptrdiff_t to_stride, token_rows& x,
                                float* out) {
  if (first == last) return;
  for (std::ptrdiff_t i = first; i < last; ++i) prepare_token<PerChannel, Layout, T>(t, i, x);
  if constexpr (Layout == layout::key_major)
    run_key_major(t, first, last, from, from_stride, to, to_stride, x, out);
  else
    run_value_major(t, first, last, from, from_stride, to, to_stride, x, out);
}

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
