// SPDX-License-Identifier: Apache-2.0
// How far the stages of a bf16 layer are from the double reference. Each stage is compared on the very inputs it had,
// so that an error shows at its own stage and the roundings between stages are no errors.
#pragma once
#include <algorithm>
#include <array>
#include <cmath>
#include <kda/reference.hpp>
#include <limits>
#include <vector>

#include "layer.hpp"

namespace engine {

/// Differences from the reference. A bf16 output is the rounding of what the kernel had in fp32, so half a unit in its
/// last place is nobody's fault: `unrounded` is what remains of a difference without it.
struct deviation {
  double worst = 0, unrounded = 0, largest = 0;  ///< `largest`: magnitude in the reference

  /// What kda promises of fp32 products: 1e-5 of the largest output, before that is rounded.
  static constexpr double bound = 1e-5;
  [[nodiscard]] bool passed() const { return largest > 0 && unrounded <= bound * largest; }

  void add(float got, double want) { add(got, want, 0); }
  void add(kda::bf16 got, double want) {
    const double x = kda::to_float(got);
    constexpr double smallest_normal = 0x1p-126;
    add(x, want,
        std::isfinite(x) ? std::ldexp(1, std::ilogb(std::max({std::abs(x), std::abs(want), smallest_normal})) - 8) : 0);
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

/// One head of every stage; and as the first gate projections and the output have no heads, share `part` of `parts` of
/// those.
inline layer_deviations compare_head(const layer_run& run, index head, index part, index parts) {
  namespace reference = kda::reference;
  using reference::values;
  const layer_shape& s = run.shape;
  const layer_weights<kda::bf16>& w = run.weights;
  const activations<kda::bf16>& a = run.a;
  const index T = a.hidden.rows, D = s.head_dim, Q = s.Q();
  layer_deviations result;

  const auto wide = [](const auto& m, index row, index rows, index column, index columns) {
    values x;
    for (index r = row; r < row + rows; ++r)
      for (index c = column; c < column + columns; ++c) x.push_back(kda::to_float(*m.at(r, c)));
    return x;
  };
  const auto wide_head = [&](const std::vector<float>& x, index n) {
    return values(x.begin() + head * n, x.begin() + (head + 1) * n);
  };
  const auto compare = [&](deviation stage_deviations::*stage, const matrix<kda::bf16>& got, index column,
                           index columns, const values& want) {
    auto next = want.begin();
    for (index t = 0; t < T; ++t) {
      stage_deviations& form = t < run.prompt ? result.prompt : result.decode;
      for (index c = column; c < column + columns; ++c) (form.*stage).add(*got.at(t, c), *next++);
    }
  };

  const values hidden = wide(a.hidden, 0, T, 0, s.hidden);
  const auto compare_rows_of_in = [&](index row, index rows) {
    compare(&stage_deviations::projections, a.projected, row, rows,
            reference::linear(hidden, wide(w.in, row, rows, 0, s.hidden), T, s.hidden, rows));
  };
  for (const index row : {head * D, Q + head * D, 2 * Q + head * D}) compare_rows_of_in(row, D);
  compare_rows_of_in(s.b() + head, 1);
  compare_rows_of_in(s.f() + part * s.f_rank / parts, s.f_rank / parts);
  compare_rows_of_in(s.g() + part * s.g_rank / parts, s.g_rank / parts);
  compare(&stage_deviations::projections, a.f, head * D, D,
          reference::linear(wide(a.projected, 0, T, s.f(), s.f_rank), wide(w.f_b, head * D, D, 0, s.f_rank), T,
                            s.f_rank, D));
  compare(&stage_deviations::projections, a.g, head * D, D,
          reference::linear(wide(a.projected, 0, T, s.g(), s.g_rank), wide(w.g_b, head * D, D, 0, s.g_rank), T,
                            s.g_rank, D));

  for (const index channel : {head * D, Q + head * D, 2 * Q + head * D}) {
    values window(static_cast<std::size_t>((s.conv_width - 1) * D));
    compare(&stage_deviations::conv, a.qkv, channel, D,
            reference::short_conv(wide(a.projected, 0, T, channel, D), wide(w.conv, channel, D, 0, s.conv_width), {},
                                  window, T, D, s.conv_width, reference::activation_kind::silu));
  }

  const reference::delta_shape shape{.tokens = T,
                                     .key_heads = 1,
                                     .value_heads = 1,
                                     .key_dim = D,
                                     .value_dim = D,
                                     .decay = reference::decay_kind::per_channel,
                                     .head_map = reference::head_map_kind::interleaved};
  values state(static_cast<std::size_t>(D * D));
  compare(&stage_deviations::core, a.core, head * D, D,
          reference::recurrent(wide(a.qkv, 0, T, head * D, D), wide(a.qkv, 0, T, Q + head * D, D),
                               wide(a.qkv, 0, T, 2 * Q + head * D, D),
                               reference::bounded_gate(wide(a.f, 0, T, head * D, D), wide_head(w.a_log, 1),
                                                       wide_head(w.dt_bias, D), s.lower_bound, T, 1, D),
                               reference::sigmoid(wide(a.projected, 0, T, s.b() + head, 1), 1), state, shape,
                               1 / std::sqrt(static_cast<double>(D))));
  for (index k = 0; k < D; ++k)
    for (index v = 0; v < D; ++v)
      result.state.add(run.state[static_cast<std::size_t>((head * D + v) * D + k)],
                       state[static_cast<std::size_t>(k * D + v)]);

  compare(&stage_deviations::norm, a.normed, head * D, D,
          reference::rms_norm_gated(wide(a.core, 0, T, head * D, D), wide(a.g, 0, T, head * D, D),
                                    values(w.norm.begin(), w.norm.end()), T, D, static_cast<double>(s.rms_eps),
                                    reference::activation_kind::sigmoid));

  const index rows = s.hidden / s.heads, row = head * rows;
  compare(&stage_deviations::out, a.y, row, rows,
          reference::linear(wide(a.normed, 0, T, 0, Q), wide(w.out, row, rows, 0, Q), T, Q, rows));
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
