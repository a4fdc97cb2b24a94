// SPDX-License-Identifier: Apache-2.0
// The delta rule in chunks of at most 16 tokens, built on matrix products: prefill.
//
// With D(i, j) = product of alpha over (j, i], per channel or per head, for the chunk's tokens i, j = 0 .. n - 1:
//
//   A(i, j) = beta_i sum_d k_i[d] k_j[d] D(i, j)[d]    j < i
//   P(i, j) =        sum_d q_i[d] k_j[d] D(i, j)[d]    j <= i
//   u_i     = beta_i (v_i - S^T (k_i D(i, -1))) - sum_{j < i} A(i, j) u_j     forward substitution, no inverse
//   out_i   = S^T (q_i D(i, -1)) + sum_{j <= i} P(i, j) u_j
//   S      <- exp(sum g) S + sum_j (k_j D(n - 1, j)) u_j^T                    the decay as applied_decay says
//
// (the WY form of Yang et al., arXiv 2406.06484, with decay). D is only ever a product of alphas, taken along a binary
// tree: for a block of 2h tokens split at m, D(i, j) = prod[m, i] prod(j, m) is one factor for the row and one for the
// column, h = 8, 4, 2, 1. No exponent is positive, nothing is divided by a decay, alpha = 0 needs no case, and row i
// uses alphas up to i only: causal to the bit, and no row knows how many follow.
//
// S is [K, value_stride] fp32 in scratch, columns past the block zero. Register plan: simd/matrix.hpp.
#pragma once
#include "prologue.hpp"
#include "simd/matrix.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

/// Scratch of a chunk besides the tile; [chunk_tokens, key_stride], [chunk_tokens, value_stride], [chunk_tokens]^2.
struct chunk_scratch {
  float *row_k, *row_q;   // k_i and q_i times their decay since the block's split, then since the chunk's start
  float* column_k;        // k_j times the decay from j to the split, then to the chunk's end
  float *keep, *factor;   // [key_stride] the chunk's decay, see applied_decay
  float *a, *p;           // A and P
  float *from_state, *u;  // S^T k D(i, -1); u
};

KDA_INLINE chunk_scratch make_chunk_scratch(arena& scratch, const tile& t) {
  chunk_scratch w{};
  w.row_k = scratch.take(chunk_tokens * t.key_stride);
  w.row_q = scratch.take(chunk_tokens * t.key_stride);
  w.column_k = scratch.take(chunk_tokens * t.key_stride);
  w.keep = scratch.take(t.key_stride);
  w.factor = scratch.take(t.key_stride);
  w.a = scratch.take(chunk_tokens * chunk_tokens);
  w.p = scratch.take(chunk_tokens * chunk_tokens);
  w.from_state = scratch.take(chunk_tokens * t.value_stride);
  w.u = scratch.take(chunk_tokens * t.value_stride);
  return w;
}

// ---- decay within a chunk -------------------------------------------------------------------------------------------

// Rows [first, last): row_k_i, row_q_i = k_i, q_i times the product of alpha over [first, i].
KDA_INLINE void decay_rows(const tile& t, chunk_scratch& w, std::ptrdiff_t first, std::ptrdiff_t last) {
  const std::ptrdiff_t stride = t.key_stride;
  for (std::ptrdiff_t d = 0; d < stride; d += vec::lanes) {
    vec product = broadcast(1.f);
    for (std::ptrdiff_t i = first; i < last; ++i) {
      const std::ptrdiff_t at = i * stride + d;
      product = product * load(t.alpha + at);
      store(w.row_k + at, load(t.k + at) * product);
      store(w.row_q + at, load(t.q + at) * product);
    }
  }
}

// Columns [first, last): column_k_j = k_j times the product of alpha over (j, last).
KDA_INLINE void decay_columns(const tile& t, chunk_scratch& w, std::ptrdiff_t first, std::ptrdiff_t last) {
  const std::ptrdiff_t stride = t.key_stride;
  for (std::ptrdiff_t d = 0; d < stride; d += vec::lanes) {
    vec product = broadcast(1.f);
    for (std::ptrdiff_t j = last - 1; j >= first; --j) {
      const std::ptrdiff_t at = j * stride + d;
      store(w.column_k + at, load(t.k + at) * product);
      product = product * load(t.alpha + at);
    }
  }
}

