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
// column, h = 8, 4; among four tokens a column takes one alpha more from row to row. No exponent is positive, nothing is
// divided by a decay, alpha = 0 needs no case, and row i uses alphas up to i only: causal to the bit, and no row knows
// how many follow.
//
// S is fp32 in scratch, [K, width] in panels of block_vectors vectors (in_panels), columns past the block zero. A
// panel is read, solved, put out and updated while it is in L1.
//
// Plan                     work                                              registers, AVX2 (16) / AVX-512, NEON (32)
//   decay                  one pass over the channels, four tokens at a time products of alpha
//   A, P: 8 | 8, 4 | 4     dot products of decayed rows, 16 or 8 x 8 or 4    4 x 2 / 4 x 4 vectors of partial sums
//         4 x 4 diagonal   columns decayed token by token on the way         7, then 9 vectors of partial sums
//   [K; Q] S               one product of up to 32 rows, in even blocks      6 x 2 / 8 x 2, 5 x 4
//   u, out                 blocks of rows: a product, then a triangle        6 x 2 / 8 x 2, 5 x 4
//   S <- ...               columns of k against u, S loaded twice from L1    6 x 2 / 8 x 2, 5 x 4
// An element's sum takes the same order in any blocking; the partial sums of a dot product are one vector in any
// blocking, and are added across the lanes by one tree, as many dot products at a time as there are lanes.
//
// With one decay per token it leaves the sums over channels: A and P come from k, q as they are, the decay multiplies
// rows of S^T k, S^T q and u instead of keys.
//
// With bf16 products S, x and the columns of k and u are rounded to bf16 and put into pairs of neighbours along the sums,
// one instruction a pair; S itself, u and everything else stay as they are.
//
// Where the time of a 16-token chunk goes, K = V = 128, H = 64, token-major fp32, 4 KB pages, Zen 4, in units of the
// 864k multiply-adds that performance is counted in (peak is 1): AVX2 / AVX-512
//   gate, norm 0.11 / 0.07   decay 0.09 / 0.06       A, P 0.06 / 0.07   [K; Q] S 0.70 / 0.69 (0.61 its multiply-adds)
//   u, out 0.06 / 0.06       S <- 0.42 / 0.41 (0.34)                    the rest 0.09 / 0.09
#pragma once
#include "prologue.hpp"
#include "simd/matrix.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

/// Factors of the products with S: numbers, or pairs of terms rounded to bf16. `key`: what rows of keys are made of.
struct fp32_products {
  using factor = float;
  using key = float;
  static constexpr std::ptrdiff_t terms = 1;
  KDA_INLINE static void store_key(key* p, vec a) { store(p, a); }
};
#if KDA_ISA_IS_AVX512_BF16()
struct bf16_products {
  using factor = bf16_pair;
  using key = bf16;  // two neighbours are a factor
  static constexpr std::ptrdiff_t terms = 2;
  KDA_INLINE static void store_key(key* p, vec a) { store_factors(p, a); }
  KDA_INLINE static void store_pairs(factor* p, vec a, vec b) { store(p, join(a, b)); }
};
template <class Spec>
using products_of = std::conditional_t<std::is_same_v<typename detail::traits<Spec>::products::type, bf16>,
                                       bf16_products, fp32_products>;
#else
template <class Spec> using products_of = fp32_products;
#endif
template <class Products> inline constexpr bool rounds = Products::terms > 1;

/// Scratch of a chunk besides the tile. Rows of keys lie `stride` apart, which is no multiple of 256 bytes: 16 rows at
/// one channel then fall into different sets of the L1 cache.
template <class Products> struct chunk_scratch {
  using factor_type = typename Products::factor;
  std::ptrdiff_t stride;
  typename Products::key* x;  // [2 tokens] k_i D(i, -1), then q_i D(i, -1)
  factor_type* column_k;      // [tokens / terms] k_j times the decay from j to the chunk's end
  float *left_8, *left_4;     // [16] k_i and q_i times their decay since the split of their block of 16, of 8 tokens
  float *right_8, *right_4;   // [8] k_j times the decay from j to the split
  float *keep, *factor;       // [key_stride] the chunk's decay, see applied_decay
  float *a, *p;               // [16, 16] -A and P
  float* sums;                // [128, lanes] dot products as vectors of partial sums, then [128] whole
  float* decay;               // per-head decay: [16, 16] D(i, j), [16] D(i, -1), [16] D(n - 1, j)
  float *y, *u;               // a panel: [2 tokens] S^T x, [tokens] u
  factor_type *state_pairs, *u_pairs;  // the same panel of S and of u as factors, with bf16 products
};

