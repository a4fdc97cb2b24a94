// SPDX-License-Identifier: Apache-2.0
// The operations of the golden format but for whole layers. Each says what its files hold, and takes that through every
// kernel which should compute it, on every engine, and through the double reference.
#pragma once
#include "kernels.hpp"
#include "results.hpp"

#include <kda/reference.hpp>

#include <string>
#include <vector>

namespace golden {

using engines = std::vector<engine>;
using testing::core;
using testing::widened;

inline constexpr const char* in_double = "reference";

// ---- single operations --------------------------------------------------------------------------------------------

inline judged_outputs l2norm(golden_file& f, const engines& run_on) {
  const double eps = f.params.at_least_zero("eps"), scale = f.params.number("scale");
  const tensor x = f.inputs.tensor("x", {any, any, any});
  const index T = x.shape[0], H = x.shape[1], K = x.shape[2];
  judged_output y(f.outputs, "y", {T, H, K});
  f.done();

  for (const engine& e : run_on) y.judge(e.isa, l2norm<specs::kda_given_key>(e, x.data, T, H, K, eps, scale));
  y.judge(in_double, ref::l2norm_rows(widened(x.data), T * H, K, eps, scale));
  return {y};
}

/// `law` and `lower_bound`: a number below 0 for the bounded law, null for the other.
inline gate_parameters gate_law_of(object& params) {
  const bool bounded = params.choice("law", {"bounded", "softplus"}) == 0;
  if (!bounded && !params.at("lower_bound").is_null())
    throw fault("params.lower_bound is not null, and the law is softplus");
  const double lower_bound = bounded ? params.number("lower_bound") : 0;
  if (bounded && lower_bound >= 0) throw fault("params.lower_bound is not below 0");
  return {.bounded = bounded, .lower_bound = lower_bound, .a_log = {}, .dt_bias = {}};
}

/// A_log, one a head; published weights may hold more, which are not read.
inline tensor a_log_of(object& inputs, index HV) {
  tensor a_log = inputs.tensor("A_log", {any});
  if (a_log.shape[0] < HV)
    throw fault(std::string("inputs.A_log.shape is [") + std::to_string(a_log.shape[0]) + "], too short for " +
                std::to_string(HV) + " heads");
  return a_log;
}

inline ref::values reference_gate(const floats& x, const gate_parameters& p, index T, index HV, index K) {
  const auto a_log = widened(p.a_log), dt_bias = widened(p.dt_bias);
  return p.bounded ? ref::bounded_gate(widened(x), a_log, dt_bias, p.lower_bound, T, HV, K)
                   : ref::unbounded_gate(widened(x), a_log, dt_bias, T, HV, K);
}

inline judged_outputs gate_per_channel(golden_file& f, const engines& run_on) {
  gate_parameters p = gate_law_of(f.params);
  const tensor x = f.inputs.tensor("x", {any, any, any});
  const index T = x.shape[0], HV = x.shape[1], K = x.shape[2];
  p.a_log = a_log_of(f.inputs, HV).data;
  p.dt_bias = f.inputs.tensor("dt_bias", {HV, K}).data;
  judged_output g(f.outputs, "g", {T, HV, K}, domain::log_decays);
  f.done();

  for (const engine& e : run_on) g.judge(e.isa, gate_per_channel(e, x.data, p, T, HV, K));
  g.judge(in_double, reference_gate(x.data, p, T, HV, K));
  return {g};
}

inline judged_outputs gate_per_head(golden_file& f, const engines& run_on) {
  gate_parameters p = gate_law_of(f.params);
  const tensor x = f.inputs.tensor("x", {any, any});
  const index T = x.shape[0], HV = x.shape[1];
  p.a_log = a_log_of(f.inputs, HV).data;
  p.dt_bias = f.inputs.tensor("dt_bias", {HV}).data;
  judged_output g(f.outputs, "g", {T, HV}, domain::log_decays);
  f.done();

  for (const engine& e : run_on) g.judge(e.isa, gate_per_head(e, x.data, p, T, HV));
  g.judge(in_double, reference_gate(x.data, p, T, HV, 1));
  return {g};
}

inline ref::activation_kind conv_activation_of(object& params, const std::string& key) {
  return params.choice(key, {"silu", "none"}) == 0 ? ref::activation_kind::silu : ref::activation_kind::none;
}

inline judged_outputs conv(golden_file& f, const engines& run_on) {
  const index W = f.params.count("width");
  const ref::activation_kind activation = conv_activation_of(f.params, "activation");
  const tensor x = f.inputs.tensor("x", {any, any});
  const index T = x.shape[0], C = x.shape[1];
  const tensor weight = f.inputs.tensor("weight", {C, W}), state_in = f.inputs.tensor("state_in", {W - 1, C});
  judged_output y(f.outputs, "y", {T, C}), state_out(f.outputs, "state_out", {W - 1, C});
  f.done();

  for (const engine& e : run_on)
    for (const conv_order order : {conv_order::time_major, conv_order::channel_major}) {
      const convolved c = conv(e, activation, order, x.data, weight.data, state_in.data, T, C, W, {T});
      const std::string way = e.isa + (order == conv_order::time_major ? " time_major" : " channel_major");
      y.judge(way, c.y);
      state_out.judge(way, c.state);
    }
  ref::values state = widened(state_in.data);
  y.judge(in_double, ref::short_conv(widened(x.data), widened(weight.data), {}, state, T, C, W, activation));
  state_out.judge(in_double, state);
  return {y, state_out};
}

inline ref::activation_kind norm_activation_of(object& params, const std::string& key) {
  return params.choice(key, {"sigmoid", "silu"}) == 0 ? ref::activation_kind::sigmoid : ref::activation_kind::silu;
}

inline judged_outputs norm_gated(golden_file& f, const engines& run_on) {
  const double eps = f.params.at_least_zero("eps");
  const ref::activation_kind activation = norm_activation_of(f.params, "activation");
  const bool weight_after_cast = f.params.flag("weight_after_cast");
  const tensor x = f.inputs.tensor("x", {any, any, any});
  const index T = x.shape[0], HV = x.shape[1], V = x.shape[2];
  const tensor gate = f.inputs.tensor("gate", {T, HV, V}), weight = f.inputs.tensor("weight", {V});
  judged_output y(f.outputs, "y", {T, HV, V});
  f.done();

  for (const engine& e : run_on)
    y.judge(e.isa, norm(e, activation, weight_after_cast, x.data, gate.data, weight.data, T, HV, V, eps));
  y.judge(in_double,
          ref::rms_norm_gated(widened(x.data), widened(gate.data), widened(weight.data), T * HV, V, eps, activation));
  return {y};
}

// ---- the delta rule ------------------------------------------------------------------------------------------------

template <class Spec>
void judge_delta_rule(const engine& e, const testing::problem& p, const std::string& layout, judged_output& o,
                      judged_output& state_out) {
  for (const core c : {core::decode, core::prefill}) {
    const std::string way = e.isa + (c == core::decode ? " decode " : " prefill ") + layout;
    const testing::outcome<Spec> got = testing::run<Spec>(p, {c}, {}, e.of<Spec>());
    o.judge(way, got.out);
    state_out.judge(way, got.state);
  }
}

template <class KeyMajor, class ValueMajor>
void judge_delta_rule(const engines& run_on, const testing::problem& p, judged_output& o, judged_output& state_out) {
  for (const engine& e : run_on) {
    judge_delta_rule<KeyMajor>(e, p, "key_major", o, state_out);
    judge_delta_rule<ValueMajor>(e, p, "value_major", o, state_out);
  }
  const testing::exact want = testing::reference_of<KeyMajor>(p);
  o.judge(in_double, want.out);
  state_out.judge(in_double, want.state);
}

inline judged_outputs delta_rule(golden_file& f, const engines& run_on) {
  const bool per_channel = f.params.choice("decay", {"per_channel", "per_head"}) == 0, l2norm = f.params.flag("l2norm");
  const bool default_scale = f.params.at("scale").is_null();
  const double scale = default_scale ? 0 : f.params.number("scale");  // 0 is how args.hpp spells K^-1/2
  if (!default_scale && scale <= 0) throw fault("params.scale is not above 0");
  const tensor q = f.inputs.tensor("q", {any, any, any}), v = f.inputs.tensor("v", {q.shape[0], any, any});
  const index T = q.shape[0], H = q.shape[1], K = q.shape[2], HV = v.shape[1], V = v.shape[2];
  const testing::problem p{.g = {.T = T, .H = H, .HV = HV, .K = K, .V = V},
                           .q = q.data,
                           .k = f.inputs.tensor("k", {T, H, K}).data,
                           .v = v.data,
                           .gate = per_channel ? f.inputs.tensor("g", {T, HV, K}, domain::log_decays).data
                                               : f.inputs.tensor("g", {T, HV}, domain::log_decays).data,
                           .beta = f.inputs.tensor("beta", {T, HV}).data,
                           .state = f.inputs.tensor("state_in", {HV, K, V}).data,
                           .scale = static_cast<float>(scale)};
  judged_output o(f.outputs, "o", {T, HV, V}), state_out(f.outputs, "state_out", {HV, K, V});
  f.done();

  if (per_channel && l2norm)
    judge_delta_rule<specs::kda_norm_key, specs::kda_norm_value>(run_on, p, o, state_out);
  else if (per_channel)
    judge_delta_rule<specs::kda_given_key, specs::kda_given_value>(run_on, p, o, state_out);
  else if (l2norm)
    judge_delta_rule<specs::gdn_norm_key, specs::gdn_norm_value>(run_on, p, o, state_out);
  else
    judge_delta_rule<specs::gdn_given_key, specs::gdn_given_value>(run_on, p, o, state_out);
  return {o, state_out};
}

}  // namespace golden
