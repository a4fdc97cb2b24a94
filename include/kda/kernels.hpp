// SPDX-License-Identifier: Apache-2.0
// kernels<Spec>: the calls. Each checks its arguments, cuts the work into independent tasks (sequence, value head,
// block of value columns; or tokens, or channels) and hands them to the executor. How the tasks are cut, ordered and
// run never changes a bit of the results.
#pragma once
#include "check.hpp"
#include "conv.hpp"
#include "delta_rule.hpp"
#include "step.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

// ---- what the calls refuse ------------------------------------------------------------------------------------------

/// Whether a tensor that may be left out was.
template <class T, std::size_t Rank> KDA_INLINE bool is_left_out(const view<T, Rank>& v) {
  bool empty = v.data == nullptr;
  for (const std::ptrdiff_t extent : v.shape) empty = empty && extent == 0;
  return empty;
}

/// Of delta_rule_args and step_args alike: tensors, parameters, head range, batch and states. Returns N.
template <class Spec, class Args, class T>
KDA_NOINLINE std::ptrdiff_t check_delta_rule(checker& c, const Args& a, const view<T, 3>& out, const char* out_name) {
  using t = detail::traits<Spec>;
  const bool quiet = is_left_out(out);
  const std::ptrdiff_t tokens = quiet ? a.q.shape[0] : majority(a.v.shape[0], out.shape[0], a.q.shape[0]);
  const std::ptrdiff_t HV = majority(a.v.shape[1], quiet ? a.beta.shape[1] : out.shape[1], a.beta.shape[1]);
  const std::ptrdiff_t H = a.q.shape[1], V = a.v.shape[2];
  std::ptrdiff_t K = a.q.shape[2];
  if constexpr (detail::is_per_channel<Spec>) K = majority(a.k.shape[2], a.gate.shape[2], K);
  c.require(H >= 1 && K >= 1 && K <= detail::max_key_dim && (t::dims::key == 0 || K == t::dims::key),
            error::wrong_shape, "q");
  c.tensor(a.q, {tokens, H, K}, "q");
  c.tensor(a.k, {tokens, H, K}, "k");
  c.require(HV >= 1 && V >= 1 && H >= 1 && HV % H == 0 && (t::dims::value == 0 || V == t::dims::value),
            error::wrong_shape, "v");
  c.tensor(a.v, {tokens, HV, V}, "v");
  if constexpr (detail::is_per_channel<Spec>)
    c.tensor(a.gate, {tokens, HV, K}, "gate");
  else if constexpr (detail::is_decaying<Spec>)
    c.tensor(a.gate, {tokens, HV}, "gate", true);
  c.tensor(a.beta, {tokens, HV}, "beta", true);
  if (!quiet) c.tensor(out, {tokens, HV, V}, out_name);
  c.gate_params(a.gate_params, HV, detail::is_per_channel<Spec> ? times(HV, K) : HV);
  c.require(is_zero(a.scale) || (is_finite(a.scale) && a.scale >= std::numeric_limits<float>::min()),
            error::wrong_value, "scale");
  c.require(a.heads.first >= 0 && a.heads.count >= 0 && a.heads.first < HV && a.heads.count <= HV - a.heads.first,
            error::wrong_value, "heads");
  const std::ptrdiff_t n = c.batch(a.sequences, tokens);
  const std::ptrdiff_t state = times(times(HV, K), V);
  c.require(addressable<typename t::state::type>(times(n > 0 ? n : 1, state)), error::wrong_shape, "v");
  c.pool(a.states.data, a.states.slots, slot_stride(a.states, state), a.states.first_slot, state, checker::states);
  return n;
}
template <class Args> KDA_INLINE region states_of(const Args& a) {
  const std::ptrdiff_t state = a.v.shape[1] * a.q.shape[2] * a.v.shape[2];
  return region_of_slots(a.states.data, a.states.slots, slot_stride(a.states, state), state);
}
template <class Spec, std::size_t N, class Args>
KDA_NOINLINE void delta_rule_apart(checker& c, const written (&outputs)[N], const Args& a) {
  c.apart(outputs, region_of(a.q));
  c.apart(outputs, region_of(a.k));
  c.apart(outputs, region_of(a.v));
  if constexpr (detail::is_decaying<Spec>) c.apart(outputs, region_of(a.gate));
  c.apart(outputs, region_of(a.beta));
  c.gate_params_apart(outputs, a.gate_params);
  c.batch_apart(outputs, a.sequences);
}
template <mode Mode, class Spec>
KDA_NOINLINE status check(const delta_rule_args<Spec>& a, const workspace& w, const executor& e) {
  checker c;
  const std::ptrdiff_t n = check_delta_rule<Spec>(c, a, a.out, "out");
  if (!c.result()) return c.result();
  c.workspace_for(w, e, n, kept_states(a.sequences));
  if (!c.result()) return c.result();
  if constexpr (Mode == mode::prefill)
    for (std::ptrdiff_t i = 0; i < n; ++i)
      c.require(!is_speculative(a.sequences, i), error::wrong_value, "sequences.speculation.num_accepted");

  const written outputs[] = {
      {states_of(a), "states.data"}, {region_of(a.out), "out"}, {region_of(w.data, w.bytes), "workspace"}};
  delta_rule_apart<Spec>(c, outputs, a);
  c.apart(outputs);
  if (!c.result()) return c.result();
  c.slots(a.sequences, n, a.states.first_slot, a.states.slots, divide(w, a.sequences).table);
  return c.result();
}

