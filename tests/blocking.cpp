// SPDX-License-Identifier: Apache-2.0
// Register blocking is speed and nothing else: kernels whose every loop is forced to one row and one vector give the
// same bits.
#include "support/delta_rule.hpp"
#include "support/kda_catch.hpp"

namespace testing {
namespace {

template <class Spec> void compare(const geometry& g) {
  using dims = typename kda::detail::traits<Spec>::dims;
  const geometry size{g.T, g.H, g.HV, dims::key != 0 ? dims::key : g.K, dims::value != 0 ? dims::value : g.V};
  const problem p = ordinary_problem<Spec>(size, 80);
  for (const core c : {core::decode, core::prefill}) {
    const outcome<Spec> real = run<Spec>(p, {c}), one_by_one = run<Spec>(p, {c}, {}, kernels_of<Spec>(true));
    CAPTURE(size.T, size.K, size.V, c == core::prefill);
    CHECK(same_bits(real, one_by_one));
    CHECK(std::any_of(real.out.begin(), real.out.end(), [](auto x) { return kda::to_float(x) != 0; }));
  }
}

TEMPLATE_TEST_CASE("register blocking does not change a bit, whatever the numbers of rows and vectors", "[blocking]",
                   specs::kda_given_key, specs::kda_given_value, specs::gdn_given_key, specs::gdn_given_value,
                   specs::delta_key, specs::delta_value, specs::kda_bf16_key, specs::kda_bf16_value, specs::kda_mixed) {
  REQUIRE(&kernels_of<TestType>(true) != &kernels_of<TestType>(false));
  for (index T = 1; T <= 17; T += emulated() ? 8 : 1) compare<TestType>({T, 1, 1, 24, 40});
  for (index K = 1; K <= 40; K += emulated() ? 12 : 1) compare<TestType>({17, 1, 1, K, 33});
  for (index V = 1; V <= 100; V += emulated() ? 33 : 3) compare<TestType>({17, 1, 1, 19, V});
  if (!emulated()) compare<TestType>({33, 1, 1, 128, 128});
  compare<TestType>({emulated() ? 2 : 20, 1, 1, 256, 300});
}

TEMPLATE_TEST_CASE("register blocking does not change a bit of any other spec", "[blocking]", specs::kda_norm_key,
                   specs::kda_norm_value, specs::gdn_norm_key, specs::gdn_norm_value, specs::kda_tiled,
                   specs::gdn_tiled, specs::kda_fixed_dims, specs::kda_bounded, specs::kda_softplus,
                   specs::gdn_softplus, specs::gdn_bounded, specs::glm, specs::qwen) {
  for (const index T : {1, 7, 16, emulated() ? 17 : 37}) compare<TestType>({T, 1, 2, 21, 45});
}

}  // namespace
}  // namespace testing
