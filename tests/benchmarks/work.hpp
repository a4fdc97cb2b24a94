// SPDX-License-Identifier: Apache-2.0
// Full-size calls of one kernel: inputs, arguments, and the check of what the first call gives.
#pragma once
#include "memory.hpp"
#include "specs.hpp"

#include <kda/batch.hpp>
#include <kda/reference.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace bench {

namespace ref = kda::reference;

/// A call that can be repeated; the states that it works on advance.
class work {
 public:
  work() = default;
  work(const work&) = delete;
  work& operator=(const work&) = delete;
  virtual ~work() = default;

  virtual kda::status call(const kda::executor&, kda::checking) = 0;
  /// Calls once and compares a few heads with the double reference: the largest error over the largest entry, of each
  /// tensor. To be called first.
  virtual double check() = 0;
  /// What check() may give: rounded outputs and states are compared as they are stored.
  [[nodiscard]] virtual double bound() const = 0;

  void call_or_throw(const kda::executor& e = kda::serial, kda::checking c = kda::checking::checked) {
    const kda::status s = call(e, c);
    if (!s) throw std::runtime_error(std::string(s.argument) + " " + kda::message(s.what));
  }

  const char* isa = nullptr;  // as the table says
  double token_heads = 0;
  double state_bytes = 0;  // of the states read, and as many written
  double bytes = 0;        // read and written, states included
};

template <class T> constexpr double rounding() {
  return std::is_same_v<T, float> ? 0 : std::is_same_v<T, kda::bf16> ? 0x1p-8 : 0x1p-11;
}

/// max |got - want| / max |want| over rows of 128 channels.
class deviation {
 public:
  template <class T> void add(const T* got, index stride, const ref::values& want, index row = head_dim) {
    for (index i = 0; i < std::ssize(want); ++i) {
      const double g = static_cast<double>(kda::to_float(got[i / row * stride + i % row]));
      const double w = want[static_cast<std::size_t>(i)];
      if (!std::isfinite(g)) worst_ = HUGE_VAL;
      worst_ = std::max(worst_, std::abs(g - w));
      largest_ = std::max(largest_, std::abs(w));
    }
  }
  [[nodiscard]] double relative() const { return largest_ > 0 ? worst_ / largest_ : worst_; }

 private:
  double worst_ = 0, largest_ = 0;
};

/// `rows` rows of `n` elements, as doubles.
template <class T> ref::values widened(const T* x, index stride, index rows, index n = head_dim) {
  ref::values y;
  y.reserve(static_cast<std::size_t>(rows * n));
  for (index r = 0; r < rows; ++r)
    for (index i = 0; i < n; ++i) y.push_back(static_cast<double>(kda::to_float(x[r * stride + i])));
  return y;
}

/// How the slots of a pool lie and are visited.
struct slots {
  bool shuffled = true;
  index gap = 0;  // elements between slots
};

/// Sequences of given lengths, all with a state, in place.
class batch {
 public:
  batch(const std::vector<index>& lengths, const slots& s) : offsets_{0}, has_(new bool[lengths.size()]) {
    for (const index n : lengths) {
      offsets_.push_back(offsets_.back() + n);
      slots_.push_back(static_cast<std::int32_t>(slots_.size()));
      has_[slots_.size() - 1] = true;
    }
    numbers r(7);
    for (index i = size() - 1; s.shuffled && i > 0; --i)
      std::swap(slots_[at(i)], slots_[at(static_cast<index>(r.next(0, 1) * static_cast<float>(i + 1)))]);
  }
  [[nodiscard]] index size() const { return std::ssize(slots_); }
  [[nodiscard]] index tokens() const { return offsets_.back(); }
  [[nodiscard]] index first(index n) const { return offsets_[at(n)]; }
  [[nodiscard]] index length(index n) const { return offsets_[at(n) + 1] - offsets_[at(n)]; }
  [[nodiscard]] index slot(index n) const { return slots_[at(n)]; }
  [[nodiscard]] kda::sequences views() const {
    return {.offsets = kda::indices(offsets_.data(), size() + 1),
            .load_slots = kda::indices(slots_.data(), size()),
            .store_slots = kda::indices(slots_.data(), size()),
            .has_initial_state = kda::packed(static_cast<const bool*>(has_.get()), size())};
  }
  /// The sequences and heads that are checked: the first and the last.
  template <class F> void for_each_checked(index heads, const F& f) const {
    for (index n = 0; n < size(); n += std::max<index>(size() - 1, 1))
      for (index h = heads == 1 ? 0 : length(n) > 2048 ? heads - 1 : 0; h < heads; h += std::max<index>(heads - 1, 1))
        f(n, h);
  }

