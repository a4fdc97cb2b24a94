// SPDX-License-Identifier: Apache-2.0
// The definition of every operation of kda: plain loops in double precision, with no thought for speed.
//
// Opt-in: kda/kda.hpp does not include it, and it includes no other header of kda. Include it from code compiled with
// baseline flags only, as its inline functions may be merged across objects.
//
// T tokens, H query and key heads, HV value heads, K and V the head widths of keys and values, X hidden size,
// W convolution width, C convolution channels. Every array is dense and row-major, its shape given as [outer, ...,
// inner]. Sizes that disagree, and values outside an operation's domain, throw std::invalid_argument naming the
// argument; compiled without exceptions they print the same sentence and abort. Nothing has been written by then.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <limits>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace kda::inline v0::reference {

using values = std::vector<double>;
using input = std::span<const double>;
using in_out = std::span<double>;
using extent = std::ptrdiff_t;  // sizes and indices

namespace detail {

[[noreturn]] inline void refuse(const std::string& sentence) {
#ifdef __cpp_exceptions
  throw std::invalid_argument("kda::reference: " + sentence);
#else
  std::fprintf(stderr, "kda::reference: %s\n", sentence.c_str());
  std::abort();
#endif
}

inline void require(bool holds, const char* sentence) {
  if (!holds) refuse(sentence);
}

inline void expect(const char* name, input x, std::initializer_list<extent> shape) {
  extent size = 1;
  std::string wanted;
  for (const extent n : shape) {
    if (n < 0) refuse(std::string(name) + " has a negative extent in its shape");
    size *= n;
    wanted += (wanted.empty() ? "" : " x ") + std::to_string(n);
  }
  if (std::ssize(x) != size)
    refuse(std::string(name) + " holds " + std::to_string(x.size()) + " values, not " + wanted);
}

inline values zeros(extent n) { return values(static_cast<std::size_t>(n)); }

/// Row `i` of an array whose rows have `width` elements.
inline const double* row(input x, extent i, extent width) { return x.data() + i * width; }
inline double* row(in_out x, extent i, extent width) { return x.data() + i * width; }
inline double* row(values& x, extent i, extent width) { return x.data() + i * width; }

/// Brings infinities back to the largest float, so that no infinity meets a zero or its opposite; NaN stays NaN.
inline double saturate(double x) {
  constexpr auto largest = static_cast<double>(std::numeric_limits<float>::max());
  return x > largest ? largest : x < -largest ? -largest : x;
}

}  // namespace detail

/// A member that has no default: leaving it out of an aggregate does not compile.
template <class T> struct required {
  constexpr required(T given) : value(given) {}
  constexpr operator T() const { return value; }
  T value;
};

// ---------------------------------------------------------------------------------------------------------------------
// Activations

enum class activation_kind { none, sigmoid, silu };

/// 1 / (1 + exp(-z)), from whichever exponential cannot overflow.
inline double sigmoid(double z) {
  const double e = std::exp(-std::abs(z));
  return z >= 0 ? 1 / (1 + e) : e / (1 + e);
}

/// log(1 + exp(z)), without overflow and without losing a tiny result.
inline double softplus(double z) { return (z > 0 ? z : 0) + std::log1p(std::exp(-std::abs(z))); }

inline double activate(activation_kind kind, double z) {
  switch (kind) {
    case activation_kind::none:
      return z;
    case activation_kind::sigmoid:
      return sigmoid(z);
    case activation_kind::silu:
      return z * sigmoid(z);
  }
  detail::refuse("activation is not one of its enumerators");
}

/// beta = factor * sigmoid(logit), element by element; factor is 1, or 2 where negative eigenvalues are allowed.
inline values sigmoid(input logits, double factor) {
  values beta(logits.begin(), logits.end());
  for (double& b : beta) b = factor * sigmoid(b);
  return beta;
}

// ---------------------------------------------------------------------------------------------------------------------
// Linear projection and l2 norm

