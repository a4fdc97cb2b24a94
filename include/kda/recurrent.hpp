// SPDX-License-Identifier: Apache-2.0
// The delta rule token by token, on a state that stays where the engine keeps it: decode.
//
// With e = exp g, kd = e k, qd = e q (the decay is folded into k and q, the state is not swept for it) one token is two
// passes:
//
//   pass 1   r = S^T kd,  p = S^T qd                  d = beta (v - r),  out = p + (q . k) d
//   pass 2   S <- e S + k d^T                         (the decay as applied_decay in prologue.hpp says)
//
// S is [K, V] (key_major) or [V, K] (value_major), float or bf16; rows may lie further apart than they are long.
//
// Register plan. key_major: pass 1 holds block_vectors vectors of r and of p and runs down the rows; pass 2 goes row by
// row with k and decay broadcast. value_major: pass 1 holds r and p of up to four rows (a vector of partial sums each)
// and runs along the channels; pass 2 then updates the same rows while they are in L1. With bf16 the state is rounded
// after each token.
#pragma once
#include "prologue.hpp"
#include "simd/matrix.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

/// One token of one head, ready for the core; rows of key_stride floats with zeros past K, rows of value_stride.
struct token_rows {
  std::ptrdiff_t key_dim, columns;
  const float *k, *v;
  float beta;
  float *kd, *qd;
  float *keep, *factor;  // see applied_decay
  float qk;              // q . k
  float* delta;          // [value_stride]
  float* out;            // [value_stride]
};

KDA_INLINE token_rows make_token_rows(arena& scratch, const tile& t) {
  token_rows x{};
  x.key_dim = t.key_dim;
  x.columns = t.columns;
  x.kd = scratch.take(t.key_stride);
  x.qd = scratch.take(t.key_stride);
  x.keep = scratch.take(t.key_stride);
  x.factor = scratch.take(t.key_stride);
  x.delta = scratch.take(t.value_stride);
  return x;
}

/// Points `x` at token i of the tile and forms its decayed rows.
template <bool PerChannel> KDA_INLINE void prepare_token(const tile& t, std::ptrdiff_t i, token_rows& x) {
  const float *q = t.q + i * t.key_stride, *k = t.k + i * t.key_stride;
  x.k = k;
  x.v = t.v + i * t.value_stride;
  x.beta = t.beta[i];
  x.qk = dot(q, k, t.key_stride);
  for (std::ptrdiff_t d = 0; d < t.key_stride; d += vec::lanes) {
    const vec e = PerChannel ? load(t.alpha + i * t.key_stride + d) : broadcast(t.alpha[i]);
    const vec g = PerChannel ? load(t.g + i * t.key_stride + d) : broadcast(t.g[i]);
    store(x.kd + d, e * load(k + d));
    store(x.qd + d, e * load(q + d));
    const applied_decay decay = apply_decay(g);
    store(x.keep + d, decay.keep);
    store(x.factor + d, decay.factor);
  }
}

KDA_INLINE vec updated(vec s, const applied_decay& decay, vec k, vec delta) {
  return fma(decay.keep, s, fma(k, delta, decay.factor * s));
}

// ---- S [K, V] -------------------------------------------------------------------------------------------------------

// Columns [j, j + n) of d and out; n is Vectors * lanes, or less with one vector.
template <int Vectors, class T>
KDA_INLINE void sums_key_major(const T* s, std::ptrdiff_t stride, token_rows& x, std::ptrdiff_t j, std::ptrdiff_t n) {
  vectors<Vectors> r, p;
  KDA_UNROLL
  for (int b = 0; b < Vectors; ++b) r[b] = p[b] = broadcast(0.f);
  const bool whole = n == Vectors * vec::lanes;
  KDA_NO_UNROLL
  for (std::ptrdiff_t i = 0; i < x.key_dim; ++i) {
    const vec kd = broadcast(x.kd[i]), qd = broadcast(x.qd[i]);
    KDA_UNROLL
    for (int b = 0; b < Vectors; ++b) {
      const T* from = s + i * stride + j + b * vec::lanes;
      const vec row = whole ? load(from) : load(from, n);
      r[b] = fma(row, kd, r[b]);
      p[b] = fma(row, qd, p[b]);
    }
  }
  KDA_UNROLL
  for (int b = 0; b < Vectors; ++b) {
    const std::ptrdiff_t c = j + b * vec::lanes;
    const vec d = broadcast(x.beta) * (load(x.v + c) - r[b]);
    store(x.delta + c, d);
    store(x.out + c, fma(broadcast(x.qk), d, p[b]));
  }
}

