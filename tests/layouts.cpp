// SPDX-License-Identifier: Apache-2.0
// The same numbers from every layout of the state and every ISA. K and V differ throughout: equal ones hide a
// transposed state.
#include "support/delta_rule.hpp"
#include "support/kda_catch.hpp"

namespace testing {
namespace {

template <class Spec> exact as_exact(const outcome<Spec>& o) { return {widened(o.out), widened(o.state)}; }
template <class Spec> double distance(const outcome<Spec>& o, const exact& e) {
  return std::max(relative_error(o.out, e.out), relative_error(o.state, e.state));
}

// What two layouts or ISAs may differ by: each is within the bound of the exact value.
constexpr double apart = 2 * ordinary_bound;

template <class KeyMajor, class ValueMajor> void hold_layouts() {
  for (const bool fresh : {true, false})  // fresh: only the store can be wrong; else the load too
    for (const geometry& g : {geometry{42, 1, 2, 64, 128}, geometry{42, 1, 2, 128, 64}, geometry{42, 2, 2, 5, 19}}) {
      if (emulated() && g.K + g.V > 100 && fresh) continue;
      problem p = ordinary_problem<KeyMajor>(g, 90);
      p.fresh = fresh;
      const exact e = reference_of<KeyMajor>(p);
      const std::vector<index> prompt_and_five = {37, 1, 1, 1, 1, 1};
      for (const auto& [cores, lengths] : {std::pair<std::vector<core>, std::vector<index>>{{core::prefill}, {42}},
                                           {{core::decode}, {42}},
                                           {{core::prefill, core::decode}, prompt_and_five},
                                           {{core::decode, core::prefill}, {5, 37}}}) {
        const outcome<KeyMajor> key_major = run<KeyMajor>(p, cores, lengths);
        const outcome<ValueMajor> value_major = run<ValueMajor>(p, cores, lengths);
        CAPTURE(fresh, g.K, g.V, lengths);
        CHECK(distance<KeyMajor>(key_major, e) <= ordinary_bound);
        CHECK(distance<ValueMajor>(value_major, e) <= ordinary_bound);
        CHECK(distance<ValueMajor>(value_major, as_exact<KeyMajor>(key_major)) <= apart);
      }
    }
}

TEST_CASE("both layouts hold the same state, stored and loaded, by prefill and by decode", "[layouts]") {
  hold_layouts<specs::kda_given_key, specs::kda_given_value>();
  hold_layouts<specs::gdn_norm_key, specs::gdn_norm_value>();
}

TEST_CASE("a state lies in memory as its layout says", "[layouts]") {
  // S0 = 0, one token, beta = 1: S = k v^T
  problem p = ordinary_problem<specs::kda_given_key>({1, 1, 1, 3, 5}, 91);
  p.k = {1, 2, 3};
  p.v = {10, 20, 30, 40, 50};
  p.beta = {1};
  p.fresh = true;
  for (const core c : {core::decode, core::prefill}) {
    // run() undoes the layout; to_layout() puts back what was in memory
    const auto key_major = to_layout<specs::kda_given_key>(run<specs::kda_given_key>(p, {c}).state, p.g);
    const auto value_major = to_layout<specs::kda_given_value>(run<specs::kda_given_value>(p, {c}).state, p.g);
    for (index k = 0; k < 3; ++k)
      for (index v = 0; v < 5; ++v) {
        const float want = p.k[size(k)] * p.v[size(v)];
        CHECK(key_major[size(k * 5 + v)] == want);
        CHECK(value_major[size(v * 3 + k)] == want);
      }
  }
}

TEMPLATE_TEST_CASE("all ISAs that this CPU has agree", "[layouts]", specs::kda_norm_key, specs::kda_norm_value,
                   specs::gdn_norm_key, specs::gdn_norm_value, specs::delta_key, specs::kda_bounded,
                   specs::kda_softplus, specs::gdn_softplus, specs::gdn_bounded, specs::kda_mixed) {
  const problem p = ordinary_problem<TestType>({41, 1, 2, 40, 24}, 92);
  for (const core c : {core::decode, core::prefill}) {
    const outcome<TestType> mine = run<TestType>(p, {c});
    for (const kda::isa isa : kda::all_isas) {
      const kda::table<TestType>* other = kernels_on<TestType>(isa);
      if (other == nullptr) continue;
      CAPTURE(kda::name(current_isa()), kda::name(isa), c == core::prefill);
      REQUIRE(std::string(other->isa) == kda::name(isa));
      CHECK(distance<TestType>(run<TestType>(p, {c}, {}, *other), as_exact<TestType>(mine)) <= apart);
    }
  }
}

}  // namespace
}  // namespace testing
