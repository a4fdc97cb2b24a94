// SPDX-License-Identifier: Apache-2.0
// Kimi Delta Attention in one file: two prompts in one packed batch, then one more token for each.
//   g++ -std=c++20 -O2 -march=native -I include examples/minimal.cpp -o minimal && ./minimal
#include <kda/kda.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

// What the model needs, said once: the attention of GLM-5.3-Flash. With kda::io<kda::bf16> the tensors would be bf16.
using glm = kda::spec<kda::decay::per_channel, kda::gate::bounded, kda::beta::logits, kda::qk::l2_normalized,
                      kda::io<float>, kda::state<float, kda::layout::value_major>>;

int main() {
  constexpr std::size_t tokens = 19, heads = 4, dim = 64, sequences = 2;
  const auto numbers = [](std::size_t size, std::size_t seed) {  // stands for the model's projections
    std::vector<float> x(size);
    for (std::size_t i = 0; i < size; ++i) x[i] = static_cast<float>((i + seed) * (i + seed) % 113) / 56 - 1;
    return x;
  };
  const auto q = numbers(tokens * heads * dim, 1), k = numbers(tokens * heads * dim, 2);
  const auto v = numbers(tokens * heads * dim, 3), f = numbers(tokens * heads * dim, 4), b = numbers(tokens * heads, 5);
  std::vector<float> out(tokens * heads * dim), states(sequences * heads * dim * dim);

  int offsets[] = {0, 12, 17};                // the prompts are tokens 0 to 11 and 12 to 16
  const int slots[] = {0, 1};                 // where each sequence keeps its state
  bool has_initial_state[] = {false, false};  // both begin here
  const kda::delta_rule_args<glm> args{.q = kda::packed(q.data(), tokens, heads, dim),
                                       .k = kda::packed(k.data(), tokens, heads, dim),
                                       .v = kda::packed(v.data(), tokens, heads, dim),
                                       .gate = kda::packed(f.data(), tokens, heads, dim),
                                       .beta = kda::packed(b.data(), tokens, heads),
                                       .out = kda::packed(out.data(), tokens, heads, dim),
                                       .gate_params = {.lower_bound = -5},
                                       .sequences = {.offsets = kda::indices(offsets),
                                                     .store_slots = kda::indices(slots),
                                                     .has_initial_state = kda::packed(has_initial_state, sequences)},
                                       .states = {.data = states.data(), .slots = sequences}};
  constexpr auto bytes = kda::workspace_bytes({.sequences = sequences});
  std::vector<char> scratch(bytes);  // the caller's: the library allocates nothing
  const kda::workspace workspace{scratch.data(), bytes};

  kda::status status = kda::kernels<glm>::prefill(args, workspace);
  for (int i : {0, 1, 2}) offsets[i] = 17 + i;  // then tokens 17 and 18, one each
  for (bool& has : has_initial_state) has = true;
  if (status) status = kda::kernels<glm>::decode(args, workspace);
  if (!status) return std::printf("%s %s\n", status.argument, kda::message(status.what)), 1;

  std::printf("isa %s\n", kda::kernels<glm>::isa);
  for (int token : {0, 1, 11, 12, 16, 17, 18}) {
    const float* o = args.out.at(token);
    std::printf("token %2d: %8.5f %8.5f %8.5f ...\n", token, double(o[0]), double(o[1]), double(o[2]));
  }
}