KDA_INLINE void store_decay(const chunk_scratch& w, std::ptrdiff_t d, vec g) {
  const applied_decay decay = apply_decay(g);
  store(w.keep + d, decay.keep);
  store(w.factor + d, decay.factor);
}

// A and P, per-channel decay; leaves row_k, row_q and column_k decayed over the whole chunk, keep and factor set.
KDA_INLINE void relate_tokens_per_channel(const tile& t, chunk_scratch& w) {
  const std::ptrdiff_t n = t.tokens, stride = t.key_stride;
  for (std::ptrdiff_t h = chunk_tokens / 2; h >= 1; h /= 2) {
    for (std::ptrdiff_t first = 0; first + h < n; first += 2 * h) {
      const std::ptrdiff_t split = first + h, last = split + h < n ? split + h : n;
      decay_rows(t, w, split, last);
      decay_columns(t, w, first, split);
      for (std::ptrdiff_t i = split; i < last; ++i) {
        for (std::ptrdiff_t j = first; j < split; ++j) {
          w.a[i * chunk_tokens + j] = t.beta[i] * dot(w.row_k + i * stride, w.column_k + j * stride, stride);
          w.p[i * chunk_tokens + j] = dot(w.row_q + i * stride, w.column_k + j * stride, stride);
        }
      }
    }
  }
  for (std::ptrdiff_t i = 0; i < n; ++i) w.p[i * chunk_tokens + i] = dot(t.q + i * stride, t.k + i * stride, stride);
  decay_rows(t, w, 0, n);
  decay_columns(t, w, 0, n);
  for (std::ptrdiff_t d = 0; d < stride; d += vec::lanes) {
    vec sum = broadcast(0.f);
    for (std::ptrdiff_t i = 0; i < n; ++i) sum = sum + load(t.g + i * stride + d);
    store_decay(w, d, sum);
  }
}

// The same with one decay per token: it leaves the sums over d.
KDA_INLINE void relate_tokens_per_head(const tile& t, chunk_scratch& w) {
  const std::ptrdiff_t n = t.tokens, stride = t.key_stride;
  const auto scale = [&](float* to, const float* from, float by) KDA_INLINE_LAMBDA {
    for (std::ptrdiff_t d = 0; d < stride; d += vec::lanes) store(to + d, load(from + d) * broadcast(by));
  };
  float since_start = 1.f, sum = 0.f;
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    const float *q = t.q + i * stride, *k = t.k + i * stride;
    w.p[i * chunk_tokens + i] = dot(q, k, stride);
    float product = 1.f;  // D(i, j)
    for (std::ptrdiff_t j = i - 1; j >= 0; --j) {
      product *= t.alpha[j + 1];
      w.a[i * chunk_tokens + j] = t.beta[i] * (product * dot(k, t.k + j * stride, stride));
      w.p[i * chunk_tokens + j] = product * dot(q, t.k + j * stride, stride);
    }
    since_start *= t.alpha[i];
    sum += t.g[i];
    scale(w.row_k + i * stride, k, since_start);
    scale(w.row_q + i * stride, q, since_start);
  }
  float to_end = 1.f;
  for (std::ptrdiff_t j = n - 1; j >= 0; --j) {
    scale(w.column_k + j * stride, t.k + j * stride, to_end);
    to_end *= t.alpha[j];
  }
  for (std::ptrdiff_t d = 0; d < stride; d += vec::lanes) store_decay(w, d, broadcast(sum));
}

// ---- products with the state ----------------------------------------------------------------------------------------

