// SPDX-License-Identifier: Apache-2.0
// kernels<Spec>: the calls. Each checks its arguments, cuts the work into independent tasks (sequence, value head,
// block of value columns; or tokens, or channels) and hands them to the executor. How the tasks are cut, ordered and
// run never changes a bit of the results.
#pragma once
#include "check.hpp"
#include "conv.hpp"
#include "delta_rule.hpp"
#include "tasks.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

// ---- delta rule -----------------------------------------------------------------------------------------------------

template <class Spec> KDA_NOINLINE status check(const delta_rule_args<Spec>& a, const workspace& w, const executor& e) {
  using t = detail::traits<Spec>;
  using state_type = typename t::state::type;
  const std::ptrdiff_t T = majority(a.v.shape[0], a.out.shape[0], a.q.shape[0]), H = a.q.shape[1], V = a.v.shape[2];
  const std::ptrdiff_t HV = majority(a.v.shape[1], a.out.shape[1], a.beta.shape[1]);
  std::ptrdiff_t K = a.q.shape[2];
  if constexpr (detail::is_per_channel<Spec>) K = majority(a.k.shape[2], a.gate.shape[2], K);
  checker c;
  c.require(H >= 1 && K >= 1 && K <= detail::max_key_dim && (t::dims::key == 0 || K == t::dims::key),
            error::wrong_shape, "q");
  c.tensor(a.q, {T, H, K}, "q");
  c.tensor(a.k, {T, H, K}, "k");
  c.require(HV >= 1 && V >= 1 && H >= 1 && HV % H == 0 && (t::dims::value == 0 || V == t::dims::value),
            error::wrong_shape, "v");
  c.tensor(a.v, {T, HV, V}, "v");
  if constexpr (detail::is_per_channel<Spec>)
    c.tensor(a.gate, {T, HV, K}, "gate");
  else if constexpr (detail::is_decaying<Spec>)
    c.tensor(a.gate, {T, HV}, "gate", true);
  c.tensor(a.beta, {T, HV}, "beta", true);
  c.tensor(a.out, {T, HV, V}, "out");
  c.gate_params(a.gate_params, HV, detail::is_per_channel<Spec> ? times(HV, K) : HV);
  c.require(is_zero(a.scale) || (is_finite(a.scale) && a.scale >= std::numeric_limits<float>::min()),
            error::wrong_value, "scale");
  const std::ptrdiff_t n = c.batch(a.sequences, T);
  const std::ptrdiff_t state = times(times(HV, K), V);
  c.require(addressable<state_type>(times(n > 0 ? n : 1, state)), error::wrong_shape, "v");
  c.pool(a.states, state);
  c.workspace_for(w, e, n);
  if (!c.result()) return c.result();

  written out{.out = region_of(a.out), .name = "out", .states = {}, .scratch = region_of(w.data, w.bytes)};
  if (a.states.slots > 0)
    out.states = region_of(view<const state_type, 2>{
        .data = a.states.data, .shape = {a.states.slots, state}, .stride = {a.states.slot_stride, 1}});
  c.apart(out, region_of(a.q));
  c.apart(out, region_of(a.k));
  c.apart(out, region_of(a.v));
  if constexpr (detail::is_decaying<Spec>) c.apart(out, region_of(a.gate));
  c.apart(out, region_of(a.beta));
  c.gate_params_apart(out, a.gate_params);
  c.batch_apart(out, a.sequences);
  c.apart(out);
  if (!c.result()) return c.result();
  c.slots(a.sequences, n, a.states.first_slot, a.states.slots, divide(w, n).table);
  return c.result();
}

template <core Core, class Spec>
KDA_INLINE status delta_rule(const delta_rule_args<Spec>& args, const workspace& w, const executor& e) {
  const status s = check(args, w, e);
  if (!s) return s;
  const delta_rule_tasks<Spec, Core> tasks(args);
  run_tasks(e, divide(w, args.sequences.store_slots.size).tasks, tasks.count(), tasks);
  return {};
}

// ---- convolution ----------------------------------------------------------------------------------------------------

