// SPDX-License-Identifier: Apache-2.0
// Every kind of decay from none to total, in prefill and decode: the regimes of support/regimes.hpp within their
// bounds.
#include "support/kda_catch.hpp"
#include "support/regimes.hpp"

namespace testing {
namespace {

#define KDA_DECAY_SPECS specs::kda_norm_key, specs::kda_norm_value, specs::gdn_norm_key, specs::gdn_norm_value

// Within the bound; and above nothing, which would mean that nothing was compared.
template <class Spec> worst_errors hold(const regime& r) {
  const worst_errors worst = worst_of<Spec>(r);
  CAPTURE(r.name, worst.decode.out, worst.decode.state, worst.prefill.out, worst.prefill.state);
  for (const errors& e : {worst.decode, worst.prefill}) {
    CHECK(e.worst() <= r.bound);
    CHECK(e.worst() > 1e-9);
  }
  return worst;
}

TEMPLATE_TEST_CASE("strong decay neither overflows nor loses accuracy", "[decay]", KDA_DECAY_SPECS) {
  hold<TestType>(strong_decay<TestType>());
}

TEMPLATE_TEST_CASE("a token with alpha = 0 may stand anywhere in a chunk", "[decay]", KDA_DECAY_SPECS) {
  hold<TestType>(total_decay_once<TestType>());
}

TEMPLATE_TEST_CASE("middling decay is as accurate as any other", "[decay]", KDA_DECAY_SPECS) {
  regime r = middling_decay<TestType>();
  r.bound = ordinary_bound;  // flat: a tenth of this is usual at either end
  hold<TestType>(r);
}

TEMPLATE_TEST_CASE("without decay nothing is forgotten", "[decay]", KDA_DECAY_SPECS, specs::delta_key,
                   specs::delta_value) {
  hold<TestType>(no_decay<TestType>());
}

TEMPLATE_TEST_CASE("the decay at a chunk's edge is that of its own token", "[decay]", KDA_DECAY_SPECS) {
  regime r = one_decaying_token<TestType>();
  r.bound = 1e-6;
  hold<TestType>(r);
}

TEMPLATE_TEST_CASE("slow decay does not drift over 4096 tokens", "[decay]", KDA_DECAY_SPECS, specs::kda_mixed) {
  const worst_errors worst = hold<TestType>(slow_decay<TestType>());
  // One rounding in 16 tokens: with a rounded exp it would be 9e-6, which the contract allows and nothing else
  // explains.
  CHECK(worst.prefill.worst() <= ordinary_bound);
}

TEMPLATE_TEST_CASE("a decay below the state's last place costs at most half of it a token", "[decay]",
                   KDA_DECAY_SPECS) {
  hold<TestType>(vanishing_decay<TestType>());
}

TEMPLATE_TEST_CASE("a large state that is forgotten leaves no rounding behind", "[decay]", KDA_DECAY_SPECS) {
  hold<TestType>(forgotten_state<TestType>());
}

TEMPLATE_TEST_CASE("after a token with alpha = 0 nothing depends on the state before it, not even in its last bit",
                   "[decay]", KDA_DECAY_SPECS) {
  constexpr index token = 5, T = 21;
  for (const core c : {core::decode, core::prefill}) {
    const problem p = with_decay<TestType>(
        ordinary_problem<TestType>({T, 1, 2, 16, 24}, 14),
        [](index t, index, index d) { return t == token ? minus_infinity : -0.1 * static_cast<double>(d); });
    problem q = p;
    for (float& s : q.state) s = -3 * s;
    outcome<TestType> a = run<TestType>(p, {c}), b = run<TestType>(q, {c});
    CAPTURE(c == core::prefill);
    CHECK(same_bits(a.state, b.state));
    const auto forgotten = static_cast<std::ptrdiff_t>(token * p.g.HV * p.g.V);
    CHECK_FALSE(same_bits(a.out, b.out));
    a.out.erase(a.out.begin(), a.out.begin() + forgotten);
    b.out.erase(b.out.begin(), b.out.begin() + forgotten);
    CHECK(same_bits(a.out, b.out));
  }
}

// The regimes must be able to show what they are there for: the double recurrence with the mistake in it is far
// outside.
TEST_CASE("a decay rounded to bf16 would be seen in the slow regime, one step too many at a chunk's edge", "[decay]") {
  using spec = specs::kda_norm_key;
  const auto distance = [](const problem& p, const problem& q) {
    const exact a = reference_of<spec>(p), b = reference_of<spec>(q);
    double worst = 0, largest = 0;
    for (std::size_t i = 0; i < a.state.size(); ++i) {
      worst = std::max(worst, std::abs(a.state[i] - b.state[i]));
      largest = std::max(largest, std::abs(b.state[i]));
    }
    return worst / largest;
  };
  const regime slow = slow_decay<spec>();
  for (const problem& p : slow.problems) {
    const problem rounded = with_decay<spec>(p, [&](index t, index h, index d) {
      const float alpha = std::exp(p.gate[size((t * p.g.HV + h) * p.g.K + d)]);
      return std::log(static_cast<double>(kda::to_float(kda::to_bf16(alpha))));
    });
    CHECK(distance(rounded, p) > 1000 * slow.bound);
  }
  const regime edges = one_decaying_token<spec>();
  for (std::size_t i = 1; i < edges.problems.size(); ++i)
    CHECK(distance(edges.problems[i - 1], edges.problems[i]) > 1000 * edges.bound);
}

}  // namespace
}  // namespace testing