template <class Spec> KDA_NOINLINE status check(const conv_args<Spec>& a, const workspace& w, const executor& e) {
  using t = detail::traits<Spec>;
  const bool quiet = is_left_out(a.y);
  const std::ptrdiff_t tokens = a.x.shape[0], W = a.weight.shape[1],
                       C = quiet ? a.x.shape[1] : majority(a.weight.shape[0], a.y.shape[1], a.x.shape[1]);
  checker c;
  c.require(C >= 1, error::wrong_shape, "x");
  c.tensor(a.x, {tokens, C}, "x");
  c.require(W >= 2 && W <= 4, error::wrong_shape, "weight");
  c.tensor(a.weight, {C, W}, "weight", true);
  c.optional(a.bias, C, "bias");
  if (!quiet) c.tensor(a.y, {tokens, C}, "y");
  const std::ptrdiff_t n = c.batch(a.sequences, tokens);
  c.require(addressable<typename t::io::qkv>(times(n > 0 ? n : 1, C)), error::wrong_shape, "x");
  if (!c.result()) return c.result();
  const auto p = spelt_out<t::conv::order>(a.states, C, W);
  const std::ptrdiff_t elements = c.pool<t::conv::order>(p, C, W, a.sequences, n, checker::states);
  c.workspace_for(w, e, n, kept_states(a.sequences));
  if (!c.result()) return c.result();

  const written outputs[] = {{region_of_windows<t::conv::order>(p, C, elements), "states.data"},
                             {region_of(a.y), "y"},
                             {region_of(w.data, w.bytes), "workspace"}};
  c.apart(outputs, region_of(a.x));
  c.apart(outputs, region_of(a.weight));
  c.apart(outputs, region_of(a.bias));
  c.batch_apart(outputs, a.sequences);
  c.apart(outputs);
  if (!c.result()) return c.result();
  c.slots(a.sequences, n, p.first_slot, p.slots, divide(w, a.sequences).table);
  return c.result();
}

