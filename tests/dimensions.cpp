// SPDX-License-Identifier: Apache-2.0
// Every width of head: K from 1 to 256 and any V, equal or not, even or odd, more than one block of columns, in memory
// that ends where the tensors end.
#include "support/guarded_run.hpp"
#include "support/kda_catch.hpp"

namespace testing {
namespace {

// Every key width once with each kind of neighbour: V = K, and V from a list that is walked at another pace, so that
// narrow meets wide and odd meets even.
std::vector<geometry> all_widths(index T) {
  const std::vector<index> K = {1,  2,  3,  7,  8,   15,  16,  17,  24,  31,  32,  33,  40, 48,
                                60, 64, 80, 96, 100, 112, 127, 128, 129, 160, 192, 255, 256};
  const std::vector<index> V = {300, 1, 128, 5, 64, 520, 33, 256, 2, 100, 16, 257, 8, 47, 192, 3, 60, 31, 129};
  std::vector<geometry> all;
  for (std::size_t i = 0; i < K.size(); ++i) {
    if (emulated() && i % 13 != 0) continue;  // 1, 48, 256
    all.push_back({T, 1, 2, K[i], K[i]});
    all.push_back({T, 1, 1, K[i], V[i % V.size()]});
    all.push_back({T, 1, 1, K[i], V[(i + 7) % V.size()]});
  }
  return all;
}

template <class Spec> void hold(const geometry& g, double out_bound, double state_bound) {
  const problem p = ordinary_problem<Spec>(g, 20);
  const exact e = reference_of<Spec>(p);
  for (const core c : {core::decode, core::prefill}) {
    const outcome<Spec> o = run_guarded<Spec>(p, c);
    const double out = relative_error(o.out, e.out), state = relative_error(o.state, e.state);
    CAPTURE(g.K, g.V, c == core::prefill, out, state);
    CHECK(out <= out_bound);
    CHECK(state <= state_bound);
  }
}

TEMPLATE_TEST_CASE("any K up to 256 and any V are right, and nothing past a tensor is touched", "[dimensions]",
                   specs::kda_given_key, specs::kda_given_value, specs::gdn_norm_key, specs::gdn_norm_value,
                   specs::delta_key, specs::delta_value) {
  for (const geometry& g : all_widths(emulated() ? 5 : 19)) hold<TestType>(g, ordinary_bound, ordinary_bound);
}

// Rounding to bf16's 8 bits costs up to 2^-8 of the number, to f16's 11 bits 2^-11; the error before it is within the
// bound as above.
TEMPLATE_TEST_CASE("any K and V are right with tensors of 16 bits", "[dimensions]", specs::kda_mixed, specs::qwen,
                   specs::kda_f16) {
  using out = typename kda::detail::traits<TestType>::io::out;
  constexpr double rounding = std::is_same_v<out, float> ? 0 : std::is_same_v<out, kda::bf16> ? 0x1p-8 : 0x1p-11;
  for (const geometry& g : all_widths(6)) hold<TestType>(g, rounding + ordinary_bound, ordinary_bound);
}

TEMPLATE_TEST_CASE("any K and V are right with a bf16 state", "[dimensions]", specs::kda_bf16_key,
                   specs::kda_bf16_value) {
  for (const geometry& g : all_widths(6)) hold<TestType>(g, 0x1p-7, 0x1p-7);
}

TEST_CASE("dimensions fixed when compiling give the bits of the same dimensions at run time", "[dimensions]") {
  const problem p = ordinary_problem<specs::kda_norm_key>({21, 1, 2, 128, 128}, 21);
  for (const core c : {core::decode, core::prefill}) {
    const auto fixed = run_guarded<specs::kda_fixed_dims>(p, c);
    const auto free = run_guarded<specs::kda_norm_key>(p, c);
    CHECK(same_bits(fixed.out, free.out));
    CHECK(same_bits(fixed.state, free.state));
  }
}

TEMPLATE_TEST_CASE("a column of V does not depend on how many stand beside it", "[dimensions]", specs::kda_given_key,
                   specs::kda_given_value, specs::gdn_given_key, specs::gdn_given_value) {
  constexpr index T = 18, K = 12, wide = 520;
  const problem p = ordinary_problem<TestType>({T, 1, 1, K, wide}, 22);
  const auto columns = [](const auto& x, index rows, index first, index count) {
    std::decay_t<decltype(x)> y;
    for (index r = 0; r < rows; ++r)
      y.insert(y.end(), x.begin() + r * wide + first, x.begin() + r * wide + first + count);
    return y;
  };
  for (const core c : {core::decode, core::prefill}) {
    const outcome<TestType> whole = run<TestType>(p, {c});
    for (const auto& [first, count] :
         {std::pair<index, index>{0, 1}, {0, 13}, {250, 16}, {255, 2}, {511, 9}, {3, 400}}) {
      problem part = p;
      part.g.V = count;
      part.v = columns(p.v, T, first, count);
      part.state = columns(p.state, K, first, count);
      const outcome<TestType> o = run<TestType>(part, {c});
      CAPTURE(first, count, c == core::prefill);
      CHECK(same_bits(o.out, columns(whole.out, T, first, count)));
      CHECK(same_bits(o.state, columns(whole.state, K, first, count)));
    }
  }
}

}  // namespace
}  // namespace testing