/// y = x weight^T.  x [rows, in], weight [out, in], y [rows, out].
inline values linear(input x, input weight, extent rows, extent in, extent out) {
  detail::expect("x", x, {rows, in});
  detail::expect("weight", weight, {out, in});
  values y = detail::zeros(rows * out);
  for (extent r = 0; r < rows; ++r)
    for (extent o = 0; o < out; ++o) {
      double sum = 0;
      for (extent i = 0; i < in; ++i) sum += detail::row(x, r, in)[i] * detail::row(weight, o, in)[i];
      detail::row(y, r, out)[o] = sum;
    }
  return y;
}

/// y = scale * x / sqrt(sum(x^2) + eps), row by row; eps is inside the root, on the sum.  x, y [rows, dim].
inline values l2norm_rows(input x, extent rows, extent dim, double eps, double scale) {
  detail::expect("x", x, {rows, dim});
  detail::require(eps >= 0, "eps is negative");
  values y(x.begin(), x.end());
  for (extent r = 0; r < rows; ++r) {
    double* y_r = detail::row(y, r, dim);
    double sum = 0;
    for (extent i = 0; i < dim; ++i) sum += y_r[i] * y_r[i];
    for (extent i = 0; i < dim; ++i) y_r[i] = scale * y_r[i] / std::sqrt(sum + eps);
  }
  return y;
}

/// The eps of the q and k norms, which every implementation of the field has hard-coded.
inline constexpr double qk_eps = 1e-6;

// ---------------------------------------------------------------------------------------------------------------------
// Gate laws: from the forget projection x to the log decay g <= 0

namespace detail {

// g[t,h,d] = law(exp(A_log[h]), x[t,h,d] + dt_bias[h,d]), both arguments finite or NaN.
template <class Law>
values gate(input x, input a_log, input dt_bias, extent tokens, extent heads, extent dim, Law law) {
  expect("x", x, {tokens, heads, dim});
  if (!dt_bias.empty()) expect("dt_bias", dt_bias, {heads, dim});
  require(a_log.empty() || std::ssize(a_log) >= heads, "a_log has fewer values than there are heads");
  values g = zeros(tokens * heads * dim);
  for (extent t = 0; t < tokens; ++t)
    for (extent h = 0; h < heads; ++h)
      for (extent d = 0; d < dim; ++d) {
        const double rate = a_log.empty() ? 1 : saturate(std::exp(a_log.data()[h]));
        const double bias = dt_bias.empty() ? 0 : row(dt_bias, h, dim)[d];
        const double z = saturate(saturate(row(x, t * heads + h, dim)[d]) + saturate(bias));
        row(g, t * heads + h, dim)[d] = law(rate, z);
      }
  return g;
}

}  // namespace detail

/// Bounded KDA gate: g = lower_bound * sigmoid(exp(A_log[h]) * (x + dt_bias[h,d])), between lower_bound and 0.
/// x, g [T, H, D], H counting value heads; a_log [H] or longer, or empty for a multiplier of 1; dt_bias [H, D], or
/// empty for zero. lower_bound is finite and below 0. With D = 1 it is the same law per head.
inline values bounded_gate(input x, input a_log, input dt_bias, double lower_bound, extent tokens, extent heads,
                           extent dim) {
  detail::require(std::isfinite(lower_bound) && lower_bound < 0, "lower_bound is not a finite number below zero");
  return detail::gate(x, a_log, dt_bias, tokens, heads, dim,
                      [&](double rate, double z) { return lower_bound * sigmoid(rate * z); });
}

/// Unbounded KDA gate: g = -exp(A_log[h]) * softplus(x + dt_bias[h,d]).
/// Shapes as bounded_gate; a_log must be given.
inline values unbounded_gate(input x, input a_log, input dt_bias, extent tokens, extent heads, extent dim) {
  detail::require(!a_log.empty(), "a_log is empty, which only the bounded gate allows");
  return detail::gate(x, a_log, dt_bias, tokens, heads, dim, [](double rate, double z) { return -rate * softplus(z); });
}

/// GDN gate: g = -exp(A_log[h]) * softplus(a + dt_bias[h]).  a, g [T, HV]; a_log [HV] or longer; dt_bias [HV] or empty.
inline values unbounded_gdn_gate(input a, input a_log, input dt_bias, extent tokens, extent value_heads) {
  return unbounded_gate(a, a_log, dt_bias, tokens, value_heads, 1);
}