template <class Spec> KDA_NOINLINE status check(const step_args<Spec>& a, const workspace& w, const executor& e) {
  using t = detail::traits<Spec>;
  const std::ptrdiff_t H = a.q.shape[1], HV = a.v.shape[1], K = a.q.shape[2], V = a.v.shape[2],
                       W = a.conv_weight.shape[1];
  checker c;
  const std::ptrdiff_t n = check_delta_rule<Spec>(c, a, a.y, "y");
  c.require(V <= detail::max_value_columns, error::wrong_shape, "v");
  c.require(W >= 2 && W <= 4, error::wrong_shape, "conv_weight");
  if (!c.result()) return c.result();
  const std::ptrdiff_t C = plus(times(2, times(H, K)), times(HV, V));
  c.tensor(a.conv_weight, {C, W}, "conv_weight", true);
  c.optional(a.conv_bias, C, "conv_bias");
  if (!is_left_out(a.y)) {
    c.tensor(a.output_gate, {a.q.shape[0], HV, V}, "output_gate");
    c.tensor(a.norm_weight, {V}, "norm_weight");
    c.require(is_finite(a.norm_eps.value) && a.norm_eps.value >= 0, error::wrong_value, "norm_eps");
  }
  const head_range keys = key_heads<typename t::head_map>(a.heads, H, HV);
  const std::ptrdiff_t group = HV / H;
  const bool whole = std::is_same_v<typename t::head_map, head_map::interleaved>
                         ? a.heads.first % group == 0 && heads_in(a.heads, HV) % group == 0
                         : group == 1 || heads_in(a.heads, HV) == HV;
  c.require(whole && keys.count >= 1, error::wrong_value, "heads");
  c.tensor(a.modes, {n}, "modes");
  if (!c.result()) return c.result();
  for (std::ptrdiff_t i = 0; i < n; ++i)
    c.require(*a.modes.at(i) == mode::decode || (*a.modes.at(i) == mode::prefill && !is_speculative(a.sequences, i)),
              error::wrong_value, "modes");
  const auto p = spelt_out<t::conv::order>(a.conv_states, C, W);
  const std::ptrdiff_t elements = c.pool<t::conv::order>(p, C, W, a.sequences, n, checker::conv_states);
  c.require(p.first_slot == a.states.first_slot, error::wrong_value, "conv_states.first_slot");
  c.workspace_for(w, e, n, kept_states(a.sequences));
  if (!c.result()) return c.result();

  const written outputs[] = {{states_of(a), "states.data"},
                             {region_of_windows<t::conv::order>(p, C, elements), "conv_states.data"},
                             {region_of(a.y), "y"},
                             {region_of(w.data, w.bytes), "workspace"}};
  delta_rule_apart<Spec>(c, outputs, a);
  c.apart(outputs, region_of(a.conv_weight));
  c.apart(outputs, region_of(a.conv_bias));
  c.apart(outputs, region_of(a.output_gate));
  c.apart(outputs, region_of(a.norm_weight));
  c.apart(outputs, region_of(a.modes));
  c.apart(outputs);
  if (!c.result()) return c.result();
  const std::ptrdiff_t slots = a.states.slots < p.slots ? a.states.slots : p.slots;
  c.slots(a.sequences, n, p.first_slot, slots, divide(w, a.sequences).table);
  return c.result();
}

// ---- operations on tokens -------------------------------------------------------------------------------------------

// f(first, n, head, scratch) for blocks of at most chunk_tokens tokens of each head.
template <class F>
KDA_INLINE void for_token_blocks(const executor& e, const workspace& w, std::ptrdiff_t tokens, std::ptrdiff_t heads,
                                 const F& f) {
  const std::ptrdiff_t blocks = (tokens + chunk_tokens - 1) / chunk_tokens;
  const auto task = [&](std::ptrdiff_t i, arena scratch) {
    const std::ptrdiff_t first = i / heads * chunk_tokens;
    f(first, tokens - first < chunk_tokens ? tokens - first : chunk_tokens, i % heads, scratch);
  };
  run_tasks(e, divide(w, {}).tasks, blocks * heads, task);
}