/// One call of conv: task i is (sequence, block of channels).
template <class Spec> class conv_tasks {
  using t = detail::traits<Spec>;
  using T = typename t::io::qkv;
  static constexpr bool channel_major = t::conv::order == conv_state::channel_major;
  static constexpr std::ptrdiff_t block = 256;

 public:
  KDA_INLINE explicit conv_tasks(const conv_args<Spec>& args)
      : args_(args), channels_(args.x.shape[1]), blocks_((channels_ + block - 1) / block) {}

  [[nodiscard]] KDA_INLINE std::ptrdiff_t count() const { return args_.sequences.store_slots.size * blocks_; }

  KDA_NOINLINE void operator()(std::ptrdiff_t i, arena) const {
    const std::ptrdiff_t n = i / blocks_, begin = i % blocks_ * block;
    const std::ptrdiff_t end = begin + block < channels_ ? begin + block : channels_;
    const sequences& s = args_.sequences;
    const auto first = static_cast<std::ptrdiff_t>(s.offsets[n]), last = static_cast<std::ptrdiff_t>(s.offsets[n + 1]);
    if (is_padding(s, n, args_.states.first_slot)) {
      for (std::ptrdiff_t token = first; token < last; ++token)
        for (std::ptrdiff_t c = begin; c < end; ++c) *args_.y.at(token, c) = T{};
      return;
    }
    for (std::ptrdiff_t c = begin; c < end; c += vec::lanes) {
      const std::ptrdiff_t channels = end - c < vec::lanes ? end - c : vec::lanes;
      const conv_window<T> to = window(s.store_slots[n], c);
      conv_window<const T> from{nullptr, to.columns, to.column_stride, to.channel_stride};
      if (s.has_initial_state.data[n]) from.data = window(s.load_slots[n], c).data;
      const std::ptrdiff_t tokens = last - first;
      const T* x = tokens == 0 ? nullptr : args_.x.at(first, c);
      if (args_.weight.shape[1] == 4)
        convolve<4>(x, c, first, tokens, channels, from);
      else if (args_.weight.shape[1] == 3)
        convolve<3>(x, c, first, tokens, channels, from);
      else
        convolve<2>(x, c, first, tokens, channels, from);
      conv_advance(x, args_.x.stride[0], tokens, channels, from, to);
    }
  }

 private:
  [[nodiscard]] KDA_INLINE conv_window<T> window(std::int64_t slot, std::ptrdiff_t channel) const {
    const auto& p = args_.states;
    T* base = p.data + static_cast<std::ptrdiff_t>(slot) * p.slot_stride;
    if constexpr (channel_major)
      return {base + channel * p.stride, p.columns, 1, p.stride};
    else
      return {base + channel, p.columns, p.stride, 1};
  }
  template <int W>
  KDA_INLINE void convolve(const T* x, std::ptrdiff_t c, std::ptrdiff_t first, std::ptrdiff_t tokens, std::ptrdiff_t n,
                           const conv_window<const T>& from) const {
    conv_channels<W, t::conv::act>(x, args_.x.stride[0], args_.weight.at(c), args_.weight.stride[0],
                                   args_.weight.stride[1], args_.bias.data == nullptr ? nullptr : args_.bias.data + c,
                                   tokens == 0 ? nullptr : args_.y.at(first, c), args_.y.stride[0], tokens, n, from);
  }

  const conv_args<Spec>& args_;
  std::ptrdiff_t channels_, blocks_;
};

template <class Spec> KDA_NOINLINE status check(const conv_args<Spec>& a, const workspace& w, const executor& e) {
  using T = typename detail::traits<Spec>::io::qkv;
  constexpr bool channel_major = detail::traits<Spec>::conv::order == conv_state::channel_major;
  const std::ptrdiff_t tokens = a.x.shape[0], C = majority(a.weight.shape[0], a.y.shape[1], a.x.shape[1]),
                       W = a.weight.shape[1];
  checker c;
  c.require(C >= 1, error::wrong_shape, "x");
  c.tensor(a.x, {tokens, C}, "x");
  c.require(W >= 2 && W <= 4, error::wrong_shape, "weight");
  c.tensor(a.weight, {C, W}, "weight", true);
  c.optional(a.bias, C, "bias");
  c.tensor(a.y, {tokens, C}, "y");
  const std::ptrdiff_t n = c.batch(a.sequences, tokens);
  c.require(addressable<T>(times(n > 0 ? n : 1, C)), error::wrong_shape, "x");
  const auto& p = a.states;
  c.require(p.columns >= plus(W, -1), error::wrong_shape, "states.columns");
  if (!c.result()) return c.result();
  const std::ptrdiff_t rows = channel_major ? C : p.columns, row = channel_major ? p.columns : C;
  const std::ptrdiff_t slot = plus(times(rows - 1, p.stride), row);
  c.require(p.stride >= row && addressable<T>(slot), error::wrong_stride, "states.stride");
  c.pool(p, slot);
  c.workspace_for(w, e, n);
  if (!c.result()) return c.result();

  written out{.out = region_of(a.y), .name = "y", .states = {}, .scratch = region_of(w.data, w.bytes)};
  if (p.slots == 1)  // a channel range of wider rows keeps its period; several slots are taken as one piece
    out.states = region_of(view<const T, 2>{.data = p.data, .shape = {rows, row}, .stride = {p.stride, 1}});
  else if (p.slots > 1)
    out.states = region_of(p.data, ((p.slots - 1) * p.slot_stride + slot) * static_cast<std::ptrdiff_t>(sizeof(T)));
  c.apart(out, region_of(a.x));
  c.apart(out, region_of(a.weight));
  c.apart(out, region_of(a.bias));
  c.batch_apart(out, a.sequences);
  c.apart(out);
  if (!c.result()) return c.result();
  c.slots(a.sequences, n, p.first_slot, p.slots, divide(w, n).table);
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
  run_tasks(e, divide(w, 0).tasks, blocks * heads, task);
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
  c.workspace_for(w, e, 0);
  if (!c.result()) return c.result();
  const written out{.out = region_of(a.g), .name = "g", .states = {}, .scratch = region_of(w.data, w.bytes)};
  c.apart(out, region_of(a.x));
  c.gate_params_apart(out, a.gate_params);
  c.apart(out);
  return c.result();
}