// ---------------------------------------------------------------------------------------------------------------------
// Short convolution

/// Depthwise causal convolution: y[t,c] = activation(bias[c] + sum over j < W of weight[c,j] * x[t-(W-1)+j, c]), so
/// that weight[c,W-1] meets the current token.  x, y [T, C]; weight [C, W]; bias [C] or empty. state [W-1, C] holds the
/// raw inputs before x, oldest first, and afterwards those before the next call, for any T.
inline values short_conv(input x, input weight, input bias, in_out state, extent tokens, extent channels, extent width,
                         activation_kind activation) {
  detail::require(width >= 1, "width is below one");
  detail::expect("x", x, {tokens, channels});
  detail::expect("weight", weight, {channels, width});
  if (!bias.empty()) detail::expect("bias", bias, {channels});
  detail::expect("state", state, {width - 1, channels});

  values window(state.begin(), state.end());  // [W-1 + T, C]
  window.insert(window.end(), x.begin(), x.end());
  values y = detail::zeros(tokens * channels);
  for (extent t = 0; t < tokens; ++t)
    for (extent c = 0; c < channels; ++c) {
      double sum = bias.empty() ? 0 : bias.data()[c];
      for (extent j = 0; j < width; ++j)
        sum += detail::row(weight, c, width)[j] * detail::row(window, t + j, channels)[c];
      detail::row(y, t, channels)[c] = activate(activation, sum);
    }
  std::copy(window.end() - std::ssize(state), window.end(), state.begin());
  return y;
}

// ---------------------------------------------------------------------------------------------------------------------
// The delta rule

enum class decay_kind { per_channel, per_head, none };
enum class head_map_kind { interleaved, tiled };

/// q, k [T, H, K]; v, o [T, HV, V]; beta [T, HV]; state [HV, K, V], whose element h, d, c is at (h * K + d) * V + c;
/// g, the log decay, [T, HV, K] per channel (KDA), [T, HV] per head (GDN), empty for none.
struct delta_shape {
  extent tokens, key_heads, value_heads, key_dim, value_dim;
  required<decay_kind> decay;
  required<head_map_kind> head_map;
};

/// The query and key head of value head h.
inline extent key_head(const delta_shape& shape, extent h) {
  const extent repeats = shape.value_heads / shape.key_heads;
  return shape.head_map == head_map_kind::interleaved ? h / repeats : h % shape.key_heads;
}

/// g at token t, value head h, key channel d.
inline double log_decay(input g, const delta_shape& shape, extent t, extent h, extent d) {
  switch (shape.decay) {
    case decay_kind::per_channel:
      return detail::row(g, t * shape.value_heads + h, shape.key_dim)[d];
    case decay_kind::per_head:
      return detail::row(g, t, shape.value_heads)[h];
    case decay_kind::none:
      return 0;
  }
  detail::refuse("decay is not one of its enumerators");
}

namespace detail {

inline void check(input q, input k, input v, input g, input beta, input state, const delta_shape& shape) {
  const extent T = shape.tokens, H = shape.key_heads, HV = shape.value_heads, K = shape.key_dim, V = shape.value_dim;
  require(H >= 1, "key_heads is below one");
  require(HV >= 1 && HV % H == 0, "value_heads is not a multiple of key_heads");
  require(K >= 1, "key_dim is below one");
  require(V >= 1, "value_dim is below one");
  expect("q", q, {T, H, K});
  expect("k", k, {T, H, K});
  expect("v", v, {T, HV, V});
  if (shape.decay == decay_kind::per_channel) expect("g", g, {T, HV, K});
  if (shape.decay == decay_kind::per_head) expect("g", g, {T, HV});
  if (shape.decay == decay_kind::none) expect("g", g, {0});
  expect("beta", beta, {T, HV});
  expect("state", state, {HV, K, V});
}

}  // namespace detail

