// SPDX-License-Identifier: Apache-2.0
// Whole layers: projections as plain loops, everything between them in the kernels.
//
//   hidden states -> q|k|v -> conv -> delta rule, gate and beta from logits -> gated norm -> output projection
//
// Once in the calls that the file names, a call of one token through decode, and once in one call of prefill. They
// start from nothing, and the states pass from call to call in pools.
#pragma once
#include "operations.hpp"

#include <initializer_list>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace golden {

struct layer {
  ref::layer_dims dims;
  index T = 0;
  std::vector<index> splits{};
  floats hidden_states{};
  std::map<std::string, tensor> weights{};  // by their names in the file, each [out, in] or a vector

  [[nodiscard]] index channels() const { return 2 * dims.key_heads * dims.key_dim + dims.value_heads * dims.value_dim; }
  [[nodiscard]] const floats& weight(const std::string& name) const { return weights.at(name).data; }

  /// x [T, in] through those of the weights that the layer has, one behind the other, rounded to float after each.
  [[nodiscard]] floats projected(floats x, std::initializer_list<const char*> names) const {
    for (const char* name : names)
      if (const auto w = weights.find(name); w != weights.end())
        x = rounded(ref::linear(widened(x), widened(w->second.data), T, w->second.shape[1], w->second.shape[0]));
    return x;
  }
};

struct layer_outputs {
  judged_output y, state, conv_state;

  layer_outputs(object& outputs, const layer& l)
      : y(outputs, "y", {l.T, l.dims.hidden}),
        state(outputs, "state_out", {l.dims.value_heads, l.dims.key_dim, l.dims.value_dim}),
        conv_state(outputs, "conv_state_out", {l.dims.conv_width - 1, l.channels()}) {}

  template <class T>
  void judge(const std::string& way, const std::vector<T>& got_y, const std::vector<T>& got_state,
             const std::vector<T>& got_conv_state) {
    y.judge(way, got_y);
    state.judge(way, got_state);
    conv_state.judge(way, got_conv_state);
  }
};

/// What the kernels need beyond the convolution's output: projections of the hidden states.
struct layer_projections {
  floats qkv, gate, beta, output_gate;  // [T, C]; [T, HV, K] or [T, HV]; [T, HV]; [T, HV, V]

  explicit layer_projections(const layer& l)
      : qkv(l.projected(l.hidden_states, {"qkv_proj"})),
        gate(l.projected(l.hidden_states, {"f_a", "f_b", "f", "a_proj"})),
        beta(l.projected(l.hidden_states, {"b_proj"})),
        output_gate(l.projected(l.hidden_states, {"g_a", "g_b", "g", "z_proj"})) {}
};

struct ruled {
  floats o, state;
};
template <class Spec>
ruled rule(const engine& e, const testing::problem& p, const std::vector<core>& cores,
           const std::vector<index>& lengths) {
  const testing::outcome<Spec> got = testing::run<Spec>(p, cores, lengths, e.of<Spec>());
  return {got.out, got.state};
}

/// The delta rule from logits. No spec of the tests joins KDA's softplus law with beta = sigmoid, so there gate and
/// beta are computed by their own kernels first.
inline ruled rule(const engine& e, const layer& l, testing::problem p, const std::vector<core>& cores,
                  const std::vector<index>& lengths) {
  if (l.dims.decay == ref::decay_kind::per_head) return rule<specs::gdn_softplus>(e, p, cores, lengths);
  if (l.dims.gate == ref::gate_kind::bounded) return rule<specs::kda_bounded>(e, p, cores, lengths);
  const gate_parameters softplus{.bounded = false, .lower_bound = 0, .a_log = p.a_log, .dt_bias = p.dt_bias};
  p.gate = gate_per_channel(e, p.gate, softplus, p.g.T, p.g.HV, p.g.K);
  p.beta = beta<specs::kda_bounded>(e, p.beta, p.g.T, p.g.HV);
  return rule<specs::kda_norm_key>(e, p, cores, lengths);
}