// y[i] = S^T x_i, i < n.
KDA_INLINE void read_state(const tile& t, const float* s, const float* x, float* y) {
  in_register_blocks(
      t.tokens, t.value_stride, [&]<int Rows, int Vectors>(std::ptrdiff_t i, std::ptrdiff_t j) KDA_INLINE_LAMBDA {
        accumulators<Rows, Vectors> acc;
        KDA_UNROLL
        for (int r = 0; r < Rows; ++r) {
          KDA_UNROLL
          for (int c = 0; c < Vectors; ++c) acc[r][c] = broadcast(0.f);
        }
        multiply_add<Rows, Vectors>(x + i * t.key_stride, t.key_stride, 1, s + j, t.value_stride, t.key_dim, acc);
        KDA_UNROLL
        for (int r = 0; r < Rows; ++r) {
          KDA_UNROLL
          for (int c = 0; c < Vectors; ++c) store(y + (i + r) * t.value_stride + j + c * vec::lanes, acc[r][c]);
        }
      });
}

// u by forward substitution, then out += P u.
KDA_INLINE void solve(const tile& t, const chunk_scratch& w, float* out) {
  const std::ptrdiff_t n = t.tokens, stride = t.value_stride;
  in_blocks<block_vectors>(0, stride / vec::lanes, [&]<int Vectors>(std::ptrdiff_t v) KDA_INLINE_LAMBDA {
    const std::ptrdiff_t column = v * vec::lanes;
    for (std::ptrdiff_t i = 0; i < n; ++i) {
      vectors<Vectors> u, o;
      KDA_UNROLL
      for (int c = 0; c < Vectors; ++c) {
        const std::ptrdiff_t at = i * stride + column + c * vec::lanes;
        u[c] = broadcast(t.beta[i]) * (load(t.v + at) - load(w.from_state + at));
        o[c] = load(out + at);
      }
      KDA_NO_UNROLL
      for (std::ptrdiff_t j = 0; j < i; ++j) {
        const vec a = broadcast(w.a[i * chunk_tokens + j]), p = broadcast(w.p[i * chunk_tokens + j]);
        KDA_UNROLL
        for (int c = 0; c < Vectors; ++c) {
          const vec uj = load(w.u + j * stride + column + c * vec::lanes);
          u[c] = fnma(a, uj, u[c]);
          o[c] = fma(p, uj, o[c]);
        }
      }
      const vec p = broadcast(w.p[i * chunk_tokens + i]);
      KDA_UNROLL
      for (int c = 0; c < Vectors; ++c) {
        const std::ptrdiff_t at = i * stride + column + c * vec::lanes;
        store(w.u + at, u[c]);
        store(out + at, fma(p, u[c], o[c]));
      }
    }
  });
}

// S <- keep S + (factor S + column_k^T u).
KDA_INLINE void update_state(const tile& t, const chunk_scratch& w, float* s) {
  in_register_blocks(
      t.key_dim, t.value_stride, [&]<int Rows, int Vectors>(std::ptrdiff_t d, std::ptrdiff_t j) KDA_INLINE_LAMBDA {
        float* block = s + d * t.value_stride + j;
        accumulators<Rows, Vectors> acc;
        KDA_UNROLL
        for (int r = 0; r < Rows; ++r) {
          KDA_UNROLL
          for (int c = 0; c < Vectors; ++c)
            acc[r][c] = broadcast(w.factor[d + r]) * load(block + r * t.value_stride + c * vec::lanes);
        }
        multiply_add<Rows, Vectors>(w.column_k + d, 1, t.key_stride, w.u + j, t.value_stride, t.tokens, acc);
        KDA_UNROLL
        for (int r = 0; r < Rows; ++r) {
          KDA_UNROLL
          for (int c = 0; c < Vectors; ++c) {
            float* at = block + r * t.value_stride + c * vec::lanes;
            store(at, fma(broadcast(w.keep[d + r]), load(at), acc[r][c]));
          }
        }
      });
}

/// One chunk: the tile's tokens on the state block s [K, value_stride]; out [tokens, value_stride].
template <bool PerChannel> KDA_NOINLINE void chunk(const tile& t, chunk_scratch& w, float* s, float* out) {
  if constexpr (PerChannel)
    relate_tokens_per_channel(t, w);
  else
    relate_tokens_per_head(t, w);
  read_state(t, s, w.row_k, w.from_state);
  read_state(t, s, w.row_q, out);
  solve(t, w, out);
  update_state(t, w, s);
}

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