/// The recurrent form, q and k taken as they come. For each value head and each token in turn, S being K x V:
///     S <- diag(exp g) S                 decay comes first and scales the rows
///     delta = beta (v - S^T k)           the error of what S recalls, after the decay
///     S <- S + k delta^T
///     o = S^T (scale q)                  from the updated S
/// Returns o; `state` holds S before the first token and, on return, after the last.
inline values recurrent_prenorm(input q, input k, input v, input g, input beta, in_out state, const delta_shape& shape,
                                double scale) {
  detail::check(q, k, v, g, beta, state, shape);
  const extent T = shape.tokens, H = shape.key_heads, HV = shape.value_heads, K = shape.key_dim, V = shape.value_dim;
  values o = detail::zeros(T * HV * V);
  for (extent h = 0; h < HV; ++h)
    for (extent t = 0; t < T; ++t) {
      const double* q_t = detail::row(q, t * H + key_head(shape, h), K);
      const double* k_t = detail::row(k, t * H + key_head(shape, h), K);
      const double* v_t = detail::row(v, t * HV + h, V);
      double* o_t = detail::row(o, t * HV + h, V);
      double* S = detail::row(state, h, K * V);

      for (extent d = 0; d < K; ++d) {
        const double alpha = std::exp(log_decay(g, shape, t, h, d));
        for (extent c = 0; c < V; ++c) S[d * V + c] *= alpha;
      }
      values delta(v_t, v_t + V);
      for (extent d = 0; d < K; ++d)
        for (extent c = 0; c < V; ++c) delta.data()[c] -= S[d * V + c] * k_t[d];
      for (double& e : delta) e *= detail::row(beta, t, HV)[h];

      for (extent d = 0; d < K; ++d)
        for (extent c = 0; c < V; ++c) {
          S[d * V + c] += k_t[d] * delta.data()[c];
          o_t[c] += S[d * V + c] * scale * q_t[d];
        }
    }
  return o;
}

/// The recurrent form with q and k l2-normalised first, eps 1e-6. The scale is the caller's, usually K^-1/2.
inline values recurrent(input q, input k, input v, input g, input beta, in_out state, const delta_shape& shape,
                        double scale) {
  detail::check(q, k, v, g, beta, state, shape);
  const extent rows = shape.tokens * shape.key_heads;
  return recurrent_prenorm(l2norm_rows(q, rows, shape.key_dim, qk_eps, 1),
                           l2norm_rows(k, rows, shape.key_dim, qk_eps, 1), v, g, beta, state, shape, scale);
}