// A stride that is known when compiling saves one register, or one reload from the stack, for each row in use; so K up
// to 128 and above 112, which is what models have, gets code of its own.
inline constexpr std::ptrdiff_t usual_key_stride = 128;
KDA_INLINE std::ptrdiff_t padded_stride(std::ptrdiff_t stride) { return stride + 16; }
template <std::ptrdiff_t N>
KDA_INLINE std::integral_constant<std::ptrdiff_t, N + 16> padded_stride(std::integral_constant<std::ptrdiff_t, N>) {
  return {};
}

template <class Products> KDA_INLINE chunk_scratch<Products> make_chunk_scratch(arena& scratch, const tile& t) {
  constexpr std::ptrdiff_t pairs = chunk_tokens * chunk_tokens, panel = block_vectors * vec::lanes;
  using factor = typename Products::factor;
  chunk_scratch<Products> w{};
  w.stride = padded_stride(t.key_stride);
  w.x = reinterpret_cast<typename Products::key*>(scratch.take(2 * chunk_tokens * w.stride / Products::terms));
  w.column_k = reinterpret_cast<factor*>(scratch.take(chunk_tokens / Products::terms * w.stride));
  w.left_8 = scratch.take(chunk_tokens * w.stride);
  w.left_4 = scratch.take(chunk_tokens * w.stride);
  w.right_8 = scratch.take(chunk_tokens / 2 * w.stride);
  w.right_4 = scratch.take(chunk_tokens / 2 * w.stride);
  w.keep = scratch.take(t.key_stride);
  w.factor = scratch.take(t.key_stride);
  w.a = scratch.take(pairs);
  w.p = scratch.take(pairs);
  w.sums = scratch.take(pairs / 2 * (vec::lanes + 1));
  w.decay = scratch.take(pairs + 2 * chunk_tokens);
  w.y = scratch.take(2 * chunk_tokens * panel);
  w.u = scratch.take(chunk_tokens * panel);
  if constexpr (rounds<Products>) {
    w.state_pairs = reinterpret_cast<factor*>(scratch.take((t.key_dim + 1) / 2 * panel));
    w.u_pairs = reinterpret_cast<factor*>(scratch.take(chunk_tokens / 2 * panel));
  }
  return w;
}

// ---- decay within a chunk -------------------------------------------------------------------------------------------