 private:
  static std::size_t at(index i) { return static_cast<std::size_t>(i); }

  std::vector<std::int64_t> offsets_;
  std::vector<std::int32_t> slots_;
  std::unique_ptr<bool[]> has_;
};

/// What prefill, decode and step share: batch, states, gate, beta, workspace.
template <class Spec> struct layer_inputs {
  using t = kda::detail::traits<Spec>;
  using types = kda::types<Spec>;
  using state_type = typename types::state;
  static constexpr bool per_channel = kda::detail::is_per_channel<Spec>;
  static constexpr bool bounded = std::is_same_v<typename t::gate, kda::gate::bounded>;
  static constexpr index state_size = head_dim * head_dim;
  static constexpr float lower_bound = -5;

  geometry g;
  batch sequences;
  index gates, slot_stride;  // gates: per token
  array<state_type> states;
  array<typename types::gate> gate;
  array<typename types::beta> beta;
  array<float> a_log, dt_bias;
  std::vector<char> scratch;

  layer_inputs(const geometry& g_, const std::vector<index>& lengths, const slots& s, index concurrency)
      : g(g_),
        sequences(lengths, s),
        gates(per_channel ? g.HV * head_dim : g.HV),
        slot_stride(g.HV * state_size + s.gap),
        states(random_array<state_type>(sequences.size() * slot_stride, 1, -0.1f, 0.1f, pages::huge)),
        gate(random_array<typename types::gate>(sequences.tokens() * gates, 2, -2, 2)),
        beta(random_array<typename types::beta>(sequences.tokens() * g.HV, 3, -2, 2)),
        a_log(random_array<float>(g.HV, 4, -0.5f, 0.5f)),
        dt_bias(random_array<float>(gates, 5, -0.5f, 0.5f)),
        scratch(static_cast<std::size_t>(
            kda::workspace_bytes({.sequences = sequences.size(), .concurrency = concurrency}))) {}

  [[nodiscard]] kda::workspace workspace() { return {.data = scratch.data(), .bytes = std::ssize(scratch)}; }
  [[nodiscard]] kda::state_pool<state_type> pool() {
    return {.data = states.data(), .slots = sequences.size(), .slot_stride = slot_stride};
  }
  [[nodiscard]] typename types::gate_params gate_params() const {
    const auto a = kda::packed(a_log.data(), a_log.size()), d = kda::packed(dt_bias.data(), dt_bias.size());
    if constexpr (bounded)
      return {.lower_bound = lower_bound, .a_log = a, .dt_bias = d};
    else
      return {.a_log = a, .dt_bias = d};
  }
  [[nodiscard]] auto gate_view() const {
    if constexpr (per_channel)
      return kda::packed(gate.data(), sequences.tokens(), g.HV, head_dim);
    else
      return kda::packed(gate.data(), sequences.tokens(), g.HV);
  }
  [[nodiscard]] auto beta_view() const { return kda::packed(beta.data(), sequences.tokens(), g.HV); }
  [[nodiscard]] double state_bytes() const {
    return static_cast<double>(sequences.size() * g.HV * state_size) * sizeof(state_type);
  }

  [[nodiscard]] index key_head(index h) const { return h / (g.HV / g.H); }  // head_map::interleaved
  [[nodiscard]] const state_type* state(index n, index h) const {
    return states.data() + sequences.slot(n) * slot_stride + h * state_size;
  }
  /// A head's state, [K, V].
  [[nodiscard]] ref::values key_major(index n, index h) const {
    const ref::values s = widened(state(n, h), head_dim, head_dim);
    return t::state::order == kda::layout::key_major ? s : transposed(s);
  }
  static ref::values transposed(const ref::values& s) {
    ref::values y(s.size());
    for (std::size_t i = 0; i < s.size(); ++i) y[i % head_dim * head_dim + i / head_dim] = s[i];
    return y;
  }
  /// Log decays of a head: [tokens, K] or [tokens].
  [[nodiscard]] ref::values log_decay(index n, index h) const {
    constexpr index D = per_channel ? head_dim : 1;
    const index tokens = sequences.length(n);
    const ref::values x = widened(gate.data() + sequences.first(n) * gates + h * D, gates, tokens, D);
    const ref::values a = widened(a_log.data() + h, 1, 1, 1), d = widened(dt_bias.data() + h * D, D, 1, D);
    if constexpr (bounded)
      return ref::bounded_gate(x, a, d, static_cast<double>(lower_bound), tokens, 1, D);
    else
      return ref::unbounded_gate(x, a, d, tokens, 1, D);
  }
  /// The delta rule for one head: outputs [tokens, V]; `s` [K, V] advances.
  [[nodiscard]] ref::values recurrent(index n, index h, const ref::values& q, const ref::values& k,
                                      const ref::values& v, ref::values& s) const {
    const index tokens = sequences.length(n);
    const ref::values b = ref::sigmoid(widened(beta.data() + sequences.first(n) * g.HV + h, g.HV, tokens, 1), 1);
    return ref::recurrent(
        q, k, v, log_decay(n, h), b, s,
        {tokens, 1, 1, head_dim, head_dim, per_channel ? ref::decay_kind::per_channel : ref::decay_kind::per_head,
         ref::head_map_kind::interleaved},
        1 / std::sqrt(static_cast<double>(head_dim)));
  }
  void add_state(deviation& d, index n, index h, const ref::values& s) const {
    d.add(state(n, h), head_dim, t::state::order == kda::layout::key_major ? s : transposed(s));
  }
  /// Of fp32 products 1e-5, twice that beyond 4096 tokens; of bf16 products 2^-6.
  [[nodiscard]] double bound() const {
    index longest = 0;
    for (index n = 0; n < sequences.size(); ++n) longest = std::max(longest, sequences.length(n));
    const bool rounds = std::is_same_v<typename t::products::type, kda::bf16>;
    return std::max({rounds           ? 0x1p-6
                     : longest > 4096 ? 2e-5
                                      : 1e-5,
                     rounding<typename types::out>(), 2 * rounding<state_type>()});
  }
};