/// The chunked form, q and k taken as they come: equal to the recurrent one in real arithmetic, whatever the chunk
/// size. Within a chunk, D(j,i) is exp of the sum of g over the tokens (j, i], and D(,i) over all of them up to and
/// with i:
///     L[i,j] = beta_i sum_d k_i[d] k_j[d] D(j,i)[d]       j < i
///     P[i,j] = scale sum_d q_i[d] k_j[d] D(j,i)[d]        j <= i
///     (I + L) U = beta (v - (k D(,i)) S)                  solved by forward substitution; rows of U are the deltas
///     o_i = (scale q_i D(,i)) S + sum_j P[i,j] U_j
///     S <- diag(D(,last)) S + sum_j (k_j D(j,last)) U_j^T
/// D is always a sum over its own tokens: as a difference of running sums it would be NaN after a g of minus infinity.
inline values chunked_prenorm(input q, input k, input v, input g, input beta, in_out state, const delta_shape& shape,
                              double scale, extent chunk_size) {
  detail::check(q, k, v, g, beta, state, shape);
  detail::require(chunk_size >= 1, "chunk_size is below one");
  const extent T = shape.tokens, H = shape.key_heads, HV = shape.value_heads, K = shape.key_dim, V = shape.value_dim;
  values o = detail::zeros(T * HV * V);
  for (extent h = 0; h < HV; ++h)
    for (extent begin = 0; begin < T; begin += chunk_size) {
      const extent end = begin + std::min(chunk_size, T - begin);
      const extent entry = begin - 1;  // D(entry, i) is D(,i)
      double* S = detail::row(state, h, K * V);
      values U = detail::zeros((end - begin) * V);

      const auto query = [&](extent i) { return detail::row(q, i * H + key_head(shape, h), K); };
      const auto key = [&](extent i) { return detail::row(k, i * H + key_head(shape, h), K); };
      const auto delta = [&](extent i) { return detail::row(U, i - begin, V); };
      const auto D = [&](extent j, extent i, extent d) {
        double sum = 0;
        for (extent t = j + 1; t <= i; ++t) sum += log_decay(g, shape, t, h, d);
        return std::exp(sum);
      };
      const auto decayed_dot = [&](const double* a, extent j, extent i) {
        double sum = 0;
        for (extent d = 0; d < K; ++d) sum += a[d] * key(j)[d] * D(j, i, d);
        return sum;
      };

      for (extent i = begin; i < end; ++i) {
        const double beta_i = detail::row(beta, i, HV)[h];
        double* U_i = delta(i);
        double* o_i = detail::row(o, i * HV + h, V);
        for (extent c = 0; c < V; ++c) U_i[c] = beta_i * detail::row(v, i * HV + h, V)[c];
        for (extent d = 0; d < K; ++d) {
          const double D_i = D(entry, i, d);
          for (extent c = 0; c < V; ++c) {
            U_i[c] -= beta_i * key(i)[d] * D_i * S[d * V + c];
            o_i[c] += scale * query(i)[d] * D_i * S[d * V + c];
          }
        }
        for (extent j = begin; j < i; ++j) {
          const double L_ij = beta_i * decayed_dot(key(i), j, i);
          for (extent c = 0; c < V; ++c) U_i[c] -= L_ij * delta(j)[c];
        }
        for (extent j = begin; j <= i; ++j) {
          const double P_ij = scale * decayed_dot(query(i), j, i);
          for (extent c = 0; c < V; ++c) o_i[c] += P_ij * delta(j)[c];
        }
      }

      for (extent d = 0; d < K; ++d) {
        const double D_last = D(entry, end - 1, d);
        for (extent c = 0; c < V; ++c) S[d * V + c] *= D_last;
        for (extent j = begin; j < end; ++j) {
          const double k_decayed = key(j)[d] * D(j, end - 1, d);
          for (extent c = 0; c < V; ++c) S[d * V + c] += k_decayed * delta(j)[c];
        }
      }
    }
  return o;
}

/// The chunked form with q and k l2-normalised first, eps 1e-6.
inline values chunked(input q, input k, input v, input g, input beta, in_out state, const delta_shape& shape,
                      double scale, extent chunk_size) {
  detail::check(q, k, v, g, beta, state, shape);
  const extent rows = shape.tokens * shape.key_heads;
  return chunked_prenorm(l2norm_rows(q, rows, shape.key_dim, qk_eps, 1), l2norm_rows(k, rows, shape.key_dim, qk_eps, 1),
                         v, g, beta, state, shape, scale, chunk_size);
}

// ---------------------------------------------------------------------------------------------------------------------
// Gated RMS norm

/// y = x / sqrt(mean(x^2) + eps) * weight * activation(gate), row by row; eps is inside the root, on the mean.
/// x, gate, y [rows, dim]; weight [dim].
inline values rms_norm_gated(input x, input gate, input weight, extent rows, extent dim, double eps,
                             activation_kind activation) {
  detail::expect("x", x, {rows, dim});
  detail::expect("gate", gate, {rows, dim});
  detail::expect("weight", weight, {dim});
  detail::require(eps >= 0, "eps is negative");
  values y(x.begin(), x.end());
  for (extent r = 0; r < rows; ++r) {
    double* y_r = detail::row(y, r, dim);
    double sum = 0;
    for (extent i = 0; i < dim; ++i) sum += y_r[i] * y_r[i];
    const double root = std::sqrt(sum / static_cast<double>(dim) + eps);
    for (extent i = 0; i < dim; ++i)
      y_r[i] = y_r[i] / root * weight.data()[i] * activate(activation, detail::row(gate, r, dim)[i]);
  }
  return y;
}

// ---------------------------------------------------------------------------------------------------------------------
// A whole layer

enum class gate_kind { bounded, softplus };