// Everything that a product of alphas multiplies, channel by channel. With tokens in groups of four, a product over a
// group's own tokens serves the tree's 4 | 4, with the neighbour group's it serves 8 | 8, with the other half's the
// chunk. Whole: 16 tokens. Otherwise rows past the last token come to hold anything, but for x, and alpha counts as 1
// there.
template <bool Whole, class Stride, class Products>
KDA_INLINE void decay_per_channel(const tile& t, const chunk_scratch<Products>& w, Stride from) {
  const std::ptrdiff_t n = Whole ? chunk_tokens : t.tokens, to = padded_stride(from);
  constexpr std::ptrdiff_t half = chunk_tokens / 2;
  for (std::ptrdiff_t d = 0; d < t.key_stride; d += vec::lanes) {
    const float *k = t.k + d, *q = t.q + d, *alpha = t.alpha + d;
    vec product[4];  // of a group
    KDA_UNROLL
    for (int g = 0; g < 4; ++g) {
      KDA_UNROLL
      for (int r = 0; r < 4; ++r) {
        const std::ptrdiff_t i = 4 * g + r;
        product[g] = r == 0 ? load(alpha + i * from) : product[g] * load(alpha + i * from);
        vec row_k = load(k + i * from) * product[g], row_q = load(q + i * from) * product[g];
        if (g % 2 == 1) {
          store(w.left_4 + (g / 2 * 8 + r) * to + d, row_k);
          store(w.left_4 + (g / 2 * 8 + 4 + r) * to + d, row_q);
          row_k = row_k * product[g - 1];
          row_q = row_q * product[g - 1];
        }
        if (g >= 2) {
          store(w.left_8 + (i - half) * to + d, row_k);
          store(w.left_8 + i * to + d, row_q);
          row_k = row_k * product[0];
          row_q = row_q * product[0];
        }
        if (Whole || i < n) {
          Products::store_key(w.x + i * to + d, row_k);
          Products::store_key(w.x + (n + i) * to + d, row_q);
        }
      }
      if (g == 1) product[0] = product[0] * product[1];
    }
    vec sum = broadcast(0.f), later;
    KDA_UNROLL
    for (int g = 3; g >= 0; --g) {
      KDA_UNROLL
      for (int r = 3; r >= 0; --r) {
        const std::ptrdiff_t i = 4 * g + r;
        const vec a = Whole || i < n ? load(alpha + i * from) : broadcast(1.f);
        vec column = load(k + i * from);
        if (r < 3) column = column * product[g];
        product[g] = r == 3 ? a : product[g] * a;
        if (g % 2 == 0) {
          store(w.right_4 + (g / 2 * 4 + r) * to + d, column);
          column = column * product[g + 1];
        }
        if (g < 2) {
          store(w.right_8 + i * to + d, column);
          column = column * product[3];
        }
        if constexpr (!rounds<Products>) {
          store(w.column_k + i * to + d, column);
        } else {
          if (!Whole && i >= n) column = broadcast(0.f);  // half of a pair
          if (r % 2 == 1)
            later = column;
          else
            Products::store_pairs(w.column_k + i / 2 * to + d, column, later);
        }
        if (Whole || i < n) sum = sum + load(t.g + i * from + d);
      }
      if (g == 2) product[3] = product[2] * product[3];
    }
    store(w.factor + d, sum);
  }
  for (std::ptrdiff_t d = 0; d < t.key_stride; d += vec::lanes) {
    const applied_decay decay = apply_decay(load(w.factor + d));
    store(w.keep + d, decay.keep);
    store(w.factor + d, decay.factor);
  }
}

// bf16 products, per-head decay: k and q as they are.
template <class Products> KDA_INLINE void round_keys(const tile& t, const chunk_scratch<Products>& w) {
  const std::ptrdiff_t n = t.tokens;
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    const float *k = t.k + i * t.key_stride, *q = t.q + i * t.key_stride;
    for (std::ptrdiff_t d = 0; d < t.key_stride; d += vec::lanes) {
      Products::store_key(w.x + i * w.stride + d, load(k + d));
      Products::store_key(w.x + (n + i) * w.stride + d, load(q + d));
      if (i % 2 == 1) continue;
      const vec later = i + 1 < n ? load(k + t.key_stride + d) : broadcast(0.f);
      Products::store_pairs(w.column_k + i / 2 * w.stride + d, load(k + d), later);
    }
  }
}

// Rows [0, n) of a panel as pairs of rows.
template <int Vectors, class Products>
KDA_INLINE void round_rows(const float* rows, std::ptrdiff_t n, typename Products::factor* to) {
  constexpr std::ptrdiff_t row = Vectors * vec::lanes;
  for (std::ptrdiff_t i = 0; i < n; i += 2) {
    KDA_UNROLL
    for (int c = 0; c < Vectors; ++c) {
      const float* x = rows + i * row + c * vec::lanes;
      const vec later = i + 1 < n ? load(x + row) : broadcast(0.f);
      Products::store_pairs(to + i / 2 * row + c * vec::lanes, load(x), later);
    }
  }
}

// One decay per token: it leaves every sum over channels.
template <class Products> KDA_INLINE void decay_per_head(const tile& t, const chunk_scratch<Products>& w) {
  const std::ptrdiff_t n = t.tokens;
  float *since_start = w.decay + chunk_tokens * chunk_tokens, *to_end = since_start + chunk_tokens;
  float product = 1.f, sum = 0.f;
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    float* row = w.decay + i * chunk_tokens;
    for (std::ptrdiff_t j = 0; j < chunk_tokens; j += vec::lanes)
      store(row + j, i == 0 ? broadcast(0.f) : load(row - chunk_tokens + j) * broadcast(t.alpha[i]));
    row[i] = 1.f;
    product *= t.alpha[i];
    since_start[i] = product;
    sum += t.g[i];
  }
  product = 1.f;
  for (std::ptrdiff_t j = n - 1; j >= 0; --j) {
    to_end[j] = product;
    product *= t.alpha[j];
  }
  const applied_decay decay = apply_decay(broadcast(sum));
  for (std::ptrdiff_t d = 0; d < t.key_stride; d += vec::lanes) {
    store(w.keep + d, decay.keep);
    store(w.factor + d, decay.factor);
  }
}

