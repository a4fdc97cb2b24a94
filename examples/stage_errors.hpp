// SPDX-License-Identifier: Apache-2.0
// How far the stages of a bf16 layer are from the double reference. Each stage is compared on the very inputs it had,
// so that an error shows at its own stage and the roundings between stages are no errors.
#pragma once
#include "layer.hpp"

#include <kda/reference.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace engine {

/// A bf16 or float number.
template <class T> double to_double(T x) { return static_cast<double>(kda::to_float(x)); }

/// Differences from the reference. A bf16 output is the rounding of what the kernel had in fp32, so half a unit in its
/// last place is nobody's fault: `unrounded` is what remains of a difference without it.
struct deviation {
  double worst = 0, unrounded = 0, largest = 0;  ///< `largest`: magnitude in the reference

  /// What kda promises of fp32 products: 1e-5 of the largest output, before that is rounded.
  static constexpr double bound = 1e-5;
  [[nodiscard]] bool passed() const { return largest > 0 && unrounded <= bound * largest; }

  void add(float got, double want) { add(to_double(got), want, 0); }
  void add(kda::bf16 got, double want) {
    constexpr double smallest_normal = 0x1p-126;
    const double x = to_double(got), largest_of_both = std::max({std::abs(x), std::abs(want), smallest_normal});
    add(x, want, std::isfinite(x) ? std::ldexp(1, std::ilogb(largest_of_both) - 8) : 0);
  }
  void add(const deviation& d) {
    worst = std::max(worst, d.worst);
    unrounded = std::max(unrounded, d.unrounded);
    largest = std::max(largest, d.largest);
  }

 private:
  void add(double got, double want, double half_ulp) {
    const double difference =
        std::isfinite(got - want) ? std::abs(got - want) : std::numeric_limits<double>::infinity();
    add({difference, std::max(difference - half_ulp, 0.), std::abs(want)});
  }
};

struct stage_deviations {
  deviation projections, conv, core, norm, out;

  void add(const stage_deviations& d) {
    projections.add(d.projections), conv.add(d.conv), core.add(d.core), norm.add(d.norm), out.add(d.out);
  }
};

struct layer_deviations {
  stage_deviations prompt, decode;
  deviation state;

  void add(const layer_deviations& d) { prompt.add(d.prompt), decode.add(d.decode), state.add(d.state); }
};

/// A layer's run over a whole sequence: the first `prompt` tokens by prefill, the others by decode.
struct layer_run {
  const layer_shape& shape;
  const layer_weights<kda::bf16>& weights;
  const activations<kda::bf16>& a;
  const std::vector<float>& state;  ///< at the end, [H, V, K]
  index prompt = 0;
};