inline void run_layer(const engine& e, const layer& l, const layer_projections& x, const std::vector<core>& cores,
                      const std::vector<index>& lengths, const std::string& way, layer_outputs& outputs) {
  const index C = l.channels(), Q = l.dims.key_heads * l.dims.key_dim;
  const convolved c = conv(e, l.dims.conv_activation, conv_order::time_major, x.qkv, l.weight("conv_weight"), {}, l.T,
                           C, l.dims.conv_width, lengths);
  const testing::problem p{
      .g = {.T = l.T, .H = l.dims.key_heads, .HV = l.dims.value_heads, .K = l.dims.key_dim, .V = l.dims.value_dim},
      .q = columns_of(c.y, C, 0, Q),
      .k = columns_of(c.y, C, Q, Q),
      .v = columns_of(c.y, C, 2 * Q, C - 2 * Q),
      .gate = x.gate,
      .beta = x.beta,
      .state = poison(l.dims.value_heads * l.dims.key_dim * l.dims.value_dim),
      .a_log = l.weight("A_log"),
      .dt_bias = l.weight("dt_bias"),
      .lower_bound = static_cast<float>(l.dims.lower_bound),
      .fresh = true};
  const ruled r = rule(e, l, p, cores, lengths);
  const floats normed = norm(e, l.dims.norm_activation, l.dims.decay == ref::decay_kind::per_head, r.o, x.output_gate,
                             l.weight("norm_weight"), l.T, p.g.HV, p.g.V, l.dims.rms_eps);
  outputs.judge(way, l.projected(normed, {"o_proj"}), r.state, c.state);
}

inline void run_reference(const layer& l, layer_outputs& outputs) {
  std::map<std::string, ref::values> w;
  for (const auto& [name, weight] : l.weights) w[name] = widened(weight.data);
  const ref::layer_weights weights{.qkv_proj = w["qkv_proj"],
                                   .conv_weight = w["conv_weight"],
                                   .f_a = w["f_a"],
                                   .f_b = w["f_b"],
                                   .f = w["f"],
                                   .a_proj = w["a_proj"],
                                   .a_log = w["A_log"],
                                   .dt_bias = w["dt_bias"],
                                   .b_proj = w["b_proj"],
                                   .g_a = w["g_a"],
                                   .g_b = w["g_b"],
                                   .g = w["g"],
                                   .z_proj = w["z_proj"],
                                   .norm_weight = w["norm_weight"],
                                   .o_proj = w["o_proj"]};
  ref::values conv_state(size((l.dims.conv_width - 1) * l.channels()));
  ref::values state(size(l.dims.value_heads * l.dims.key_dim * l.dims.value_dim));
  const ref::values y =
      ref::reference_layer(widened(l.hidden_states), conv_state, state, weights, l.dims, l.T, ref::token_by_token);
  outputs.judge(in_double, y, state, conv_state);
}

/// Reads what both kinds of layer have in common, the outputs last, and runs it.
inline judged_outputs judged_layer(golden_file& f, const engines& run_on, layer l) {
  const index X = l.dims.hidden, HV = l.dims.value_heads, V = l.dims.value_dim;
  const tensor hidden_states = f.inputs.tensor("hidden_states", {any, X});
  l.T = hidden_states.shape[0];
  l.hidden_states = hidden_states.data;
  l.splits = f.params.counts("splits");
  if (l.splits.empty() || std::accumulate(l.splits.begin(), l.splits.end(), index{0}) != l.T)
    throw fault(std::string("params.splits does not add up to the ") + std::to_string(l.T) +
                " tokens of inputs.hidden_states");
  l.weights["conv_weight"] = f.inputs.tensor("conv_weight", {l.channels(), l.dims.conv_width});
  l.weights["A_log"] = a_log_of(f.inputs, HV);
  l.weights["b_proj"] = f.inputs.tensor("b_proj", {HV, X});
  l.weights["norm_weight"] = f.inputs.tensor("norm_weight", {V});
  l.weights["o_proj"] = f.inputs.tensor("o_proj", {X, HV * V});
  layer_outputs outputs(f.outputs, l);
  f.done();

  const layer_projections x(l);
  std::vector<core> cores;
  for (const index n : l.splits) cores.push_back(n == 1 ? core::decode : core::prefill);
  for (const engine& e : run_on) {
    run_layer(e, l, x, cores, l.splits, e.isa + " in its splits", outputs);
    run_layer(e, l, x, {core::prefill}, {l.T}, e.isa + " in one call", outputs);
  }
  run_reference(l, outputs);
  return {outputs.y, outputs.state, outputs.conv_state};
}