// ---- A and P --------------------------------------------------------------------------------------------------------

// size x size dot products of k, then as many of q.
template <class Stride>
KDA_INLINE void tokens_dots(const float* k, const float* q, const float* right, Stride stride, std::ptrdiff_t size,
                            std::ptrdiff_t channels, float* sums) {
  constexpr int rows = block_rows < 4 ? block_rows : 4;
  constexpr int columns = vec::lanes == 16 ? 2 * block_vectors : block_vectors;
  const float* const lefts[] = {k, q};
  for (const float* left : lefts) {
    in_blocks<columns>(0, size, [&]<int Columns>(std::ptrdiff_t j) KDA_INLINE_LAMBDA {
      in_blocks<rows>(0, size, [&]<int Rows>(std::ptrdiff_t i) KDA_INLINE_LAMBDA {
        partial_dots<Rows, Columns>(left + i * stride, stride, right + j * stride, stride, channels,
                                    sums + (i * size + j) * vec::lanes, size);
      });
    });
    sums += size * size * vec::lanes;
  }
}

// Columns [First, Last) of four tokens among themselves; the decay between two is one running product. sums: P(i, j)
// at i (i + 1) / 2 + j, A(i, j) at 10 + i (i - 1) / 2 + j.
template <bool PerChannel, int First, int Last, class Stride>
KDA_INLINE void neighbours_dots(const float* k, const float* q, const float* alpha, Stride stride,
                                std::ptrdiff_t channels, float* sums) {
  accumulators<4, 4> a, p;
  KDA_UNROLL
  for (int i = 0; i < 4; ++i) {
    KDA_UNROLL
    for (int j = 0; j < 4; ++j) a[i][j] = p[i][j] = broadcast(0.f);
  }
  KDA_NO_UNROLL
  for (std::ptrdiff_t d = 0; d < channels; d += vec::lanes) {
    KDA_UNROLL
    for (int j = First; j < Last; ++j) {
      vec column = load(k + j * stride + d);
      p[j][j] = fma(load(q + j * stride + d), column, p[j][j]);
      KDA_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (i <= j) continue;
        if constexpr (PerChannel) column = column * load(alpha + i * stride + d);
        a[i][j] = fma(load(k + i * stride + d), column, a[i][j]);
        p[i][j] = fma(load(q + i * stride + d), column, p[i][j]);
      }
    }
  }
  KDA_UNROLL
  for (int i = 0; i < 4; ++i) {
    KDA_UNROLL
    for (int j = First; j < Last; ++j) {
      if (j <= i) store(sums + (i * (i + 1) / 2 + j) * vec::lanes, p[i][j]);
      if (j < i) store(sums + (10 + i * (i - 1) / 2 + j) * vec::lanes, a[i][j]);
    }
  }
}

// Columns [j, j + n) of row i from their sums.
template <bool PerChannel, class Products>
KDA_INLINE void place_row(const tile& t, const chunk_scratch<Products>& w, std::ptrdiff_t i, std::ptrdiff_t j,
                          std::ptrdiff_t n, const float* a, const float* p) {
  const float minus_beta = -t.beta[i];
  for (std::ptrdiff_t c = 0; c < n; ++c) {
    const std::ptrdiff_t at = i * chunk_tokens + j + c;
    w.a[at] = minus_beta * (PerChannel ? a[c] : w.decay[at] * a[c]);
    w.p[at] = PerChannel ? p[c] : w.decay[at] * p[c];
  }
}

