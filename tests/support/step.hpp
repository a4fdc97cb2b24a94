// SPDX-License-Identifier: Apache-2.0
// Batches for step, and the same batches through conv, prefill, decode and norm one by one. The raw projections are
// columns of one wide matrix, as an engine has them.
#pragma once
#include "batches.hpp"

namespace testing {

template <class Spec> struct step_call {
  using spec = Spec;
  using t = kda::detail::traits<Spec>;
  using raw = typename t::io::qkv;
  using stage_qkv = typename t::stage::qkv;
  using stage_out = typename t::stage::out;
  using out_type = typename t::io::out;
  using pool = slot_pool<typename t::state::type>;
  using windows = slot_pool<raw>;
  static constexpr bool channel_major = t::conv::order == kda::conv_state::channel_major;
  static constexpr index width = 4, gap = 5;
  static constexpr geometry usual{.T = 0,
                                  .H = 2,
                                  .HV = t::dims::key == 0 ? 4 : 2,
                                  .K = t::dims::key == 0 ? 20 : t::dims::key,
                                  .V = t::dims::value == 0 ? 19 : t::dims::value};

  geometry g;
  index tokens, keys, channels, row;  // keys: channels of q and of k; row: of the projection
  sequence_lists lists;
  std::vector<kda::mode> modes;
  pool states;
  windows conv_states;
  std::vector<raw> projection;
  std::vector<float> conv_weight, conv_bias, norm_weight;
  std::vector<out_type> output_gate, y;
  packed_tensors<Spec> tensors;  // gate, beta, parameters
  std::int64_t first_slot = 0;

  static pool states_of(index slots, std::uint64_t seed, const geometry& g = usual) {
    return pool(slots, 1, g.HV * g.K * g.V, 0, seed);
  }
  static windows windows_of(index slots, std::uint64_t seed, const geometry& g = usual, index columns = width) {
    const index channels = 2 * g.H * g.K + g.HV * g.V;
    return channel_major ? windows(slots, channels, columns, 3, seed) : windows(slots, columns, channels, 3, seed);
  }

  step_call(const std::vector<sequence>& batch, std::vector<kda::mode> modes_, pool states_, windows conv_states_,
            const geometry& g_ = usual)
      : g(g_),
        tokens(0),
        keys(g.H * g.K),
        channels(2 * keys + g.HV * g.V),
        row(channels + gap),
        lists(batch),
        modes(std::move(modes_)),
        states(std::move(states_)),
        conv_states(std::move(conv_states_)),
        conv_weight(random_numbers(1).normals(channels * width, 0.5)),
        conv_bias(random_numbers(2).normals(channels, 0.5)),
        norm_weight(random_numbers(3).normals(g.V)),
        tensors(joined_problem<Spec>(batch, g)) {
    for (const sequence& s : batch) {
      append(projection, rounded_to<raw>(random_numbers(s.seed).normals(s.tokens * row)));
      append(output_gate, rounded_to<out_type>(random_numbers(s.seed + 1).normals(s.tokens * g.HV * g.V)));
      tokens += s.tokens;
    }
    y.resize(output_gate.size());
    fill_bytes(y, canary_bytes);
  }

  [[nodiscard]] kda::step_args<Spec> args() {
    const auto wide = kda::packed(static_cast<const raw*>(projection.data()), tokens, row);
    const kda::delta_rule_args<Spec> d = tensors.args();
    return {.q = wide.heads(0, g.H, g.K),
            .k = wide.heads(keys, g.H, g.K),
            .v = wide.heads(2 * keys, g.HV, g.V),
            .conv_weight = kda::packed(static_cast<const float*>(conv_weight.data()), channels, width),
            .conv_bias = kda::packed(static_cast<const float*>(conv_bias.data()), channels),
            .gate = d.gate,
            .beta = d.beta,
            .output_gate = kda::packed(static_cast<const out_type*>(output_gate.data()), tokens, g.HV, g.V),
            .norm_weight = kda::packed(static_cast<const float*>(norm_weight.data()), g.V),
            .norm_eps = 1e-5f,
            .y = kda::packed(y.data(), tokens, g.HV, g.V),
            .gate_params = d.gate_params,
            .modes = kda::packed(static_cast<const kda::mode*>(modes.data()), std::ssize(modes)),
            .sequences = lists.views(),
            .states = {.data = states.cells.data(),
                       .slots = states.slots,
                       .slot_stride = states.stride,
                       .first_slot = first_slot},
            .conv_states = {.data = conv_states.cells.data(),
                            .slots = conv_states.slots,
                            .slot_stride = conv_states.stride,
                            .columns = channel_major ? conv_states.row : conv_states.rows,
                            .stride = conv_states.row_stride,
                            .first_slot = first_slot}};
  }
  static auto function() { return kernels_of<Spec>().step; }
  [[nodiscard]] index sequences() const { return std::ssize(lists.load); }
  [[nodiscard]] kda::status try_run(const kda::executor& e = kda::serial) {
    return function()(args(), scratch(sequences(), e.concurrency, lists.kept_states()), e);
  }
  void run(const kda::executor& e = kda::serial) { throw_unless(try_run(e)); }

  /// What step is said to equal: `a`'s conv, then prefill or decode of the sequences that have that mode, then norm. A
  /// sequence of the other mode takes part with no token and frozen, which touches nothing.
  static void run_parts(const kda::step_args<Spec>& a, kda::workspace w) {
    const auto& k = kernels_of<Spec>();
    const index T = a.q.shape[0], H = a.q.shape[1], HV = a.v.shape[1], K = a.q.shape[2], V = a.v.shape[2];
    const index C = a.conv_weight.shape[0], N = a.modes.shape[0];
    kda::sequences s = a.sequences;
    // conv takes q | k | v as one matrix: step's views are columns of one
    std::vector<stage_qkv> mixed(size(T * C));
    throw_unless(k.conv({.x = {.data = a.q.data, .shape = {T, C}, .stride = {a.q.stride[0], 1}},
                         .weight = a.conv_weight,
                         .bias = a.conv_bias,
                         .y = kda::packed(mixed.data(), T, C),
                         .sequences = s,
                         .states = a.conv_states},
                        w));
    std::vector<stage_out> out(size(T * HV * V));
    const auto columns = kda::packed(static_cast<const stage_qkv*>(mixed.data()), T, C);
    for (const kda::mode m : {kda::mode::decode, kda::mode::prefill}) {
      if (std::find(a.modes.data, a.modes.data + N, m) == a.modes.data + N) continue;
      std::vector<std::int64_t> lengths;
      const std::unique_ptr<bool[]> frozen(new bool[size(N)]);
      for (index n = 0; n < N; ++n) {
        const bool mine = *a.modes.at(n) == m;
        frozen[size(n)] = !mine || (s.frozen.data != nullptr && *s.frozen.at(n));
        lengths.push_back(!mine ? 0 : s.lengths.size != 0 ? s.lengths[n] : s.offsets[n + 1] - s.offsets[n]);
      }
      kda::sequences some = s;
      some.lengths = kda::indices(lengths.data(), N);
      some.frozen = kda::packed(static_cast<const bool*>(frozen.get()), N);
      throw_unless((m == kda::mode::decode ? k.decode : k.prefill)({.q = columns.heads(0, H, K),
                                                                    .k = columns.heads(H * K, H, K),
                                                                    .v = columns.heads(2 * H * K, HV, V),
                                                                    .gate = a.gate,
                                                                    .beta = a.beta,
                                                                    .out = kda::packed(out.data(), T, HV, V),
                                                                    .gate_params = a.gate_params,
                                                                    .scale = a.scale,
                                                                    .sequences = some,
                                                                    .states = a.states},
                                                                   w));
    }
    throw_unless(k.norm({.x = kda::packed(static_cast<const stage_out*>(out.data()), T, HV, V),
                         .gate = a.output_gate,
                         .weight = a.norm_weight,
                         .eps = a.norm_eps,
                         .y = a.y},
                        w));
    for (index i = 0; i < T * HV * V; ++i)  // norm gives padding zeros of its weight's sign
      if (kda::to_float(a.y.data[i]) == 0.f) a.y.data[i] = {};
  }
};

template <class Spec> bool same_bits(const step_call<Spec>& a, const step_call<Spec>& b) {
  return same_bits(a.y, b.y) && same_bits(a.states.cells, b.states.cells) &&
         same_bits(a.conv_states.cells, b.conv_states.cells);
}

}  // namespace testing

/// For TEMPLATE_TEST_CASE: the specs that have a step.
#define KDA_TEST_STEPS                                                                                            \
  specs::kda_bounded, specs::kda_softplus, specs::gdn_softplus, specs::glm, specs::qwen, specs::glm_float_stages, \
      specs::qwen_float_stages, specs::kda_f16, specs::gdn_f16_stages