struct layer_dims {
  extent hidden, key_heads, value_heads, key_dim, value_dim;
  required<decay_kind> decay;  // per_channel for KDA, per_head for GDN
  required<head_map_kind> head_map;
  required<double> scale;  // of q, usually K^-1/2
  required<gate_kind> gate;
  double lower_bound = 0;  // not a value: the bounded gate refuses 0, and the softplus gate everything else
  extent conv_width = 0;   // likewise refused by the layer from hidden states; the other has no convolution
  required<activation_kind> conv_activation;
  required<activation_kind> norm_activation;
  required<double> rms_eps;
};

/// Weights as the checkpoints hold them, [out, in]; Q = H*K, R = HV*V, F = HV*K for per_channel and HV for per_head.
/// Of each group of alternatives exactly one is given, the rest left empty.
struct layer_weights {
  input q_proj = {}, k_proj = {}, v_proj = {};  // [Q, X], [Q, X], [R, X] ...
  input qkv_proj = {};                          // ... or [2Q + R, X]; both unread by the layer after the convolution
  input conv_weight = {};                       // [2Q + R, W], channels in q, k, v order; likewise
  input f_a = {}, f_b = {};                     // forget gate: low rank [rank, X], [F, rank] ...
  input f = {};                                 // ... or full rank [F, X] ...
  input a_proj = {};                            // ... or the same under GDN's name
  input a_log = {};                             // [HV] or longer
  input dt_bias = {};                           // [F]
  input b_proj = {};                            // [HV, X], logits of beta
  input g_a = {}, g_b = {};                     // output gate: low rank [rank, X], [R, rank] ...
  input g = {};                                 // ... or full rank [R, X] ...
  input z_proj = {};                            // ... or the same under GDN's name
  input norm_weight = {};                       // [V]
  input o_proj = {};                            // [X, R]
};

/// The value of a layer's `chunk_size` that selects the recurrent core.
inline constexpr extent token_by_token = 0;

namespace detail {

struct named {
  const char* name;
  input weight;
};

// x through a and then b, or through one full-rank weight, which KDA and GDN name differently: one form must be given.
inline values project(input x, named a, named b, named full, named gdn, extent rows, extent in, extent out) {
  const bool low_rank = !a.weight.empty() || !b.weight.empty();
  if (low_rank + !full.weight.empty() + !gdn.weight.empty() != 1)
    refuse(std::string("give exactly one of ") + a.name + " with " + b.name + ", " + full.name + ", " + gdn.name);
  if (low_rank) {
    const extent rank = std::max<extent>(std::ssize(a.weight) / in, 1);
    expect(a.name, a.weight, {rank, in});
    expect(b.name, b.weight, {out, rank});
    return linear(linear(x, a.weight, rows, in, rank), b.weight, rows, rank, out);
  }
  const named one = full.weight.empty() ? gdn : full;
  expect(one.name, one.weight, {out, in});
  return linear(x, one.weight, rows, in, out);
}

// Columns [first, first + width) of x [rows, columns].
inline values columns(const values& x, extent rows, extent columns, extent first, extent width) {
  values y;
  for (extent r = 0; r < rows; ++r) y.insert(y.end(), row(x, r, columns) + first, row(x, r, columns) + first + width);
  return y;
}

}  // namespace detail