// stride: t.key_stride.
template <bool PerChannel, class Stride, class Products>
KDA_INLINE void relate_tokens(const tile& t, const chunk_scratch<Products>& w, Stride stride) {
  constexpr std::ptrdiff_t half = chunk_tokens / 2, quarter = chunk_tokens / 4;
  const std::ptrdiff_t n = t.tokens, channels = stride;
  const auto padded = padded_stride(stride);
  if constexpr (PerChannel) {
    if (n == chunk_tokens)
      decay_per_channel<true>(t, w, stride);
    else
      decay_per_channel<false>(t, w, stride);
  } else {
    decay_per_head(t, w);
  }
  float* sums = w.sums + chunk_tokens * chunk_tokens / 2 * vec::lanes;
  if (n > half) {
    if constexpr (PerChannel)
      tokens_dots(w.left_8, w.left_8 + half * padded, w.right_8, padded, half, channels, w.sums);
    else
      tokens_dots(t.k + half * stride, t.q + half * stride, t.k, stride, half, channels, w.sums);
    reduce_lanes(w.sums, 2 * half * half, sums);
    for (std::ptrdiff_t i = half; i < n; ++i)
      place_row<PerChannel>(t, w, i, 0, half, sums + (i - half) * half, sums + i * half);
  }
  for (std::ptrdiff_t b = 0; b + quarter < n; b += half) {
    if constexpr (PerChannel)
      tokens_dots(w.left_4 + b * padded, w.left_4 + (b + quarter) * padded, w.right_4 + b / 2 * padded, padded, quarter,
                  channels, w.sums);
    else
      tokens_dots(t.k + (b + quarter) * stride, t.q + (b + quarter) * stride, t.k + b * stride, stride, quarter,
                  channels, w.sums);
    reduce_lanes(w.sums, 2 * quarter * quarter, sums);
    for (std::ptrdiff_t r = 0; r < quarter && b + quarter + r < n; ++r)
      place_row<PerChannel>(t, w, b + quarter + r, b, quarter, sums + r * quarter, sums + (quarter + r) * quarter);
  }
  for (std::ptrdiff_t b = 0; b < n; b += quarter) {
    const float *k = t.k + b * stride, *q = t.q + b * stride, *alpha = PerChannel ? t.alpha + b * stride : nullptr;
    neighbours_dots<PerChannel, 0, 1>(k, q, alpha, stride, channels, w.sums);
    neighbours_dots<PerChannel, 1, 4>(k, q, alpha, stride, channels, w.sums);
    reduce_lanes(w.sums, chunk_tokens, sums);
    for (std::ptrdiff_t r = 0; r < quarter && b + r < n; ++r) {
      place_row<PerChannel>(t, w, b + r, b, r, sums + 10 + r * (r - 1) / 2, sums + r * (r + 1) / 2);
      w.p[(b + r) * (chunk_tokens + 1)] = sums[r * (r + 1) / 2 + r];
    }
  }
}

// ---- upcoming rows --------------------------------------------------------------------------------------------------

// Walks through the upcoming rows, in step with the products of the chunk: too many lines at a time would take the place
// of the products' own misses.
class fetcher {
 public:
  KDA_INLINE explicit fetcher(const tile& t) : rows_(t.upcoming) {
    for (std::ptrdiff_t i = 0; i < rows_.parts; ++i) lines_ += rows_.part[i].lines * rows_.tokens;
    all_ = 3 * t.tokens * t.key_dim * ((t.width + block_vectors * vec::lanes - 1) / (block_vectors * vec::lanes));
  }
  // A product of `rows` rows and a panel over n steps comes next.
  KDA_INLINE void before(std::ptrdiff_t rows, std::ptrdiff_t n) {
    for (due_ += rows * n * lines_; due_ >= all_; due_ -= all_) {
      if (line_ == end_) {
        if (part_ == rows_.parts) return;
        const upcoming_rows::rows& r = rows_.part[part_];
        line_ = r.data + token_ * r.stride;
        end_ = line_ + r.lines * upcoming_rows::line_bytes;
        if (++token_ == rows_.tokens) token_ = 0, ++part_;
      }
      prefetch(line_);
      line_ += upcoming_rows::line_bytes;
    }
  }

 private:
  const upcoming_rows& rows_;
  std::ptrdiff_t lines_ = 0, all_, due_ = 0, part_ = 0, token_ = 0;
  const char *line_ = nullptr, *end_ = nullptr;
};

// ---- products with a panel of the state -----------------------------------------------------------------------------

