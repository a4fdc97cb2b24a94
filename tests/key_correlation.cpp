// SPDX-License-Identifier: Apache-2.0
// Keys that repeat, and beta up to 2: the in-chunk triangle is then full, what a token learns undoes what others
// learnt, and I - beta k k^T has an eigenvalue down to -1.
#include "support/kda_catch.hpp"
#include "support/regimes.hpp"

namespace testing {
namespace {

#define KDA_CORRELATION_SPECS                                                                                   \
  specs::kda_norm_key, specs::kda_norm_value, specs::gdn_norm_key, specs::gdn_norm_value, specs::kda_given_key, \
      specs::kda_given_value, specs::gdn_given_key, specs::gdn_given_value

template <class Spec> void hold(const regime& r) {
  const worst_errors worst = worst_of<Spec>(r);
  CAPTURE(r.name, worst.decode.out, worst.decode.state, worst.prefill.out, worst.prefill.state);
  for (const errors& e : {worst.decode, worst.prefill}) {
    CHECK(e.worst() <= r.bound);
    CHECK(e.worst() > 1e-9);
  }
}

// Length of each column of a state [K, V], the longest of them.
double longest_column(const std::vector<float>& state, const geometry& g) {
  double longest = 0;
  for (index h = 0; h < g.HV; ++h)
    for (index v = 0; v < g.V; ++v) {
      double sum = 0;
      for (index k = 0; k < g.K; ++k) {
        const auto s = static_cast<double>(state[size((h * g.K + k) * g.V + v)]);
        sum += s * s;
      }
      longest = std::max(longest, std::sqrt(sum));
    }
  return longest;
}

TEMPLATE_TEST_CASE("one key again and again, or nearly the same, is right", "[keys]", KDA_CORRELATION_SPECS) {
  hold<TestType>(repeated_keys<TestType>());
}

TEMPLATE_TEST_CASE("one key again and again with beta = 2 errs no faster than its condition number", "[keys]",
                   KDA_CORRELATION_SPECS) {
  hold<TestType>(reflecting_keys<TestType>(sized(512, 96)));
}

TEMPLATE_TEST_CASE("one unit key that is exact in fp32 is right with beta = 2 as well", "[keys]", specs::kda_given_key,
                   specs::kda_given_value, specs::gdn_given_key, specs::gdn_given_value) {
  for (const double beta : {0.9, 1., 1.9, 2.})
    for (const index T : {index{16}, sized(64, 32), sized(512, 64)}) {
      problem p = ordinary_problem<TestType>({T, 1, 1, 64, 24}, 50);
      p = with_decay<TestType>(std::move(p), [](index, index, index) { return 0.; });
      p = with_beta(std::move(p), [=](index, index) { return beta; });
      p = with_keys(std::move(p), [](index, index, index) { return 1.; });  // 64 times 1/8
      REQUIRE(std::all_of(p.k.begin(), p.k.end(), [](float k) { return k == 0.125f; }));
      const exact e = reference_of<TestType>(p);
      for (const core c : {core::decode, core::prefill}) {
        CAPTURE(beta, T, c == core::prefill);
        CHECK(errors_of<TestType>(p, c, e).worst() <= hard_bound);
      }
    }
}

TEMPLATE_TEST_CASE("beta anywhere in [0, 2] is right", "[keys]", KDA_CORRELATION_SPECS) {
  hold<TestType>(negative_eigenvalues<TestType>());
}

TEMPLATE_TEST_CASE("without decay and with nothing to learn, no beta in [0, 2] makes the state grow", "[keys]",
                   KDA_CORRELATION_SPECS) {
  for (const bool one : {false, true}) {  // one key for all tokens, or one for each
    random_numbers random(51);
    problem p = one ? one_key<TestType>(sized(1000, 100), 2, 0)
                    : ordinary_problem<TestType>({sized(1000, 100), 1, 1, 32, 24}, 52);
    p = with_decay<TestType>(std::move(p), [](index, index, index) { return 0.; });
    p = with_beta(std::move(p), [&](index, index) { return one ? 2. : 2 * random.uniform(); });
    std::fill(p.v.begin(), p.v.end(), 0.f);
    const double before = longest_column(p.state, p.g);
    for (const core c : {core::decode, core::prefill}) {
      const double after = longest_column(run<TestType>(p, {c}).state, p.g);
      CAPTURE(one, c == core::prefill, before, after);
      CHECK(after <= before * (1 + 1e-4));
      if (one) CHECK(after >= before * (1 - 1e-3));  // reflections keep its length
    }
  }
}

TEMPLATE_TEST_CASE("with beta up to 1 and one key, what it recalls stays within what was stored", "[keys]",
                   KDA_CORRELATION_SPECS) {
  for (const double beta : {0.9, 1.}) {
    problem p = one_key<TestType>(200, beta, 0);
    std::fill(p.state.begin(), p.state.end(), 0.f);
    double largest = 0;
    for (const float v : p.v) largest = std::max(largest, std::abs(static_cast<double>(v)));
    for (const core c : {core::decode, core::prefill}) {
      const double longest = longest_column(run<TestType>(p, {c}).state, p.g);
      CAPTURE(beta, c == core::prefill, longest, largest);
      CHECK(longest <= largest * (1 + 1e-5));
      CHECK(longest > 0.1 * largest);
    }
  }
}

TEMPLATE_TEST_CASE("chunks of correlated keys agree with the recurrence of the same kernels", "[keys]",
                   KDA_CORRELATION_SPECS) {
  for (const double noise : {0., 1e-3, 0.3}) {
    const problem p = one_key<TestType>(100, 1.5, noise);
    const outcome<TestType> decoded = run<TestType>(p, {core::decode});
    const exact e{widened(decoded.out), widened(decoded.state)};
    CAPTURE(noise);
    CHECK(errors_of<TestType>(p, core::prefill, e).worst() <= hard_bound);
  }
}

}  // namespace
}  // namespace testing