template <class Spec> KDA_NOINLINE status check(const gate_args<Spec>& a, const workspace& w, const executor& e) {
  checker c;
  const std::ptrdiff_t T = a.x.shape[0], HV = a.x.shape[1];
  c.require(HV >= 1, error::wrong_shape, "x");
  if constexpr (detail::is_per_channel<Spec>) {
    const std::ptrdiff_t K = a.x.shape[2];
    c.require(K >= 1 && K <= detail::max_key_dim, error::wrong_shape, "x");
    c.tensor(a.x, {T, HV, K}, "x");
    c.tensor(a.g, {T, HV, K}, "g");
    c.gate_params(a.gate_params, HV, times(HV, K));
  } else {
    c.tensor(a.x, {T, HV}, "x", true);
    c.tensor(a.g, {T, HV}, "g", true);
    c.gate_params(a.gate_params, HV, HV);
  }
  c.workspace_for(w, e, 0, 0);
  if (!c.result()) return c.result();
  const written outputs[] = {{region_of(a.g), "g"}, {region_of(w.data, w.bytes), "workspace"}};
  c.apart(outputs, region_of(a.x));
  c.gate_params_apart(outputs, a.gate_params);
  c.apart(outputs);
  return c.result();
}

template <class Spec> KDA_NOINLINE status check(const beta_args<Spec>& a, const workspace& w, const executor& e) {
  checker c;
  const std::ptrdiff_t T = a.b.shape[0], HV = a.b.shape[1];
  c.require(HV >= 1, error::wrong_shape, "b");
  c.tensor(a.b, {T, HV}, "b", true);
  c.tensor(a.beta, {T, HV}, "beta", true);
  c.workspace_for(w, e, 0, 0);
  if (!c.result()) return c.result();
  const written outputs[] = {{region_of(a.beta), "beta"}, {region_of(w.data, w.bytes), "workspace"}};
  c.apart(outputs, region_of(a.b));
  c.apart(outputs);
  return c.result();
}

template <class Spec> KDA_NOINLINE status check(const l2norm_args<Spec>& a, const workspace& w, const executor& e) {
  checker c;
  const std::ptrdiff_t T = a.x.shape[0], H = a.x.shape[1], K = a.x.shape[2];
  c.require(H >= 1 && K >= 1 && K <= detail::max_key_dim, error::wrong_shape, "x");
  c.tensor(a.x, {T, H, K}, "x");
  c.require(is_finite(a.eps.value) && a.eps.value >= 0, error::wrong_value, "eps");
  c.require(is_finite(a.scale.value), error::wrong_value, "scale");
  c.tensor(a.y, {T, H, K}, "y");
  c.workspace_for(w, e, 0, 0);
  if (!c.result()) return c.result();
  const written outputs[] = {{region_of(a.y), "y"}, {region_of(w.data, w.bytes), "workspace"}};
  c.apart(outputs, region_of(a.x));
  c.apart(outputs);
  return c.result();
}

template <class Spec> KDA_NOINLINE status check(const norm_args<Spec>& a, const workspace& w, const executor& e) {
  checker c;
  const std::ptrdiff_t T = majority(a.gate.shape[0], a.y.shape[0], a.x.shape[0]);
  const std::ptrdiff_t HV = majority(a.gate.shape[1], a.y.shape[1], a.x.shape[1]);
  const std::ptrdiff_t V = majority(a.gate.shape[2], a.y.shape[2], a.x.shape[2]);
  c.require(HV >= 1 && V >= 1, error::wrong_shape, "x");
  c.tensor(a.x, {T, HV, V}, "x");
  c.tensor(a.gate, {T, HV, V}, "gate");
  c.tensor(a.weight, {V}, "weight");
  c.require(is_finite(a.eps.value) && a.eps.value >= 0, error::wrong_value, "eps");
  c.tensor(a.y, {T, HV, V}, "y");
  c.workspace_for(w, e, 0, 0);
  if (!c.result()) return c.result();
  const written outputs[] = {{region_of(a.y), "y"}, {region_of(w.data, w.bytes), "workspace"}};
  c.apart(outputs, region_of(a.x));
  c.apart(outputs, region_of(a.gate));
  c.apart(outputs, region_of(a.weight));
  c.apart(outputs);
  return c.result();
}

