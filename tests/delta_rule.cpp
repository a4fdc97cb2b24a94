// SPDX-License-Identifier: Apache-2.0
// The delta rule against the double reference: every spec, both cores, ordinary inputs.
#include "support/delta_rule.hpp"

#include "support/kda_catch.hpp"

using namespace testing;

TEMPLATE_TEST_CASE("prefill and decode agree with the reference on ordinary inputs", "[delta_rule]",
                   specs::kda_given_key, specs::kda_given_value, specs::kda_norm_key, specs::kda_norm_value,
                   specs::gdn_given_key, specs::gdn_given_value, specs::gdn_norm_key, specs::gdn_norm_value,
                   specs::delta_key, specs::delta_value, specs::kda_tiled, specs::gdn_tiled, specs::kda_bounded,
                   specs::kda_softplus, specs::gdn_softplus, specs::gdn_bounded, specs::kda_mixed) {
  for (const geometry g : {geometry{37, 2, 4, 24, 40}, geometry{64, 1, 1, 128, 128}, geometry{5, 3, 3, 1, 1}}) {
    const problem p = ordinary_problem<TestType>(g, 1);
    const exact e = reference_of<TestType>(p);
    for (const core c : {core::decode, core::prefill}) {
      const errors x = errors_of<TestType>(p, c, e);
      CAPTURE(g.T, g.K, g.V, c == core::prefill, x.out, x.state);
      CHECK(x.worst() <= ordinary_bound);
    }
  }
}