// y[i] = S^T x_i, i < n, for a panel s of S. stride: of x, in keys.
template <int Vectors, class Products>
KDA_INLINE void read_state(const tile& t, const typename Products::factor* s, const typename Products::key* x,
                           std::ptrdiff_t stride, std::ptrdiff_t n, float* y, fetcher& next) {
  using factor = typename Products::factor;
  constexpr std::ptrdiff_t terms = Products::terms, most = 32 / terms;
  const std::ptrdiff_t factors = (t.key_dim + terms - 1) / terms;
  in_row_blocks(n, [&]<int Rows>(std::ptrdiff_t i) KDA_INLINE_LAMBDA {
    accumulators<Rows, Vectors> acc;
    KDA_UNROLL
    for (int r = 0; r < Rows; ++r) {
      KDA_UNROLL
      for (int c = 0; c < Vectors; ++c) acc[r][c] = broadcast(0.f);
    }
    for (std::ptrdiff_t d = 0; d < factors; d += most) {
      const std::ptrdiff_t rest = factors - d, steps = rest < most ? rest : most;
      next.before(Rows, steps * terms);
      multiply_add<Rows, Vectors>(reinterpret_cast<const factor*>(x + i * stride) + d, stride / terms, 1,
                                  s + d * Vectors * vec::lanes, steps, acc);
    }
    KDA_UNROLL
    for (int r = 0; r < Rows; ++r) {
      KDA_UNROLL
      for (int c = 0; c < Vectors; ++c) store(y + ((i + r) * Vectors + c) * vec::lanes, acc[r][c]);
    }
  });
}

// u by forward substitution.
template <bool PerChannel, int Vectors, class Products>
KDA_INLINE void solve(const tile& t, const chunk_scratch<Products>& w, std::ptrdiff_t column) {
  const float* since_start = w.decay + chunk_tokens * chunk_tokens;
  in_row_blocks(t.tokens, [&]<int Rows>(std::ptrdiff_t i) KDA_INLINE_LAMBDA {
    accumulators<Rows, Vectors> acc;
    KDA_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const vec beta = broadcast(t.beta[i + r]);
      KDA_UNROLL
      for (int c = 0; c < Vectors; ++c) {
        const vec v = load(t.v + (i + r) * t.v_stride + column + c * vec::lanes);
        const vec y = load(w.y + ((i + r) * Vectors + c) * vec::lanes);
        acc[r][c] = beta * (PerChannel ? v - y : fnma(broadcast(since_start[i + r]), y, v));
      }
    }
    const float* a = w.a + i * chunk_tokens;
    multiply_add<Rows, Vectors>(a, chunk_tokens, 1, w.u, i, acc);
    KDA_UNROLL
    for (int j = 0; j < Rows; ++j) {
      KDA_UNROLL
      for (int c = 0; c < Vectors; ++c) store(w.u + ((i + j) * Vectors + c) * vec::lanes, acc[j][c]);
      KDA_UNROLL
      for (int r = 0; r < Rows; ++r) {
        if (r <= j) continue;
        const vec x = broadcast(a[r * chunk_tokens + i + j]);
        KDA_UNROLL
        for (int c = 0; c < Vectors; ++c) acc[r][c] = fma(x, acc[j][c], acc[r][c]);
      }
    }
  });
}

// out = S^T (q_i D(i, -1)) + P u; then, with per-head decay, u_j takes the decay from j to the chunk's end.
template <bool PerChannel, int Vectors, class Products>
KDA_INLINE void output(const tile& t, const chunk_scratch<Products>& w, float* out) {
  const float *since_start = w.decay + chunk_tokens * chunk_tokens, *to_end = since_start + chunk_tokens;
  in_row_blocks(t.tokens, [&]<int Rows>(std::ptrdiff_t i) KDA_INLINE_LAMBDA {
    accumulators<Rows, Vectors> acc;
    KDA_UNROLL
    for (int r = 0; r < Rows; ++r) {
      KDA_UNROLL
      for (int c = 0; c < Vectors; ++c) {
        const vec y = load(w.y + ((t.tokens + i + r) * Vectors + c) * vec::lanes);
        acc[r][c] = PerChannel ? y : broadcast(since_start[i + r]) * y;
      }
    }
    const float* p = w.p + i * chunk_tokens;
    multiply_add<Rows, Vectors>(p, chunk_tokens, 1, w.u, i, acc);
    KDA_UNROLL
    for (int j = 0; j < Rows; ++j) {
      vectors<Vectors> u;
      KDA_UNROLL
      for (int c = 0; c < Vectors; ++c) u[c] = load(w.u + ((i + j) * Vectors + c) * vec::lanes);
      KDA_UNROLL
      for (int r = 0; r < Rows; ++r) {
        if (r < j) continue;
        const vec x = broadcast(p[r * chunk_tokens + i + j]);
        KDA_UNROLL
        for (int c = 0; c < Vectors; ++c) acc[r][c] = fma(x, u[c], acc[r][c]);
      }
    }
    KDA_UNROLL
    for (int r = 0; r < Rows; ++r) {
      KDA_UNROLL
      for (int c = 0; c < Vectors; ++c) store(out + (i + r) * t.width + c * vec::lanes, acc[r][c]);
    }
  });
  if constexpr (!PerChannel) {
    for (std::ptrdiff_t j = 0; j < t.tokens; ++j) {
      KDA_UNROLL
      for (int c = 0; c < Vectors; ++c) {
        float* u = w.u + (j * Vectors + c) * vec::lanes;
        store(u, broadcast(to_end[j]) * load(u));
      }
    }
  }
}