// ---- the calls ------------------------------------------------------------------------------------------------------

/// The kernels of a spec, compiled for the ISA of this translation unit. Each call checks its arguments first; a
/// refusal returns a status that names the argument, and has written nothing but workspace.
template <class Spec> struct kernels {
  using t = detail::traits<Spec>;

  static constexpr const char* isa = KDA_STRING(KDA_ISA);

  /// Chunked delta rule, for prompts; any number of tokens. Right to 1e-5 of the largest output for every log decay in
  /// [-inf, 0] and beta in [0, 2].
  static status prefill(const delta_rule_args<Spec>& args, const workspace& w, const executor& e = serial,
                        checking c = checking::checked) {
    return delta_rule<mode::prefill>(args, w, e, c);
  }

  /// Recurrent delta rule, for decode; any number of tokens. n tokens in one call give the bits of n calls.
  static status decode(const delta_rule_args<Spec>& args, const workspace& w, const executor& e = serial,
                       checking c = checking::checked) {
    return delta_rule<mode::decode>(args, w, e, c);
  }

  /// Short convolution of raw projections, with state.
  static status conv(const conv_args<Spec>& args, const workspace& w, const executor& e = serial,
                     checking c = checking::checked) {
    static_assert(t::conv::present, "kda::kernels::conv: the spec names no kda::conv option");
    if (const status s = asked(c, args, w, e); !s) return s;
    const conv_tasks<Spec> tasks(args);
    run_tasks(e, divide(w, args.sequences).tasks, tasks.count(), tasks);
    return {};
  }

  /// Log decay from gate logits.
  static status gate(const gate_args<Spec>& args, const workspace& w, const executor& e = serial,
                     checking c = checking::checked) {
    static_assert(has_gate, "kda::kernels::gate: the spec's gate is given, or there is none");
    if (const status s = asked(c, args, w, e); !s) return s;
    const float* bias = dt_bias_of(args.gate_params);
    for_token_blocks(
        e, w, args.x.shape[0], args.x.shape[1],
        [&](std::ptrdiff_t first, std::ptrdiff_t n, std::ptrdiff_t head, arena scratch) {
          const gate_law<typename t::gate> law(args.gate_params, head);
          float* row = scratch.take(detail::max_key_dim);
          if constexpr (detail::is_per_channel<Spec>) {
            const std::ptrdiff_t K = args.x.shape[2];
            for (std::ptrdiff_t i = 0; i < n; ++i) {
              gate_channels(law, args.x.at(first + i, head), bias == nullptr ? nullptr : bias + head * K, K, row);
              store_row(args.g.at(first + i, head), row, K);
            }
          } else {
            gate_tokens(law, args.x.at(first, head), args.x.stride[0], bias == nullptr ? 0.f : bias[head], n, row);
            for (std::ptrdiff_t i = 0; i < n; ++i) *args.g.at(first + i, head) = row[i];
          }
        });
    return {};
  }

  /// beta from its logits.
  static status beta(const beta_args<Spec>& args, const workspace& w, const executor& e = serial,
                     checking c = checking::checked) {
    static_assert(has_beta, "kda::kernels::beta: the spec's beta is given");
    if (const status s = asked(c, args, w, e); !s) return s;
    for_token_blocks(e, w, args.b.shape[0], args.b.shape[1],
                     [&](std::ptrdiff_t first, std::ptrdiff_t n, std::ptrdiff_t head, arena scratch) {
                       float* row = scratch.take(chunk_tokens);
                       beta_tokens<typename t::beta>(args.b.at(first, head), args.b.stride[0], n, row);
                       for (std::ptrdiff_t i = 0; i < n; ++i) *args.beta.at(first + i, head) = row[i];
                     });
    return {};
  }

  /// L2 norm of q or k.
  static status l2norm(const l2norm_args<Spec>& args, const workspace& w, const executor& e = serial,
                       checking c = checking::checked) {
    if (const status s = asked(c, args, w, e); !s) return s;
    for_token_blocks(e, w, args.x.shape[0], args.x.shape[1],
                     [&](std::ptrdiff_t first, std::ptrdiff_t n, std::ptrdiff_t head, arena scratch) {
                       const std::ptrdiff_t K = args.x.shape[2];
                       float* row = scratch.take(detail::max_key_dim);
                       for (std::ptrdiff_t i = 0; i < n; ++i) {
                         l2norm_row(args.x.at(first + i, head), K, args.eps.value, args.scale.value, row,
                                    detail::round_up(K, 16));
                         store_row(args.y.at(first + i, head), row, K);
                       }
                     });
    return {};
  }

  /// Gated RMS norm of the delta rule's output.
  static status norm(const norm_args<Spec>& args, const workspace& w, const executor& e = serial,
                     checking c = checking::checked) {
    static_assert(t::norm::present, "kda::kernels::norm: the spec names no kda::norm option");
    if (const status s = asked(c, args, w, e); !s) return s;
    for_token_blocks(e, w, args.x.shape[0], args.x.shape[1],
                     [&](std::ptrdiff_t first, std::ptrdiff_t n, std::ptrdiff_t head, arena) {
                       for (std::ptrdiff_t i = 0; i < n; ++i)
                         norm_row<t::norm::act, t::norm::order>(
                             args.x.at(first + i, head), args.gate.at(first + i, head), args.weight.data,
                             args.eps.value, args.x.shape[2], args.y.at(first + i, head));
                     });
    return {};
  }

  /// A layer between its projections: conv, then prefill or decode as each sequence's mode says, then norm. The bits are
  /// those of these calls, one by one.
  static status step(const step_args<Spec>& args, const workspace& w, const executor& e = serial,
                     checking c = checking::checked) {
    static_assert(detail::has_step<Spec>, "kda::kernels::step: the spec needs a kda::conv and a kda::norm option");
    if (const status s = asked(c, args, w, e); !s) return s;
    const call_scratch scratch = divide(w, args.sequences);
    const step_tasks<Spec> tasks(args, longest_first(args.sequences, scratch.table), e);
    run_tasks(e, scratch.tasks, tasks.count(), tasks);
    const step_window_tasks<Spec> windows(args, tasks.leaves_keys(), tasks.leaves_values());
    run_tasks(e, scratch.tasks, windows.count(), windows);
    if (!tasks.leaves_norm()) return {};
    const step_norm_tasks<Spec> norms(args);
    run_tasks(e, scratch.tasks, norms.count(), norms);
    return {};
  }

  static constexpr bool has_gate = detail::is_decaying<Spec> && !std::is_same_v<typename t::gate, kda::gate::given>;
  static constexpr bool has_beta = !std::is_same_v<typename t::beta, kda::beta::given>;

 private:
  template <class Args>
  KDA_INLINE static status asked(checking c, const Args& args, const workspace& w, const executor& e) {
    return c == checking::unchecked ? status{} : check(args, w, e);
  }
  template <mode Mode>
  KDA_INLINE static status delta_rule(const delta_rule_args<Spec>& args, const workspace& w, const executor& e,
                                      checking c) {
    if (c == checking::checked)
      if (const status s = check<Mode>(args, w, e); !s) return s;
    const call_scratch scratch = divide(w, args.sequences);
    const delta_rule_tasks<Spec, Mode> tasks(args, longest_first(args.sequences, scratch.table), e);
    run_tasks(e, scratch.tasks, tasks.count(), tasks);
    return {};
  }
};

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