/// prefill or decode.
template <class Spec> class core_work final : public work {
  using types = kda::types<Spec>;
  using qkv = typename types::stage_qkv;

 public:
  core_work(const kda::table<Spec>& table, kda::mode m, const geometry& g, const std::vector<index>& lengths,
            index concurrency, const slots& s = {})
      : call_(m == kda::mode::decode ? table.decode : table.prefill),
        in_(g, lengths, s, concurrency),
        q_(random_array<qkv>(in_.sequences.tokens() * g.H * head_dim, 11, -1, 1)),
        k_(random_array<qkv>(q_.size(), 12, -1, 1)),
        v_(random_array<qkv>(in_.sequences.tokens() * g.HV * head_dim, 13, -1, 1)),
        out_(v_.size()),
        args_(arguments()) {
    isa = table.isa;
    token_heads = static_cast<double>(in_.sequences.tokens() * g.HV);
    state_bytes = in_.state_bytes();
    bytes = 2 * state_bytes + static_cast<double>(q_.bytes() + k_.bytes() + v_.bytes() + out_.bytes() +
                                                  in_.gate.bytes() + in_.beta.bytes());
  }

  kda::status call(const kda::executor& e, kda::checking c) override { return call_(args_, in_.workspace(), e, c); }
  /// The same tensors with the slots of `sequences`, `gap` elements apart, in the same memory: gap is at most its own.
  void call_with(const batch& sequences, index gap, const kda::executor& e) {
    kda::delta_rule_args<Spec> a = args_;
    a.sequences = sequences.views();
    a.states.slot_stride = in_.g.HV * in_.state_size + gap;
    if (!call_(a, in_.workspace(), e, kda::checking::checked)) throw std::runtime_error("refused with other slots");
  }

  double check() override {
    std::vector<ref::values> states;
    in_.sequences.for_each_checked(in_.g.HV, [&](index n, index h) { states.push_back(in_.key_major(n, h)); });
    call_or_throw();
    deviation out, state;
    std::size_t i = 0;
    in_.sequences.for_each_checked(in_.g.HV, [&](index n, index h) {
      const index first = in_.sequences.first(n), T = in_.sequences.length(n), keys = in_.g.H * head_dim,
                  values = in_.g.HV * head_dim, key = in_.key_head(h);
      const ref::values o = in_.recurrent(n, h, widened(q_.data() + first * keys + key * head_dim, keys, T),
                                          widened(k_.data() + first * keys + key * head_dim, keys, T),
                                          widened(v_.data() + first * values + h * head_dim, values, T), states[i]);
      out.add(out_.data() + first * values + h * head_dim, values, o);
      in_.add_state(state, n, h, states[i++]);
    });
    return std::max(out.relative(), state.relative());
  }
  [[nodiscard]] double bound() const override { return in_.bound(); }

 private:
  kda::delta_rule_args<Spec> arguments() {
    const index T = in_.sequences.tokens();
    return {.q = kda::packed(std::as_const(q_).data(), T, in_.g.H, head_dim),
            .k = kda::packed(std::as_const(k_).data(), T, in_.g.H, head_dim),
            .v = kda::packed(std::as_const(v_).data(), T, in_.g.HV, head_dim),
            .gate = in_.gate_view(),
            .beta = in_.beta_view(),
            .out = kda::packed(out_.data(), T, in_.g.HV, head_dim),
            .gate_params = in_.gate_params(),
            .sequences = in_.sequences.views(),
            .states = in_.pool()};
  }

  kda::call<kda::delta_rule_args<Spec>> call_;
  layer_inputs<Spec> in_;
  array<qkv> q_, k_, v_;
  array<typename types::stage_out> out_;
  kda::delta_rule_args<Spec> args_;
};

