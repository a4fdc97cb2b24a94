// SPDX-License-Identifier: Apache-2.0
// Gate laws and beta: from an engine's logits to the natural logarithm g of the decay and the strength beta.
//
//   bounded    g = lower_bound sigmoid(a z)     z = x + dt_bias;  a = exp(A_log), at most the largest float
//   softplus   g = -a softplus(z)               softplus(z) = max(z, 0) + log1p(exp(-|z|))
//   beta       sigmoid(b), 2 sigmoid(b)
//
// Every input but NaN gives a g in [-inf, 0] that fits its limit: x, dt_bias and z are held within the finite floats,
// so that neither inf - inf nor 0 * inf arises. For z <= 0 the softplus law is taken as exp(A_log + z) log1p(u) / u
// with u = exp(z): a huge a times a tiny softplus neither overflows nor vanishes.
#pragma once
#include "args.hpp"
#include "simd/math.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

inline constexpr float log_of_largest_float = 88.7228394f;

/// The law for one value head.
template <class Law> struct gate_law;

template <> struct gate_law<gate::bounded> {
  vec lower_bound, minus_multiplier;
  KDA_INLINE gate_law(const bounded_gate_params& p, std::ptrdiff_t head)
      : lower_bound(broadcast(p.lower_bound.value)),
        minus_multiplier(broadcast(0.f) - exp(broadcast(p.a_log.data != nullptr ? p.a_log.data[head] : 0.f))) {}
  [[nodiscard]] KDA_INLINE vec operator()(vec z) const { return over_one_plus_exp(lower_bound, minus_multiplier * z); }
};

template <> struct gate_law<gate::softplus> {
  vec a_log, minus_multiplier;
  KDA_INLINE gate_law(const softplus_gate_params& p, std::ptrdiff_t head)
      : a_log(min(broadcast(log_of_largest_float), broadcast(p.a_log.data[head]))),
        minus_multiplier(broadcast(0.f) - exp(a_log)) {}
  [[nodiscard]] KDA_INLINE vec operator()(vec z) const {
    const vec zero = broadcast(0.f);
    const vec u = exp_nonpositive(min(zero - z, z));
    const vec ratio = log1p_ratio(u);
    const vec above = minus_multiplier * fma(u, ratio, z);
    const vec below = (zero - exp(a_log + z)) * ratio;
    return select(less(zero, z), above, below);
  }
};

template <> struct gate_law<gate::given> {
  KDA_INLINE gate_law(const no_gate_params&, std::ptrdiff_t) {}
  [[nodiscard]] KDA_INLINE vec operator()(vec z) const { return z; }
};

// x + dt_bias within the finite floats; a given log decay passes untouched.
template <class Law> KDA_INLINE vec gate_input(vec x, vec dt_bias) {
  if constexpr (std::is_same_v<Law, gate::given>) {
    return x;
  } else {
    constexpr float most = largest_float;
    return clamp(clamp(x, -most, most) + clamp(dt_bias, -most, most), -most, most);
  }
}

template <class Params> KDA_INLINE const float* dt_bias_of(const Params& p) {
  if constexpr (requires { p.dt_bias; })
    return p.dt_bias.data;
  else
    return nullptr;
}

/// g[d], d < K, for one token and head: logits x[K], dt_bias[K] or null. Writes whole vectors: g has K rounded up to
/// lanes; what stands past K is finite if the head's parameters are.
template <class Law, class T>
KDA_INLINE void gate_channels(const gate_law<Law>& law, const T* x, const float* dt_bias, std::ptrdiff_t K, float* g) {
  const std::ptrdiff_t whole = K / vec::lanes * vec::lanes;
  // Where x + dt_bias is finite in the whole row, as it is in any sound model, there is nothing to hold within bounds.
  vec strange = broadcast(0.f);
  for (std::ptrdiff_t d = 0; d < whole; d += vec::lanes) {
    const vec z = dt_bias == nullptr ? load(x + d) : load(x + d) + load(dt_bias + d);
    strange = strange + (z - z);
    store(g + d, law(z));
  }
  std::ptrdiff_t d = std::is_same_v<Law, gate::given> || reduce_add(strange) == 0.f ? whole : 0;
  for (; d < K; d += vec::lanes) {
    const std::ptrdiff_t n = K - d;
    const vec bias = dt_bias == nullptr ? broadcast(0.f) : n >= vec::lanes ? load(dt_bias + d) : load(dt_bias + d, n);
    store(g + d, law(gate_input<Law>(n >= vec::lanes ? load(x + d) : load(x + d, n), bias)));
  }
}

/// g[t], t < n <= chunk_tokens, for one head with per-head decay; x[t * stride].
template <class Law, class T>
KDA_INLINE void gate_tokens(const gate_law<Law>& law, const T* x, std::ptrdiff_t stride, float dt_bias,
                            std::ptrdiff_t n, float* g) {
  for (std::ptrdiff_t t = 0; t < chunk_tokens; ++t) g[t] = t < n ? to_float(x[t * stride]) : 0.f;
  for (std::ptrdiff_t t = 0; t < chunk_tokens; t += vec::lanes)
    store(g + t, law(gate_input<Law>(load(g + t), broadcast(dt_bias))));
}

/// beta[t], t < n <= chunk_tokens, for one head; b[t * stride].
template <class Form, class T>
KDA_INLINE void beta_tokens(const T* b, std::ptrdiff_t stride, std::ptrdiff_t n, float* beta) {
  for (std::ptrdiff_t t = 0; t < chunk_tokens; ++t) beta[t] = t < n ? to_float(b[t * stride]) : 0.f;
  if constexpr (!std::is_same_v<Form, beta::given>) {
    for (std::ptrdiff_t t = 0; t < chunk_tokens; t += vec::lanes) {
      const vec s = sigmoid(load(beta + t));
      store(beta + t, std::is_same_v<Form, beta::logits_doubled> ? s + s : s);
    }
  }
}

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