inline judged_outputs kda_layer(golden_file& f, const engines& run_on) {
  const index X = f.params.count("hidden"), H = f.params.count("heads"), D = f.params.count("head_dim"), Q = H * D;
  const gate_parameters law = gate_law_of(f.params);
  layer l{.dims = {.hidden = X,
                   .key_heads = H,
                   .value_heads = H,
                   .key_dim = D,
                   .value_dim = D,
                   .decay = ref::decay_kind::per_channel,
                   .head_map = ref::head_map_kind::interleaved,
                   .scale = 1 / std::sqrt(static_cast<double>(D)),
                   .gate = law.bounded ? ref::gate_kind::bounded : ref::gate_kind::softplus,
                   .lower_bound = law.lower_bound,
                   .conv_width = f.params.count("conv_width"),
                   .conv_activation = conv_activation_of(f.params, "conv_activation"),
                   .norm_activation = ref::activation_kind::sigmoid,
                   .rms_eps = f.params.at_least_zero("rms_eps")}};

  tensor qkv{.shape = {3 * Q, X}, .data = {}};
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
    const tensor part = f.inputs.tensor(name, {Q, X});
    qkv.data.insert(qkv.data.end(), part.data.begin(), part.data.end());
  }
  l.weights["qkv_proj"] = qkv;
  l.weights["dt_bias"] = f.inputs.tensor("dt_bias", {H, D});
  for (const std::string gate : {"f", "g"}) {  // full rank, or low rank
    if (f.inputs.has(gate)) {
      l.weights[gate] = f.inputs.tensor(gate, {Q, X});
    } else {
      l.weights[gate + "_a"] = f.inputs.tensor(gate + "_a", {D, X});
      l.weights[gate + "_b"] = f.inputs.tensor(gate + "_b", {Q, D});
    }
  }
  return judged_layer(f, run_on, std::move(l));
}

inline judged_outputs gdn_layer(golden_file& f, const engines& run_on) {
  const index X = f.params.count("hidden"), HV = f.params.count("value_heads"), V = f.params.count("value_dim");
  const index K = f.params.count("key_dim");
  layer l{.dims = {.hidden = X,
                   .key_heads = f.params.count("key_heads"),
                   .value_heads = HV,
                   .key_dim = K,
                   .value_dim = V,
                   .decay = ref::decay_kind::per_head,
                   .head_map = ref::head_map_kind::interleaved,
                   .scale = 1 / std::sqrt(static_cast<double>(K)),
                   .gate = ref::gate_kind::softplus,
                   .conv_width = f.params.count("conv_width"),
                   .conv_activation = conv_activation_of(f.params, "conv_activation"),
                   .norm_activation = norm_activation_of(f.params, "norm_activation"),
                   .rms_eps = f.params.at_least_zero("rms_eps")}};
  l.weights["qkv_proj"] = f.inputs.tensor("qkv_proj", {l.channels(), X});
  l.weights["z_proj"] = f.inputs.tensor("z_proj", {HV * V, X});
  l.weights["a_proj"] = f.inputs.tensor("a_proj", {HV, X});
  l.weights["dt_bias"] = f.inputs.tensor("dt_bias", {HV});
  return judged_layer(f, run_on, std::move(l));
}

}  // namespace golden