/// step, and what it is said to equal: conv, then prefill or decode, then norm. q, k, v are columns of one projection.
template <class Spec> class step_work final : public work {
  using types = kda::types<Spec>;
  using raw = typename types::qkv;
  using t = kda::detail::traits<Spec>;

 public:
  step_work(const kda::table<Spec>& table, const std::vector<kda::mode>& modes, const geometry& g,
            const std::vector<index>& lengths, index concurrency)
      : table_(table),
        modes_(modes),
        in_(g, lengths, {}, concurrency),
        keys_(g.H * head_dim),
        values_(g.HV * head_dim),
        channels_(2 * keys_ + values_),
        projection_(random_array<raw>(in_.sequences.tokens() * channels_, 21, -1, 1)),
        conv_states_(random_array<raw>(in_.sequences.size() * (conv_width - 1) * channels_, 22, -1, 1)),
        output_gate_(random_array<typename types::out>(in_.sequences.tokens() * values_, 23, -2, 2)),
        y_(output_gate_.size()),
        conv_weight_(random_array<float>(channels_ * conv_width, 24, -0.5f, 0.5f)),
        conv_bias_(random_array<float>(channels_, 25, -0.5f, 0.5f)),
        norm_weight_(random_array<float>(head_dim, 26, 0.5f, 1.5f)),
        args_(arguments()) {
    isa = table.isa;
    token_heads = static_cast<double>(in_.sequences.tokens() * g.HV);
    state_bytes = in_.state_bytes();
    bytes = 2 * (state_bytes + static_cast<double>(conv_states_.bytes())) +
            static_cast<double>(projection_.bytes() + output_gate_.bytes() + y_.bytes() + in_.gate.bytes() +
                                in_.beta.bytes());
  }

  kda::status call(const kda::executor& e, kda::checking c) override {
    return table_.step(args_, in_.workspace(), e, c);
  }

  /// The same by three calls, for batches of one mode; their tensors are made at the first call.
  kda::status call_parts(const kda::executor& e) {
    const index T = in_.sequences.tokens(), HV = in_.g.HV;
    if (mixed_.size() == 0) {
      mixed_ = array<typename types::stage_qkv>(T * channels_);
      out_ = array<typename types::stage_out>(T * values_);
    }
    const auto columns = kda::packed(std::as_const(mixed_).data(), T, channels_);
    kda::status s = table_.conv({.x = kda::packed(std::as_const(projection_).data(), T, channels_),
                                 .weight = args_.conv_weight,
                                 .bias = args_.conv_bias,
                                 .y = kda::packed(mixed_.data(), T, channels_),
                                 .sequences = args_.sequences,
                                 .states = args_.conv_states},
                                in_.workspace(), e);
    if (!s) return s;
    s = (modes_[0] == kda::mode::decode ? table_.decode : table_.prefill)(
        {.q = columns.heads(0, in_.g.H, head_dim),
         .k = columns.heads(keys_, in_.g.H, head_dim),
         .v = columns.heads(2 * keys_, HV, head_dim),
         .gate = args_.gate,
         .beta = args_.beta,
         .out = kda::packed(out_.data(), T, HV, head_dim),
         .gate_params = args_.gate_params,
         .sequences = args_.sequences,
         .states = args_.states},
        in_.workspace(), e);
    if (!s) return s;
    return table_.norm({.x = kda::packed(std::as_const(out_).data(), T, HV, head_dim),
                        .gate = args_.output_gate,
                        .weight = args_.norm_weight,
                        .eps = args_.norm_eps,
                        .y = args_.y},
                       in_.workspace(), e);
  }

  double check() override {
    std::vector<ref::values> states, qs, ks, vs;
    in_.sequences.for_each_checked(in_.g.HV, [&](index n, index h) {
      states.push_back(in_.key_major(n, h));
      const index key = in_.key_head(h) * head_dim;
      qs.push_back(convolved(n, key));
      ks.push_back(convolved(n, keys_ + key));
      vs.push_back(convolved(n, 2 * keys_ + h * head_dim));
    });
    call_or_throw();
    deviation y, state;
    std::size_t i = 0;
    in_.sequences.for_each_checked(in_.g.HV, [&](index n, index h) {
      const index at = in_.sequences.first(n) * values_ + h * head_dim, T = in_.sequences.length(n);
      const ref::values o = in_.recurrent(n, h, qs[i], ks[i], vs[i], states[i]);
      constexpr auto activation =
          t::norm::act == kda::activation::silu ? ref::activation_kind::silu : ref::activation_kind::sigmoid;
      y.add(y_.data() + at, values_,
            ref::rms_norm_gated(o, widened(output_gate_.data() + at, values_, T),
                                widened(norm_weight_.data(), head_dim, 1), T, head_dim, static_cast<double>(eps),
                                activation));
      in_.add_state(state, n, h, states[i++]);
    });
    return std::max(y.relative(), state.relative());
  }
  [[nodiscard]] double bound() const override { return 2 * in_.bound(); }  // the norm divides by what may be small

 private:
  static constexpr float eps = 1e-5f;

  kda::step_args<Spec> arguments() {
    const index T = in_.sequences.tokens(), H = in_.g.H, HV = in_.g.HV;
    const auto wide = kda::packed(std::as_const(projection_).data(), T, channels_);
    return {.q = wide.heads(0, H, head_dim),
            .k = wide.heads(keys_, H, head_dim),
            .v = wide.heads(2 * keys_, HV, head_dim),
            .conv_weight = kda::packed(std::as_const(conv_weight_).data(), channels_, conv_width),
            .conv_bias = kda::packed(std::as_const(conv_bias_).data(), channels_),
            .gate = in_.gate_view(),
            .beta = in_.beta_view(),
            .output_gate = kda::packed(std::as_const(output_gate_).data(), T, HV, head_dim),
            .norm_weight = kda::packed(std::as_const(norm_weight_).data(), head_dim),
            .norm_eps = eps,
            .y = kda::packed(y_.data(), T, HV, head_dim),
            .gate_params = in_.gate_params(),
            .modes = kda::packed(std::as_const(modes_).data(), in_.sequences.size()),
            .sequences = in_.sequences.views(),
            .states = in_.pool(),
            .conv_states = {.data = conv_states_.data(), .slots = in_.sequences.size()}};
  }

  /// 128 channels of q, k or v of a sequence, after the convolution.
  [[nodiscard]] ref::values convolved(index n, index channel) const {
    const index T = in_.sequences.length(n);
    ref::values window = widened(conv_states_.data() + in_.sequences.slot(n) * (conv_width - 1) * channels_ + channel,
                                 channels_, conv_width - 1);
    return ref::short_conv(widened(projection_.data() + in_.sequences.first(n) * channels_ + channel, channels_, T),
                           widened(conv_weight_.data() + channel * conv_width, conv_width, head_dim, conv_width),
                           widened(conv_bias_.data() + channel, head_dim, 1), window, T, head_dim, conv_width,
                           ref::activation_kind::silu);
  }

  const kda::table<Spec>& table_;
  std::vector<kda::mode> modes_;
  layer_inputs<Spec> in_;
  index keys_, values_, channels_;
  array<raw> projection_, conv_states_;
  array<typename types::out> output_gate_, y_;
  array<float> conv_weight_, conv_bias_, norm_weight_;
  array<typename types::stage_qkv> mixed_;
  array<typename types::stage_out> out_;
  kda::step_args<Spec> args_;
};