// S <- keep S + (factor S + column_k^T u).
template <int Vectors, class Products>
KDA_INLINE void update_state(const tile& t, const chunk_scratch<Products>& w, const typename Products::factor* column_k,
                             std::ptrdiff_t stride, const typename Products::factor* u, float* s, fetcher& next) {
  const std::ptrdiff_t factors = (t.tokens + Products::terms - 1) / Products::terms;
  in_row_blocks(t.key_dim, [&]<int Rows>(std::ptrdiff_t d) KDA_INLINE_LAMBDA {
    next.before(Rows, t.tokens);
    float* block = s + d * Vectors * vec::lanes;
    accumulators<Rows, Vectors> acc;
    KDA_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const vec factor = broadcast(w.factor[d + r]);
      KDA_UNROLL
      for (int c = 0; c < Vectors; ++c) acc[r][c] = factor * load(block + (r * Vectors + c) * vec::lanes);
    }
    multiply_add<Rows, Vectors>(column_k + d, 1, stride, u, factors, acc);
    KDA_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const vec keep = broadcast(w.keep[d + r]);
      KDA_UNROLL
      for (int c = 0; c < Vectors; ++c) {
        float* at = block + (r * Vectors + c) * vec::lanes;
        store(at, fma(keep, load(at), acc[r][c]));
      }
    }
  });
}

/// One chunk: the tile's tokens on the state block s, [K, width] in panels; out [tokens, width].
template <bool PerChannel, class Products>
KDA_NOINLINE void chunk(const tile& t, chunk_scratch<Products>& w, float* s, float* out) {
  const std::ptrdiff_t n = t.tokens;
  if (t.key_stride == usual_key_stride)
    relate_tokens<PerChannel>(t, w, std::integral_constant<std::ptrdiff_t, usual_key_stride>());
  else
    relate_tokens<PerChannel>(t, w, t.key_stride);
  if constexpr (rounds<Products> && !PerChannel) round_keys(t, w);
  fetcher next(t);
  in_panels(t.width, [&]<int Vectors>(std::ptrdiff_t column) KDA_INLINE_LAMBDA {
    float* panel = s + t.key_dim * column;
    if constexpr (rounds<Products>) {
      round_rows<Vectors, Products>(panel, t.key_dim, w.state_pairs);
      read_state<Vectors, Products>(t, w.state_pairs, w.x, w.stride, 2 * n, w.y, next);
    } else if constexpr (PerChannel) {
      read_state<Vectors, Products>(t, panel, w.x, w.stride, 2 * n, w.y, next);
    } else {
      read_state<Vectors, Products>(t, panel, t.k, t.key_stride, n, w.y, next);
      read_state<Vectors, Products>(t, panel, t.q, t.key_stride, n, w.y + n * Vectors * vec::lanes, next);
    }
    solve<PerChannel, Vectors>(t, w, column);
    output<PerChannel, Vectors>(t, w, out + column);
    if constexpr (rounds<Products>) {
      round_rows<Vectors, Products>(w.u, n, w.u_pairs);
      update_state<Vectors>(t, w, w.column_k, w.stride, w.u_pairs, panel, next);
    } else {
      update_state<Vectors>(t, w, PerChannel ? w.column_k : t.k, PerChannel ? w.stride : t.key_stride, w.u, panel,
                            next);
    }
  });
}

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
