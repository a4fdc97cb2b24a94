// SPDX-License-Identifier: Apache-2.0
// Runs a problem in memory that notices: every tensor, the state and the workspace end at an inaccessible page, and
// what the call must write before it reads holds NaN.
#pragma once
#include "delta_rule.hpp"
#include "guarded.hpp"

namespace testing {

/// As run<Spec>(p, {c}), one call for all tokens.
template <class Spec> outcome<Spec> run_guarded(const problem& p, core c) {
  using state_type = typename kda::detail::traits<Spec>::state::type;
  using out_type = typename kda::detail::traits<Spec>::io::out;
  packed_tensors<Spec> t(p);
  const out_type not_written = kda::round_to<out_type>(std::numeric_limits<float>::quiet_NaN());
  const geometry& g = p.g;
  const guarded q(t.q), k(t.k), v(t.v);
  const guarded gate(t.gate);
  const guarded beta(t.beta);
  const guarded out(std::vector(t.out.size(), not_written));
  const guarded a_log(t.a_log), dt_bias(t.dt_bias);
  const guarded pool(to_layout<Spec>(rounded_to<state_type>(p.state), g));
  const guarded<unsigned char> bytes(size(kda::workspace_bytes({.sequences = 1})));
  const std::int64_t offsets[] = {0, g.T};
  const std::int32_t slot[] = {0};
  const bool has[] = {!p.fresh};

  kda::delta_rule_args<Spec> a = t.args();
  a.q.data = q.data();
  a.k.data = k.data();
  a.v.data = v.data();
  if constexpr (kda::detail::is_decaying<Spec>) a.gate.data = gate.data();
  a.beta.data = beta.data();
  a.out.data = out.data();
  if constexpr (has_law<Spec>) {
    a.gate_params.a_log.data = a_log.data();
    a.gate_params.dt_bias.data = dt_bias.data();
  }
  a.sequences = {.offsets = kda::indices(offsets, 2),
                 .load_slots = kda::indices(slot, 1),
                 .store_slots = kda::indices(slot, 1),
                 .has_initial_state = kda::packed(has, 1)};
  a.states = {.data = pool.data(), .slots = 1, .slot_stride = g.HV * g.K * g.V};
  const kda::status s =
      call_of(kernels_of<Spec>(), c)(a, {.data = bytes.data(), .bytes = static_cast<index>(bytes.size())}, kda::serial);
  if (!s) throw std::runtime_error(std::string(s.argument) + " " + kda::message(s.what));
  return {{out.data(), out.data() + out.size()},
          from_layout<Spec>(std::vector<state_type>(pool.data(), pool.data() + pool.size()), g)};
}

}  // namespace testing
