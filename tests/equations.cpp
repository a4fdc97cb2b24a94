// SPDX-License-Identifier: Apache-2.0
// The equations themselves: values worked out by hand, what the forms become in each other's special cases, and the
// parts of a call against the kernels of the parts.
#include "support/kda_catch.hpp"
#include "support/regimes.hpp"

namespace testing {
namespace {

// ---- by hand --------------------------------------------------------------------------------------------------------

TEMPLATE_TEST_CASE("two tokens with K = V = 1 give the values worked out by hand", "[equations]", specs::kda_given_key,
                   specs::kda_given_value, specs::gdn_given_key, specs::gdn_given_value) {
  problem p{.g = {2, 1, 1, 1, 1}, .scale = 1, .fresh = true};
  p.q = p.k = {1, 1};
  p.v = {1, 2};
  p.gate = {std::log(0.5f), std::log(0.25f)};
  p.state = {0};
  for (const core c : {core::decode, core::prefill}) {
    CAPTURE(c == core::prefill);
    p.beta = {1, 1};  // S1 = 1; S2 = 1/4 + (2 - 1/4)
    const outcome<TestType> whole = run<TestType>(p, {c});
    CHECK(whole.out[0] == Approx(1).epsilon(1e-6));
    CHECK(whole.out[1] == Approx(2).epsilon(1e-6));
    CHECK(whole.state[0] == Approx(2).epsilon(1e-6));
    p.beta = {0.5f, 0.5f};  // S1 = 1/2; S2 = 1/8 + (2 - 1/8) / 2
    const outcome<TestType> half = run<TestType>(p, {c});
    CHECK(half.out[0] == Approx(0.5).epsilon(1e-6));
    CHECK(half.out[1] == Approx(1.0625).epsilon(1e-6));
    CHECK(half.state[0] == Approx(1.0625).epsilon(1e-6));
    p.scale = 3;
    CHECK(run<TestType>(p, {c}).out[1] == Approx(3 * 1.0625).epsilon(1e-6));
    p.scale = 1;
  }
}

TEMPLATE_TEST_CASE("one token with K = 2 decays each channel by its own alpha, before the error term", "[equations]",
                   specs::kda_given_key, specs::kda_given_value) {
  problem p{.g = {1, 1, 1, 2, 1}, .scale = 1};
  p.q = {1, 1};
  p.k = {0.6f, 0.8f};
  p.v = {3};
  p.gate = {std::log(0.5f), 0};
  p.beta = {0.5f};
  p.state = {1, 2};  // decayed 0.5, 2; recalled 0.3 + 1.6; d = (3 - 1.9) / 2
  for (const core c : {core::decode, core::prefill}) {
    const outcome<TestType> o = run<TestType>(p, {c});
    CAPTURE(c == core::prefill);
    CHECK(o.state[0] == Approx(0.5 + 0.6 * 0.55).epsilon(1e-6));
    CHECK(o.state[1] == Approx(2 + 0.8 * 0.55).epsilon(1e-6));
    CHECK(o.out[0] == Approx(3.27).epsilon(1e-6));
  }
}

TEST_CASE("the scale is K^-1/2 unless given, and multiplies outputs alone", "[equations]") {
  using spec = specs::kda_norm_value;
  problem p = ordinary_problem<spec>({18, 1, 1, 64, 24}, 100);
  for (const core c : {core::decode, core::prefill}) {
    p.scale = 0;
    const outcome<spec> by_default = run<spec>(p, {c});
    p.scale = 0.125f;
    CHECK(same_bits(run<spec>(p, {c}), by_default));
    p.scale = 0.5f;
    outcome<spec> fourfold = run<spec>(p, {c});
    CHECK(same_bits(fourfold.state, by_default.state));
    for (float& x : fourfold.out) x /= 4;
    CHECK(same_bits(fourfold.out, by_default.out));
  }
}

// ---- forms that become each other -----------------------------------------------------------------------------------

template <class PerChannel, class PerHead> void hold_constant_decay() {
  const problem per_head = ordinary_problem<PerHead>({67, 1, 2, 24, 40}, 101);
  problem per_channel = per_head;
  per_channel.gate.clear();
  for (const float g : per_head.gate) per_channel.gate.insert(per_channel.gate.end(), size(per_head.g.K), g);
  for (const core c : {core::decode, core::prefill}) {
    const outcome<PerHead> o = run<PerHead>(per_head, {c});
    CAPTURE(c == core::prefill);
    CHECK(errors_of<PerChannel>(per_channel, c, {widened(o.out), widened(o.state)}).worst() <= 2 * ordinary_bound);
  }
}

TEST_CASE("KDA with one decay for all channels is GDN", "[equations]") {
  hold_constant_decay<specs::kda_norm_key, specs::gdn_norm_key>();
  hold_constant_decay<specs::kda_norm_value, specs::gdn_norm_value>();
  hold_constant_decay<specs::kda_given_key, specs::gdn_given_key>();
}

template <class PerHead, class None> void hold_no_decay() {
  for (const float zero : {0.f, -0.f}) {
    problem p = ordinary_problem<PerHead>({53, 1, 2, 24, 40}, 102);
    std::fill(p.gate.begin(), p.gate.end(), zero);
    problem without = p;
    without.gate.clear();
    for (const core c : {core::decode, core::prefill}) {
      const outcome<PerHead> a = run<PerHead>(p, {c});
      const outcome<None> b = run<None>(without, {c});
      CAPTURE(zero, c == core::prefill);
      CHECK(same_bits(a.out, b.out));
      CHECK(same_bits(a.state, b.state));
    }
  }
}

TEST_CASE("GDN with g = 0 is the plain delta rule, bit for bit", "[equations]") {
  hold_no_decay<specs::gdn_given_key, specs::delta_key>();
  hold_no_decay<specs::gdn_given_value, specs::delta_value>();
}

TEMPLATE_TEST_CASE("with beta = 0 the state only decays, and v does not matter", "[equations]", specs::kda_norm_key,
                   specs::kda_norm_value, specs::gdn_norm_key, specs::gdn_norm_value) {
  problem p = with_beta(ordinary_problem<TestType>({21, 1, 1, 24, 20}, 103), [](index, index) { return 0.; });
  problem q = p;
  for (float& v : q.v) v *= -1e6f;
  for (const core c : {core::decode, core::prefill}) {
    CHECK(errors_of<TestType>(p, c).worst() <= ordinary_bound);
    CHECK(same_bits(run<TestType>(p, {c}).state, run<TestType>(q, {c}).state));
  }
}

// ---- parts ----------------------------------------------------------------------------------------------------------

// Log decay and beta from the kernels of their own, handed to a spec that takes them as given: the bits of the fused
// call.
template <class Fused, class Given> void hold_parts() {
  const problem p = ordinary_problem<Fused>({35, 1, 3, 21, 12}, 104);
  const packed_tensors<Fused> t(p);
  const kda::table<Fused>& kernels = kernels_of<Fused>();
  scratch w(0);
  problem parts = p;
  kda::gate_args<Fused> gate{.gate_params = t.params()};
  if constexpr (kda::detail::is_per_channel<Fused>) {
    gate.x = kda::packed(t.gate.data(), p.g.T, p.g.HV, p.g.K);
    gate.g = kda::packed(parts.gate.data(), p.g.T, p.g.HV, p.g.K);
  } else {
    gate.x = kda::packed(t.gate.data(), p.g.T, p.g.HV);
    gate.g = kda::packed(parts.gate.data(), p.g.T, p.g.HV);
  }
  REQUIRE(kernels.gate(gate, w, kda::serial));
  REQUIRE(kernels.beta(
      {.b = kda::packed(t.beta.data(), p.g.T, p.g.HV), .beta = kda::packed(parts.beta.data(), p.g.T, p.g.HV)}, w,
      kda::serial));
  parts.a_log.clear();
  parts.dt_bias.clear();
  for (const core c : {core::decode, core::prefill}) {
    const outcome<Fused> a = run<Fused>(p, {c});
    const outcome<Given> b = run<Given>(parts, {c});
    CAPTURE(c == core::prefill);
    CHECK(same_bits(a.out, b.out));
    CHECK(same_bits(a.state, b.state));
  }
}

TEST_CASE("gate law and beta within a call have the bits of their own kernels", "[equations]") {
  hold_parts<specs::kda_bounded, specs::kda_norm_value>();
  hold_parts<specs::kda_softplus, specs::kda_norm_key>();  // beta = 2 sigmoid
  hold_parts<specs::gdn_softplus, specs::gdn_norm_key>();
  hold_parts<specs::gdn_bounded, specs::gdn_norm_value>();
}

template <class Normalized, class Given> void hold_norm() {
  problem p = ordinary_problem<Normalized>({35, 2, 2, 64, 12}, 105);
  problem parts = p;
  const geometry& g = p.g;
  scratch w(0);
  const auto normalize = [&](const std::vector<float>& x, std::vector<float>& y, float scale) {
    return kernels_of<Normalized>().l2norm({.x = kda::packed(x.data(), g.T, g.H, g.K),
                                            .eps = 1e-6f,
                                            .scale = scale,
                                            .y = kda::packed(y.data(), g.T, g.H, g.K)},
                                           w, kda::serial);
  };
  REQUIRE(normalize(p.q, parts.q, 0.125f));
  REQUIRE(normalize(p.k, parts.k, 1));
  parts.scale = 1;
  for (const core c : {core::decode, core::prefill}) {
    const outcome<Normalized> a = run<Normalized>(p, {c});
    const outcome<Given> b = run<Given>(parts, {c});
    CAPTURE(c == core::prefill);
    CHECK(same_bits(a.out, b.out));
    CHECK(same_bits(a.state, b.state));
  }
}

TEST_CASE("q and k normalised beforehand give the bits of q and k normalised in the call", "[equations]") {
  hold_norm<specs::kda_norm_key, specs::kda_given_key>();
  hold_norm<specs::kda_norm_value, specs::kda_given_value>();
  hold_norm<specs::gdn_norm_key, specs::gdn_given_key>();
}

// ---- l2 norm of q and k ---------------------------------------------------------------------------------------------

TEMPLATE_TEST_CASE("q and k of any size are normalised with eps = 1e-6 on the sum", "[equations]", specs::kda_norm_key,
                   specs::kda_norm_value, specs::gdn_norm_key, specs::gdn_norm_value, specs::kda_mixed) {
  for (const double amplitude : {1e15, 1e4, 1., .1, .01, 1e-3, 1e-4, 1e-6, 1e-25, 0.}) {
    problem p = ordinary_problem<TestType>({19, 1, 1, 33, 20}, 106);
    for (auto* x : {&p.q, &p.k})
      for (float& y : *x) y = static_cast<float>(amplitude * static_cast<double>(y));
    const exact e = reference_of<TestType>(p);
    for (const core c : {core::decode, core::prefill}) {
      const errors x = errors_of<TestType>(p, c, e);
      CAPTURE(amplitude, c == core::prefill, x.out, x.state);
      CHECK(x.worst() <= ordinary_bound);
    }
  }
}

TEMPLATE_TEST_CASE("a key of zeros only lets the state decay, a query of zeros reads zeros", "[equations]",
                   specs::kda_norm_key, specs::kda_norm_value, specs::gdn_norm_key, specs::gdn_norm_value) {
  problem p = ordinary_problem<TestType>({19, 1, 1, 24, 20}, 107);
  std::fill(p.k.begin(), p.k.end(), 0.f);
  std::fill(p.q.begin(), p.q.begin() + 5 * p.g.K, 0.f);
  problem q = p;
  for (float& v : q.v) v = 1 - v;
  const exact e = reference_of<TestType>(p);
  for (const core c : {core::decode, core::prefill}) {
    const outcome<TestType> o = run<TestType>(p, {c});
    CHECK(relative_error(o.state, e.state) <= ordinary_bound);
    CHECK(relative_error(o.out, e.out) <= ordinary_bound);
    CHECK(std::all_of(o.out.begin(), o.out.begin() + 5 * p.g.V, [](float x) { return x == 0; }));
    CHECK(same_bits(run<TestType>(q, {c}), o));
  }
}

}  // namespace
}  // namespace testing