/// conv: q | k | v of all heads in one call.
template <class Spec> class conv_work final : public work {
  using types = kda::types<Spec>;
  using raw = typename types::qkv;

 public:
  conv_work(const kda::table<Spec>& table, const geometry& g, const std::vector<index>& lengths, index concurrency)
      : call_(table.conv),
        sequences_(lengths, {}),
        channels_((2 * g.H + g.HV) * head_dim),
        x_(random_array<raw>(sequences_.tokens() * channels_, 31, -1, 1)),
        states_(random_array<raw>(sequences_.size() * (conv_width - 1) * channels_, 32, -1, 1)),
        y_(x_.size()),
        weight_(random_array<float>(channels_ * conv_width, 33, -0.5f, 0.5f)),
        bias_(random_array<float>(channels_, 34, -0.5f, 0.5f)),
        scratch_(static_cast<std::size_t>(
            kda::workspace_bytes({.sequences = sequences_.size(), .concurrency = concurrency}))) {
    const index T = sequences_.tokens();
    args_ = {.x = kda::packed(std::as_const(x_).data(), T, channels_),
             .weight = kda::packed(std::as_const(weight_).data(), channels_, conv_width),
             .bias = kda::packed(std::as_const(bias_).data(), channels_),
             .y = kda::packed(y_.data(), T, channels_),
             .sequences = sequences_.views(),
             .states = {.data = states_.data(), .slots = sequences_.size()}};
    isa = table.isa;
    token_heads = static_cast<double>(T * g.HV);
    state_bytes = static_cast<double>(states_.bytes());
    bytes = 2 * state_bytes + static_cast<double>(x_.bytes() + y_.bytes());
  }
  kda::status call(const kda::executor& e, kda::checking c) override {
    return call_(args_, {.data = scratch_.data(), .bytes = std::ssize(scratch_)}, e, c);
  }
  double check() override {
    std::vector<ref::values> want;
    sequences_.for_each_checked(channels_ / head_dim, [&](index n, index h) {
      const index T = sequences_.length(n), channel = h * head_dim;
      ref::values window = widened(states_.data() + sequences_.slot(n) * (conv_width - 1) * channels_ + channel,
                                   channels_, conv_width - 1);
      want.push_back(ref::short_conv(widened(x_.data() + sequences_.first(n) * channels_ + channel, channels_, T),
                                     widened(weight_.data() + channel * conv_width, conv_width, head_dim, conv_width),
                                     widened(bias_.data() + channel, head_dim, 1), window, T, head_dim, conv_width,
                                     ref::activation_kind::silu));
    });
    call_or_throw();
    deviation d;
    std::size_t i = 0;
    sequences_.for_each_checked(channels_ / head_dim, [&](index n, index h) {
      d.add(y_.data() + sequences_.first(n) * channels_ + h * head_dim, channels_, want[i++]);
    });
    return d.relative();
  }
  [[nodiscard]] double bound() const override { return std::max(1e-5, rounding<typename types::stage_qkv>()); }

 private:
  kda::call<kda::conv_args<Spec>> call_;
  batch sequences_;
  index channels_;
  array<raw> x_, states_;
  array<typename types::stage_qkv> y_;
  array<float> weight_, bias_;
  std::vector<char> scratch_;
  kda::conv_args<Spec> args_;
};