template <class Spec> KDA_NOINLINE status check(const beta_args<Spec>& a, const workspace& w, const executor& e) {
  checker c;
  const std::ptrdiff_t T = a.b.shape[0], HV = a.b.shape[1];
  c.require(HV >= 1, error::wrong_shape, "b");
  c.tensor(a.b, {T, HV}, "b", true);
  c.tensor(a.beta, {T, HV}, "beta", true);
  c.workspace_for(w, e, 0);
  if (!c.result()) return c.result();
  const written out{.out = region_of(a.beta), .name = "beta", .states = {}, .scratch = region_of(w.data, w.bytes)};
  c.apart(out, region_of(a.b));
  c.apart(out);
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
  c.workspace_for(w, e, 0);
  if (!c.result()) return c.result();
  const written out{.out = region_of(a.y), .name = "y", .states = {}, .scratch = region_of(w.data, w.bytes)};
  c.apart(out, region_of(a.x));
  c.apart(out);
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
  c.workspace_for(w, e, 0);
  if (!c.result()) return c.result();
  const written out{.out = region_of(a.y), .name = "y", .states = {}, .scratch = region_of(w.data, w.bytes)};
  c.apart(out, region_of(a.x));
  c.apart(out, region_of(a.gate));
  c.apart(out, region_of(a.weight));
  c.apart(out);
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
  static status prefill(const delta_rule_args<Spec>& args, const workspace& w, const executor& e = serial) {
    return delta_rule<core::chunked>(args, w, e);
  }

  /// Recurrent delta rule, for decode; any number of tokens. n tokens in one call give the bits of n calls.
  static status decode(const delta_rule_args<Spec>& args, const workspace& w, const executor& e = serial) {
    return delta_rule<core::recurrent>(args, w, e);
  }

  /// Short convolution of raw projections, with state.
  static status conv(const conv_args<Spec>& args, const workspace& w, const executor& e = serial) {
    static_assert(t::conv::present, "kda::kernels::conv: the spec names no kda::conv option");
    const status s = check(args, w, e);
    if (!s) return s;
    const conv_tasks<Spec> tasks(args);
    run_tasks(e, divide(w, args.sequences.store_slots.size).tasks, tasks.count(), tasks);
    return {};
  }

  /// Log decay from gate logits.
  static status gate(const gate_args<Spec>& args, const workspace& w, const executor& e = serial) {
    static_assert(has_gate, "kda::kernels::gate: the spec's gate is given, or there is none");
    const status s = check(args, w, e);
    if (!s) return s;
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
  static status beta(const beta_args<Spec>& args, const workspace& w, const executor& e = serial) {
    static_assert(has_beta, "kda::kernels::beta: the spec's beta is given");
    const status s = check(args, w, e);
    if (!s) return s;
    for_token_blocks(e, w, args.b.shape[0], args.b.shape[1],
                     [&](std::ptrdiff_t first, std::ptrdiff_t n, std::ptrdiff_t head, arena scratch) {
                       float* row = scratch.take(chunk_tokens);
                       beta_tokens<typename t::beta>(args.b.at(first, head), args.b.stride[0], n, row);
                       for (std::ptrdiff_t i = 0; i < n; ++i) *args.beta.at(first + i, head) = row[i];
                     });
    return {};
  }

  /// L2 norm of q or k.
  static status l2norm(const l2norm_args<Spec>& args, const workspace& w, const executor& e = serial) {
    const status s = check(args, w, e);
    if (!s) return s;
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
  static status norm(const norm_args<Spec>& args, const workspace& w, const executor& e = serial) {
    static_assert(t::norm::present, "kda::kernels::norm: the spec names no kda::norm option");
    const status s = check(args, w, e);
    if (!s) return s;
    for_token_blocks(e, w, args.x.shape[0], args.x.shape[1],
                     [&](std::ptrdiff_t first, std::ptrdiff_t n, std::ptrdiff_t head, arena) {
                       for (std::ptrdiff_t i = 0; i < n; ++i)
                         norm_row<t::norm::act, t::norm::order>(
                             args.x.at(first + i, head), args.gate.at(first + i, head), args.weight.data,
                             args.eps.value, args.x.shape[2], args.y.at(first + i, head));
                     });
    return {};
  }

  static constexpr bool has_gate = detail::is_decaying<Spec> && !std::is_same_v<typename t::gate, kda::gate::given>;
  static constexpr bool has_beta = !std::is_same_v<typename t::beta, kda::beta::given>;
};

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