template <class T>
KDA_NOINLINE void token_key_major(const T* from, std::ptrdiff_t from_stride, T* to, std::ptrdiff_t to_stride,
                                  token_rows& x) {
  const std::ptrdiff_t whole = x.columns / vec::lanes;
  in_blocks<block_vectors>(0, whole, [&]<int Vectors>(std::ptrdiff_t v) KDA_INLINE_LAMBDA {
    sums_key_major<Vectors>(from, from_stride, x, v * vec::lanes, Vectors * vec::lanes);
  });
  const std::ptrdiff_t done = whole * vec::lanes, rest = x.columns - done;
  if (rest > 0) sums_key_major<1>(from, from_stride, x, done, rest);
  for (std::ptrdiff_t i = 0; i < x.key_dim; ++i) {
    const vec k = broadcast(x.k[i]);
    const applied_decay decay{broadcast(x.keep[i]), broadcast(x.factor[i])};
    const T* row = from + i * from_stride;
    T* out = to + i * to_stride;
    for (std::ptrdiff_t j = 0; j < done; j += vec::lanes)
      store(out + j, updated(load(row + j), decay, k, load(x.delta + j)));
    if (rest > 0) store(out + done, updated(load(row + done, rest), decay, k, load(x.delta + done)), rest);
  }
}

// ---- S [V, K] -------------------------------------------------------------------------------------------------------

// Value rows [v, v + Rows).
template <int Rows, class T>
KDA_INLINE void rows_value_major(const T* from, std::ptrdiff_t from_stride, T* to, std::ptrdiff_t to_stride,
                                 token_rows& x, std::ptrdiff_t v) {
  const std::ptrdiff_t whole = x.key_dim / vec::lanes * vec::lanes, rest = x.key_dim - whole;
  const T* row = from + v * from_stride;
  T* out_row = to + v * to_stride;
  vectors<Rows> r, p;
  KDA_UNROLL
  for (int b = 0; b < Rows; ++b) r[b] = p[b] = broadcast(0.f);
  for (std::ptrdiff_t d = 0; d < x.key_dim; d += vec::lanes) {
    const vec kd = load(x.kd + d), qd = load(x.qd + d);
    KDA_UNROLL
    for (int b = 0; b < Rows; ++b) {
      const vec a = d < whole ? load(row + b * from_stride + d) : load(row + b * from_stride + d, rest);
      r[b] = fma(a, kd, r[b]);
      p[b] = fma(a, qd, p[b]);
    }
  }
  vectors<Rows> delta;
  KDA_UNROLL
  for (int b = 0; b < Rows; ++b) {
    delta[b] = broadcast(x.beta) * (broadcast(x.v[v + b]) - broadcast(reduce_add(r[b])));
    const vec out = fma(broadcast(x.qk), delta[b], broadcast(reduce_add(p[b])));
    store(x.out + v + b, out, 1);
  }
  for (std::ptrdiff_t d = 0; d < x.key_dim; d += vec::lanes) {
    const vec k = load(x.k + d);
    const applied_decay decay{load(x.keep + d), load(x.factor + d)};
    KDA_UNROLL
    for (int b = 0; b < Rows; ++b) {
      const T* a = row + b * from_stride + d;
      T* y = out_row + b * to_stride + d;
      if (d < whole)
        store(y, updated(load(a), decay, k, delta[b]));
      else
        store(y, updated(load(a, rest), decay, k, delta[b]), rest);
    }
  }
}

template <class T>
KDA_NOINLINE void token_value_major(const T* from, std::ptrdiff_t from_stride, T* to, std::ptrdiff_t to_stride,
                                    token_rows& x) {
  constexpr int rows = block_rows < 4 ? block_rows : 4;
  in_blocks<rows>(0, x.columns, [&]<int Rows>(std::ptrdiff_t v) KDA_INLINE_LAMBDA {
    rows_value_major<Rows>(from, from_stride, to, to_stride, x, v);
  });
}

/// Tokens [first, last) of the tile, on the block of a head's state at `from`: [K, columns], or [columns, K], with rows
/// from_stride apart. The state after the last of them goes to `to`, which is `from` or apart from it; with bf16 it is
/// rounded after each token. out: [last - first, value_stride].
template <bool PerChannel, layout Layout, class T>
KDA_NOINLINE void recurrent_run(const tile& t, std::ptrdiff_t first, std::ptrdiff_t last, const T* from,
                                std::ptrdiff_t from_stride, T* to, std::ptrdiff_t to_stride, token_rows& x,
                                float* out) {
  for (std::ptrdiff_t i = first; i < last; ++i) {
    prepare_token<PerChannel>(t, i, x);
    x.out = out + (i - first) * t.value_stride;
    if constexpr (Layout == layout::key_major)
      token_key_major(from, from_stride, to, to_stride, x);
    else
      token_value_major(from, from_stride, to, to_stride, x);
    from = to, from_stride = to_stride;
  }
}

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