/// The layer from q, k [T, H, K] and v [T, HV, V] as they leave the convolution, and hidden states [T, X]:
///     g = gate(f)    beta = sigmoid(b)    o = delta rule    y = o_proj(norm(o) * activation(gate))
/// f, b and the output gate being projections of the hidden states. Returns y [T, X]; state [HV, K, V] goes in and out.
inline values reference_layer(input q, input k, input v, input hidden_states, in_out state,
                              const layer_weights& weights, const layer_dims& dims, extent tokens, extent chunk_size) {
  const extent T = tokens, X = dims.hidden, HV = dims.value_heads, V = dims.value_dim;
  const delta_shape shape{T, dims.key_heads, HV, dims.key_dim, V, dims.decay, dims.head_map};
  detail::require(X >= 1, "hidden is below one");
  detail::require(dims.decay != decay_kind::none, "decay is none, and a layer has a gate");
  detail::require(dims.gate == gate_kind::bounded || dims.lower_bound == 0,
                  "lower_bound is given to the softplus gate");
  detail::require(dims.rms_eps >= 0, "rms_eps is negative");
  detail::expect("hidden_states", hidden_states, {T, X});
  detail::expect("b_proj", weights.b_proj, {HV, X});
  detail::expect("norm_weight", weights.norm_weight, {V});
  detail::expect("o_proj", weights.o_proj, {X, HV * V});

  const extent D = dims.decay == decay_kind::per_channel ? dims.key_dim : 1;
  const values f = detail::project(hidden_states, {"f_a", weights.f_a}, {"f_b", weights.f_b}, {"f", weights.f},
                                   {"a_proj", weights.a_proj}, T, X, HV * D);
  detail::expect("dt_bias", weights.dt_bias, {HV, D});
  const values g = dims.gate == gate_kind::bounded
                       ? bounded_gate(f, weights.a_log, weights.dt_bias, dims.lower_bound, T, HV, D)
                       : unbounded_gate(f, weights.a_log, weights.dt_bias, T, HV, D);
  const values beta = sigmoid(linear(hidden_states, weights.b_proj, T, X, HV), 1);
  const values gate = detail::project(hidden_states, {"g_a", weights.g_a}, {"g_b", weights.g_b}, {"g", weights.g},
                                      {"z_proj", weights.z_proj}, T, X, HV * V);

  const values o = chunk_size == token_by_token ? recurrent(q, k, v, g, beta, state, shape, dims.scale)
                                                : chunked(q, k, v, g, beta, state, shape, dims.scale, chunk_size);
  const values normed = rms_norm_gated(o, gate, weights.norm_weight, T * HV, V, dims.rms_eps, dims.norm_activation);
  return linear(normed, weights.o_proj, T, HV * V, X);
}

/// The layer from hidden states [T, X]: q|k|v projections, short convolution, then the layer above. Returns y [T, X];
/// conv_state [W-1, 2Q + R] and state [HV, K, V] go in and out.
inline values reference_layer(input hidden_states, in_out conv_state, in_out state, const layer_weights& weights,
                              const layer_dims& dims, extent tokens, extent chunk_size) {
  const extent T = tokens, X = dims.hidden;
  const extent Q = dims.key_heads * dims.key_dim, R = dims.value_heads * dims.value_dim, channels = 2 * Q + R;
  const bool separate = !weights.q_proj.empty() || !weights.k_proj.empty() || !weights.v_proj.empty();
  detail::require(separate == weights.qkv_proj.empty(),
                  "give exactly one of qkv_proj, and q_proj with k_proj and v_proj");
  values stacked(weights.qkv_proj.begin(), weights.qkv_proj.end());
  if (separate) {
    detail::expect("q_proj", weights.q_proj, {Q, X});
    detail::expect("k_proj", weights.k_proj, {Q, X});
    detail::expect("v_proj", weights.v_proj, {R, X});
    for (const input part : {weights.q_proj, weights.k_proj, weights.v_proj})
      stacked.insert(stacked.end(), part.begin(), part.end());
  }
  detail::expect("hidden_states", hidden_states, {T, X});
  detail::expect("qkv_proj", stacked, {channels, X});
  detail::expect("conv_weight", weights.conv_weight, {channels, dims.conv_width});
  detail::expect("conv_state", conv_state, {dims.conv_width - 1, channels});

  values window(conv_state.begin(), conv_state.end());  // written back only when nothing was refused
  const values qkv = short_conv(linear(hidden_states, stacked, T, X, channels), weights.conv_weight, {}, window, T,
                                channels, dims.conv_width, dims.conv_activation);
  const values y =
      reference_layer(detail::columns(qkv, T, channels, 0, Q), detail::columns(qkv, T, channels, Q, Q),
                      detail::columns(qkv, T, channels, 2 * Q, R), hidden_states, state, weights, dims, T, chunk_size);
  std::copy(window.begin(), window.end(), conv_state.begin());
  return y;
}

}  // namespace kda::inline v0::reference