/// gate, l2norm or norm: rows of 128 channels, each by itself.
enum class row_kernel { gate, l2norm, norm };
template <class Spec> class row_work final : public work {
  using types = kda::types<Spec>;
  using inputs = layer_inputs<Spec>;

 public:
  row_work(const kda::table<Spec>& table, row_kernel kernel, const geometry& g, index tokens, index concurrency)
      : table_(table),
        kernel_(kernel),
        heads_(kernel == row_kernel::l2norm ? g.H : g.HV),
        tokens_(tokens),
        gates_({g.name, heads_, heads_}, {kernel == row_kernel::gate ? tokens : 0}, {}, concurrency),
        weight_(random_array<float>(head_dim, 41, 0.5f, 1.5f)) {
    const index n = tokens * heads_ * head_dim;
    if (kernel == row_kernel::gate) {
      g_ = array<float>(tokens * gates_.gates);
      bytes = static_cast<double>(gates_.gate.bytes() + g_.bytes());
    } else if (kernel == row_kernel::l2norm) {
      x_ = random_array<typename types::stage_qkv>(n, 42, -1, 1);
      g_ = array<float>(n);
      bytes = static_cast<double>(x_.bytes() + g_.bytes());
    } else {
      out_ = random_array<typename types::stage_out>(n, 43, -1, 1);
      output_gate_ = random_array<typename types::out>(n, 44, -2, 2);
      y_ = array<typename types::out>(n);
      bytes = static_cast<double>(out_.bytes() + output_gate_.bytes() + y_.bytes());
    }
    isa = table.isa;
    token_heads = static_cast<double>(tokens * heads_);
  }
  kda::status call(const kda::executor& e, kda::checking c) override {
    const kda::workspace w = gates_.workspace();
    switch (kernel_) {
      case row_kernel::gate: {
        kda::gate_args<Spec> a{.x = gates_.gate_view(), .gate_params = gates_.gate_params()};
        if constexpr (inputs::per_channel)
          a.g = kda::packed(g_.data(), tokens_, heads_, head_dim);
        else
          a.g = kda::packed(g_.data(), tokens_, heads_);
        return table_.gate(a, w, e, c);
      }
      case row_kernel::l2norm:
        return table_.l2norm({.x = kda::packed(std::as_const(x_).data(), tokens_, heads_, head_dim),
                              .eps = 1e-6f,
                              .scale = 1.f,
                              .y = kda::packed(g_.data(), tokens_, heads_, head_dim)},
                             w, e, c);
      case row_kernel::norm:
        return table_.norm({.x = kda::packed(std::as_const(out_).data(), tokens_, heads_, head_dim),
                            .gate = kda::packed(std::as_const(output_gate_).data(), tokens_, heads_, head_dim),
                            .weight = kda::packed(std::as_const(weight_).data(), head_dim),
                            .eps = 1e-5f,
                            .y = kda::packed(y_.data(), tokens_, heads_, head_dim)},
                           w, e, c);
    }
    return {};
  }
  double check() override {
    call_or_throw();
    deviation d;
    const index row = heads_ * head_dim;
    for (index h = 0; h < heads_; h += std::max<index>(heads_ - 1, 1)) {
      const index at = h * head_dim;
      switch (kernel_) {
        case row_kernel::gate: {
          constexpr index D = inputs::per_channel ? head_dim : 1;
          d.add(g_.data() + h * D, gates_.gates, gates_.log_decay(0, h), D);
          break;
        }
        case row_kernel::l2norm:
          d.add(g_.data() + at, row,
                ref::l2norm_rows(widened(x_.data() + at, row, tokens_), tokens_, head_dim, 1e-6, 1));
          break;
        case row_kernel::norm:
          d.add(y_.data() + at, row,
                ref::rms_norm_gated(
                    widened(out_.data() + at, row, tokens_), widened(output_gate_.data() + at, row, tokens_),
                    widened(weight_.data(), head_dim, 1), tokens_, head_dim, 1e-5,
                    kda::detail::traits<Spec>::norm::act == kda::activation::silu ? ref::activation_kind::silu
                                                                                  : ref::activation_kind::sigmoid));
          break;
      }
    }
    return d.relative();
  }
  [[nodiscard]] double bound() const override {
    return std::max(1e-5, kernel_ == row_kernel::norm ? 2 * rounding<typename types::out>() : 0);
  }

 private:
  const kda::table<Spec>& table_;
  row_kernel kernel_;
  index heads_, tokens_;
  inputs gates_;
  array<typename types::stage_qkv> x_;
  array<float> g_, weight_;
  array<typename types::stage_out> out_;
  array<typename types::out> output_gate_, y_;
};

}  // namespace bench