/// Every stage of one head. The first halves of the gates and the output have no heads: one of `parts` shares of them.
inline layer_deviations compare_head(const layer_run& run, index head, index part, index parts) {
  namespace reference = kda::reference;
  using reference::values;
  const layer_shape& s = run.shape;
  const layer_weights<kda::bf16>& w = run.weights;
  const activations<kda::bf16>& a = run.a;
  const index T = a.hidden.rows, X = s.hidden, D = s.head_dim, Q = s.Q();
  const index q = head * D, k = Q + q, v = 2 * Q + q;  // first columns
  layer_deviations result;

  const auto rows_of = [](const auto& m, index row, index rows, index column, index columns) {
    values x;
    for (index r = row; r < row + rows; ++r)
      for (index c = column; c < column + columns; ++c) x.push_back(to_double(*m.at(r, c)));
    return x;
  };
  const auto columns_of = [&](const matrix<kda::bf16>& m, index column, index columns) {
    return rows_of(m, 0, T, column, columns);
  };
  const auto compare = [&](deviation stage_deviations::*stage, const matrix<kda::bf16>& got, index column,
                           const values& want) {
    const index columns = std::ssize(want) / T;
    auto next = want.begin();
    for (index t = 0; t < T; ++t) {
      stage_deviations& form = t < run.prompt ? result.prompt : result.decode;
      for (index c = column; c < column + columns; ++c) (form.*stage).add(*got.at(t, c), *next++);
    }
  };

  const auto compare_linear = [&](deviation stage_deviations::*stage, const values& x, const matrix<kda::bf16>& weight,
                                  index row, index rows, const matrix<kda::bf16>& got) {
    const index in = weight.columns;
    compare(stage, got, row, reference::linear(x, rows_of(weight, row, rows, 0, in), T, in, rows));
  };
  constexpr auto projections = &stage_deviations::projections;
  const values hidden = columns_of(a.hidden, 0, X);
  for (const index first : {q, k, v}) compare_linear(projections, hidden, w.in, first, D, a.projected);
  compare_linear(projections, hidden, w.in, s.b() + head, 1, a.projected);
  compare_linear(projections, hidden, w.in, s.f() + part * s.f_rank / parts, s.f_rank / parts, a.projected);
  compare_linear(projections, hidden, w.in, s.g() + part * s.g_rank / parts, s.g_rank / parts, a.projected);
  compare_linear(projections, columns_of(a.projected, s.f(), s.f_rank), w.f_b, q, D, a.f);
  compare_linear(projections, columns_of(a.projected, s.g(), s.g_rank), w.g_b, q, D, a.g);

  for (const index first : {q, k, v}) {
    values window(static_cast<std::size_t>((s.conv_width - 1) * D));
    compare(&stage_deviations::conv, a.qkv, first,
            reference::short_conv(columns_of(a.projected, first, D), rows_of(w.conv, first, D, 0, s.conv_width), {},
                                  window, T, D, s.conv_width, reference::activation_kind::silu));
  }

  const values a_log(1, to_double(w.a_log[static_cast<std::size_t>(head)]));
  const values dt_bias(w.dt_bias.begin() + q, w.dt_bias.begin() + q + D);
  const values g = reference::bounded_gate(columns_of(a.f, q, D), a_log, dt_bias, to_double(s.lower_bound), T, 1, D);
  const values beta = reference::sigmoid(columns_of(a.projected, s.b() + head, 1), 1);
  values state(static_cast<std::size_t>(D * D));
  compare(
      &stage_deviations::core, a.core, q,
      reference::recurrent(columns_of(a.qkv, q, D), columns_of(a.qkv, k, D), columns_of(a.qkv, v, D), g, beta, state,
                           {.tokens = T,
                            .key_heads = 1,
                            .value_heads = 1,
                            .key_dim = D,
                            .value_dim = D,
                            .decay = reference::decay_kind::per_channel,
                            .head_map = reference::head_map_kind::interleaved},
                           1 / std::sqrt(static_cast<double>(D))));
  for (index row = 0; row < D; ++row)
    for (index column = 0; column < D; ++column)
      result.state.add(run.state[static_cast<std::size_t>((q + column) * D + row)],
                       state[static_cast<std::size_t>(row * D + column)]);

  compare(
      &stage_deviations::norm, a.normed, q,
      reference::rms_norm_gated(columns_of(a.core, q, D), columns_of(a.g, q, D), values(w.norm.begin(), w.norm.end()),
                                T, D, to_double(s.rms_eps), reference::activation_kind::sigmoid));

  compare_linear(&stage_deviations::out, columns_of(a.normed, 0, Q), w.out, head * X / s.heads, X / s.heads, a.y);
  return result;
}

/// All stages of some heads against the reference.
inline layer_deviations compare_heads(thread_pool& pool, const layer_run& run, const std::vector<index>& heads) {
  std::vector<layer_deviations> each(heads.size());
  const index parts = std::ssize(heads);
  pool.for_each(parts, [&](index i) {
    each[static_cast<std::size_t>(i)] = compare_head(run, heads[static_cast<std::size_t>(i)], i, parts);
  });
  layer_deviations all;
  for (const layer_deviations& d : each) all.add(d);
  return all;
}

}
