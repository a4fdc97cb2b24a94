// SPDX-License-Identifier: Apache-2.0
// Runs a delta rule small enough for the back of an envelope through the selected table, the scalar one, and a direct
// call.
#include "engine.hpp"

#include <cmath>
#include <cstdio>
#include <vector>

// Two tokens, one head, K = V = 1, beta = 1/2, q = k = 1, decays 1/2 and 1/4, v = 1 and 2:
// S1 = 1/2 (1 - 0) = 1/2;  S2 = 1/8 + 1/2 (2 - 1/8) = 17/16.
template <class Call> bool check(const char* how, const char* isa, Call call) {
  const float ones[] = {1, 1}, v[] = {1, 2}, log_decay[] = {std::log(0.5f), std::log(0.25f)}, beta[] = {0.5f, 0.5f};
  float out[2] = {}, state[1] = {};
  const int offsets[] = {0, 2}, slot[] = {0};
  const bool has_initial_state[] = {false};
  std::vector<char> memory(static_cast<std::size_t>(kda::workspace_bytes({.sequences = 1})));
  const kda::status s =
      call(kda::delta_rule_args<engine_spec>{.q = kda::packed(ones, 2, 1, 1),
                                             .k = kda::packed(ones, 2, 1, 1),
                                             .v = kda::packed(v, 2, 1, 1),
                                             .gate = kda::packed(log_decay, 2, 1),
                                             .beta = kda::packed(beta, 2, 1),
                                             .out = kda::packed(out, 2, 1, 1),
                                             .scale = 1,
                                             .sequences = {.offsets = kda::indices(offsets, 2),
                                                           .load_slots = kda::indices(slot, 1),
                                                           .store_slots = kda::indices(slot, 1),
                                                           .has_initial_state = kda::packed(has_initial_state, 1)},
                                             .states = {.data = state, .slots = 1, .slot_stride = 1}},
           kda::workspace{memory.data(), static_cast<std::ptrdiff_t>(memory.size())}, kda::serial);
  const auto near = [](float got, float want) { return std::abs(got - want) <= 1e-6f; };
  const bool good = s && near(out[0], 0.5f) && near(out[1], 1.0625f) && near(state[0], 1.0625f);
  std::printf("%-10s %-8s %s\n", how, isa, good ? "ok" : s ? "WRONG" : s.argument);
  return good;
}

int main() {
  const auto* best = kda::select(engine_kernels);
  const auto* scalar = kda::select(engine_kernels, kda::isa::scalar);
  if (best == nullptr || scalar == nullptr) return std::puts("no kernels were built that can run here"), 1;
  bool good = check("selected", best->isa, best->prefill);
  good &= check("scalar", scalar->isa, scalar->decode);
  good &= check("direct", "", [](auto... x) { return kda::kernels<engine_spec>::prefill(x...); });
  return good ? 0 : 1;
}
