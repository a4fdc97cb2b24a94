// SPDX-License-Identifier: Apache-2.0
// The floating-point environment: a state that decays to nothing passes through the denormals without harm, and neither
// the caller's rounding mode, flushing, masks and flags change a bit, nor does a call change them.
#include "support/fp_environment.hpp"
#include "support/kda_catch.hpp"
#include "support/regimes.hpp"

namespace testing {
namespace {

#define KDA_DENORMAL_SPECS specs::kda_norm_key, specs::kda_norm_value, specs::gdn_norm_key, specs::gdn_norm_value

constexpr auto smallest_normal = static_cast<double>(std::numeric_limits<float>::min());

// A product below the smallest normal float is flushed, so that a weak decay, applied as S + (exp(g) - 1) S, ends where
// the product does: at that float over 1 - exp(g).
TEMPLATE_TEST_CASE("a state that decays below the smallest float ends at zero or next to it, and never as a denormal",
                   "[denormals]", KDA_DENORMAL_SPECS) {
  for (const double g : {-0.25, -0.5, -2.}) {
    if (emulated() && g > -0.5) continue;
    const auto last =
        static_cast<index>(std::ceil(std::log(smallest_normal) / g));  // tokens until S0 = 1 is a denormal
    for (const index T : {last - 20, last - 2, last - 1, last, last + 1, last + 7, last + 40, 3 * last}) {
      problem p = with_decay<TestType>(ordinary_problem<TestType>({T, 1, 1, 16, 24}, 120),
                                       [=](index, index, index) { return g; });
      std::fill(p.k.begin(), p.k.end(), 0.f);
      std::fill(p.state.begin(), p.state.end(), 1.f);
      const exact e = reference_of<TestType>(p);
      for (const core c : {core::decode, core::prefill}) {
        const outcome<TestType> o = run<TestType>(p, {c});
        double worst = 0, largest = 0;
        for (std::size_t i = 0; i < o.state.size(); ++i) {
          const auto s = static_cast<double>(o.state[i]);
          worst = std::max(worst, std::abs(s - e.state[i]) - 1e-4 * e.state[i]);
          largest = std::max(largest, s);
          if (s != 0 && std::abs(s) < smallest_normal) worst = 1;
        }
        CAPTURE(T, g, c == core::prefill, worst / smallest_normal, largest / smallest_normal);
        CHECK(worst <= smallest_normal / (1 - std::exp(g)));
        if (T >= last && (g < -0.5 || c == core::prefill)) CHECK(largest == 0);
        if (T < last) CHECK(largest > 0);
      }
    }
  }
}

// Rows of q and k that are denormal all through would otherwise come out of their norm a thousand times as large:
// normal.
TEMPLATE_TEST_CASE("denormal inputs count as zeros, to the bit", "[denormals]", KDA_DENORMAL_SPECS) {
  const float denormal = std::numeric_limits<float>::min() / 2;
  problem p = ordinary_problem<TestType>({20, 1, 1, 16, 24}, 121), zeros = p;
  for (auto member : {&problem::q, &problem::k, &problem::v, &problem::state})
    for (std::size_t i = 0; i < (p.*member).size(); ++i)
      if (i / 16 % 3 == 0) (p.*member)[i] = denormal, (zeros.*member)[i] = 0;
  for (const core c : {core::decode, core::prefill}) {
    CAPTURE(c == core::prefill);
    CHECK(same_bits(run<TestType>(p, {c}), run<TestType>(zeros, {c})));
  }
}

TEMPLATE_TEST_CASE("the caller's floating-point environment changes no bit and is left as it was", "[denormals]",
                   KDA_DENORMAL_SPECS, specs::kda_bounded, specs::gdn_softplus, specs::kda_bf16_value, specs::kda_f16) {
  problem p = ordinary_problem<TestType>({150, 1, 1, 16, 24}, 122);
  // a state half of which decays through the denormals
  for (std::size_t i = 0; i < p.state.size(); i += 2) p.state[i] *= 1e-30f;
  for (const core c : {core::decode, core::prefill}) {
    const outcome<TestType> want = run<TestType>(p, {c});
    for (const fp_environment environment : odd_fp_environments) {
      // the problem is made and taken apart in the ordinary environment; only the call sees this one
      packed_tensors<TestType> t(p);
      using state_type = typename kda::detail::traits<TestType>::state::type;
      std::vector<state_type> pool = to_layout<TestType>(rounded_to<state_type>(p.state), p.g);
      const std::int64_t offsets[] = {0, p.g.T};
      const std::int32_t slot[] = {0};
      const bool has[] = {true};
      kda::delta_rule_args<TestType> a = t.args();
      a.sequences = {.offsets = kda::indices(offsets, 2),
                     .load_slots = kda::indices(slot, 1),
                     .store_slots = kda::indices(slot, 1),
                     .has_initial_state = kda::packed(has, 1)};
      a.states = {.data = pool.data(), .slots = 1, .slot_stride = std::ssize(pool)};
      scratch memory(1);
      const kda::workspace w = memory;
      kda::status s{};
      fp_environment after = 0;
      {
        const fp_environment_scope scope(environment);
        s = call_of(kernels_of<TestType>(), c)(a, w, kda::serial);
        after = current_fp_environment();
      }
      REQUIRE(s);
      CAPTURE(environment, after, c == core::prefill);
      CHECK(after == environment);
      CHECK(same_bits(t.out, want.out));
      CHECK(same_bits(from_layout<TestType>(pool, p.g), want.state));
    }
  }
}

}  // namespace
}  // namespace testing
