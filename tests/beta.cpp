// SPDX-License-Identifier: Apache-2.0
// Forms of beta: against the reference, every element its own whatever the strides, and nothing between logit and state
// rounded to bf16: neither beta nor a decay just below 1.
#include "support/kda_catch.hpp"
#include "support/numbers.hpp"

namespace testing {
namespace {

#define KDA_BETA_FORMS                                                                                       \
  specs::kda_bounded, specs::kda_softplus, specs::gdn_bounded, specs::gdn_softplus, specs::glm, specs::qwen, \
      specs::kda_f16

template <class Spec> using beta_type = typename kda::detail::traits<Spec>::io::beta;
template <class Spec>
constexpr float factor =
    std::is_same_v<typename kda::detail::traits<Spec>::beta, kda::beta::logits_doubled> ? 2.f : 1.f;

template <class Spec> void call(kda::view<const beta_type<Spec>, 2> b, kda::view<float, 2> beta) {
  static scratch w(0);
  const kda::status s = kernels_of<Spec>().beta({.b = b, .beta = beta}, w, kda::serial);
  if (!s) throw std::runtime_error(std::string(s.argument) + " " + kda::message(s.what));
}
template <class Spec> std::vector<float> beta(const std::vector<beta_type<Spec>>& b, index T, index HV) {
  std::vector<float> y(b.size(), not_a_number);
  call<Spec>(kda::packed(b.data(), T, HV), kda::packed(y.data(), T, HV));
  return y;
}

}  // namespace

TEMPLATE_TEST_CASE("beta is the sigmoid of its logit to the last places, bf16 and f16 logits included", "[beta]",
                   KDA_BETA_FORMS) {
  random_numbers r(1);
  const index T = 700, HV = 3;
  std::vector<float> logits = r.uniforms(T * HV, -87, 30);
  for (std::size_t i = 0; i < logits.size(); i += 2) logits[i] = r.normal();
  const auto b = rounded_to<beta_type<TestType>>(logits);
  const std::vector<float> got = beta<TestType>(b, T, HV);
  const std::vector<double> exact = kda::reference::sigmoid(widened(b), static_cast<double>(factor<TestType>));
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) worst = std::max(worst, ulps_between(got[i], exact[i]));
  CHECK(worst <= 2.5);
}

TEMPLATE_TEST_CASE("beta saturates cleanly, and a NaN stays in its own place", "[beta]", KDA_BETA_FORMS) {
  constexpr float f = factor<TestType>;
  const auto b = rounded_to<beta_type<TestType>>({0, -0.f, 100, 1e4f, 1e30f, infinity, -100, -1e4f, -1e30f, -infinity,
                                                  not_a_number, 0, from_bits(0xffffffffu), 0});
  const std::vector<float> got = beta<TestType>(b, std::ssize(b) / 2, 2);
  const float expected[] = {f / 2, f / 2, f, f, f, f, 0, 0, 0, 0, not_a_number, f / 2, not_a_number, f / 2};
  for (std::size_t i = 0; i < got.size(); ++i) {
    CAPTURE(i, got[i], expected[i]);
    CHECK((std::isnan(expected[i]) ? std::isnan(got[i]) : got[i] == expected[i]));
  }
}

TEST_CASE("the doubled form is twice the plain one, bit for bit", "[beta]") {
  random_numbers r(2);
  const std::vector<float> b = r.normals(60, 4);
  std::vector<float> plain = beta<specs::kda_bounded>(b, 20, 3);
  for (float& e : plain) e *= 2;
  CHECK(same_bits(plain, beta<specs::kda_softplus>(b, 20, 3)));
}

TEMPLATE_TEST_CASE("an element of beta depends on its own logit alone, for any number of tokens", "[beta]",
                   KDA_BETA_FORMS) {
  random_numbers r(3);
  for (const index T : {0, 1, 2, 15, 16, 17, 31, 32, 33, 50})
    for (const index HV : {1, 3}) {
      const auto b = rounded_to<beta_type<TestType>>(r.normals(T * HV));
      const std::vector<float> together = beta<TestType>(b, T, HV);
      std::vector<float> alone;
      for (const auto e : b) alone.push_back(beta<TestType>({e}, 1, 1)[0]);
      CAPTURE(T, HV);
      CHECK(same_bits(together, alone));
    }
}

TEMPLATE_TEST_CASE("beta is read and written through any strides, and nothing beside it", "[beta]", KDA_BETA_FORMS) {
  using type = beta_type<TestType>;
  random_numbers r(4);
  const index T = 21, HV = 3;
  const auto b = rounded_to<type>(r.normals(T * HV));
  const std::vector<float> expected = beta<TestType>(b, T, HV);
  // (token stride, head stride): interleaved with another tensor, heads first, both padded
  for (const auto& [token, head] : {std::pair<index, index>{2 * HV, 2}, {1, T + 4}, {3 * HV + 5, 3}}) {
    const index extent = (T - 1) * token + (HV - 1) * head + 1;
    std::vector<type> wide(size(extent), kda::round_to<type>(not_a_number));
    std::vector<float> out(size(extent), 7.f);
    for (index t = 0; t < T; ++t)
      for (index h = 0; h < HV; ++h) wide[size(t * token + h * head)] = b[size(t * HV + h)];
    call<TestType>({.data = wide.data(), .shape = {T, HV}, .stride = {token, head}},
                   {.data = out.data(), .shape = {T, HV}, .stride = {token, head}});
    for (index t = 0; t < T; ++t)
      for (index h = 0; h < HV; ++h) {
        float& got = out[size(t * token + h * head)];
        CHECK(bits_of(got) == bits_of(expected[size(t * HV + h)]));
        got = 7.f;
      }
    CHECK(same_bits(out, std::vector<float>(out.size(), 7.f)));
  }
}

namespace {

// The problem of one value head; H == HV.
template <class Spec> problem head_of(const problem& p, index h) {
  const geometry& g = p.g;
  problem one = p;
  one.g.H = one.g.HV = 1;
  const auto cut = [&](std::vector<float>& x, index tokens) {
    const index width = std::ssize(x) / (tokens * g.HV);
    std::vector<float> y;
    for (index t = 0; t < tokens; ++t)
      y.insert(y.end(), x.begin() + (t * g.HV + h) * width, x.begin() + (t * g.HV + h + 1) * width);
    x = y;
  };
  for (auto* x : {&one.q, &one.k, &one.v, &one.gate, &one.beta}) cut(*x, g.T);
  for (auto* x : {&one.state, &one.a_log, &one.dt_bias}) cut(*x, 1);
  return one;
}

}  // namespace

TEMPLATE_TEST_CASE("a head's outputs are those of the head alone, whichever beta its neighbours have", "[beta]",
                   specs::kda_bounded, specs::kda_softplus, specs::gdn_bounded, specs::gdn_softplus) {
  const geometry g{19, 3, 3, 16, 8};
  problem p = ordinary_problem<TestType>(g, 5);
  for (index i = 0; i < g.T * g.HV; ++i) p.beta[size(i)] = -3 + 0.1f * static_cast<float>(i);  // no two are equal
  for (const core c : {core::decode, core::prefill}) {
    const outcome<TestType> all = run<TestType>(p, {c});
    for (index h = 0; h < g.HV; ++h) {
      const outcome<TestType> one = run<TestType>(head_of<TestType>(p, h), {c});
      index wrong = 0;
      for (index t = 0; t < g.T; ++t)
        for (index j = 0; j < g.V; ++j)
          wrong += bits_of(all.out[size((t * g.HV + h) * g.V + j)]) == bits_of(one.out[size(t * g.V + j)]) ? 0 : 1;
      for (index i = 0; i < g.K * g.V; ++i)
        wrong += bits_of(all.state[size(h * g.K * g.V + i)]) == bits_of(one.state[size(i)]) ? 0 : 1;
      CAPTURE(h, c == core::prefill);
      CHECK(wrong == 0);
    }
  }
}

TEMPLATE_TEST_CASE("prefill and decode read beta through its strides", "[beta]", specs::kda_bounded,
                   specs::gdn_softplus) {
  const geometry g{19, 1, 3, 16, 8};
  const problem p = ordinary_problem<TestType>(g, 6);
  for (const core c : {core::decode, core::prefill}) {
    const outcome<TestType> expected = run<TestType>(p, {c});
    packed_tensors<TestType> t(p);
    std::vector<float> interleaved(size(2 * g.T * g.HV),
                                   not_a_number);  // b | a side by side, one beta every other element
    for (index i = 0; i < g.T * g.HV; ++i) interleaved[size(2 * i)] = t.beta[size(i)];
    std::vector<float> pool = to_layout<TestType>(p.state, g);
    const std::int64_t offsets[] = {0, g.T};
    const std::int32_t slot[] = {0};
    const bool has[] = {true};
    kda::delta_rule_args<TestType> a = t.args();
    a.beta = {.data = interleaved.data(), .shape = {g.T, g.HV}, .stride = {2 * g.HV, 2}};
    a.sequences = {.offsets = kda::indices(offsets, 2),
                   .load_slots = kda::indices(slot, 1),
                   .store_slots = kda::indices(slot, 1),
                   .has_initial_state = kda::packed(has, 1)};
    a.states = {.data = pool.data(), .slots = 1, .slot_stride = std::ssize(pool)};
    scratch w(1);
    REQUIRE(call_of(kernels_of<TestType>(), c)(a, w, kda::serial));
    CHECK(same_bits(t.out, expected.out));
    CHECK(same_bits(from_layout<TestType>(pool, g), expected.state));
  }
}

namespace {

// A decay of 0.99992 per token. Keys fill half of the channels, so that in the others the state does nothing but decay:
// as bf16 the decay would be 1, and as 1 - 2^-8 it would be gone after a few hundred tokens.
template <class Spec> void check_slow_decay(const geometry& g, float logit) {
  problem p = ordinary_problem<Spec>(g, 7);
  p.gate.assign(p.gate.size(), logit);
  p.a_log.assign(p.a_log.size(), 0);
  p.dt_bias.assign(p.dt_bias.size(), 0);
  for (index i = 0; i < std::ssize(p.k); ++i)
    if (i % g.K >= g.K / 2) p.k[size(i)] = 0;
  const exact e = reference_of<Spec>(p);
  for (const core c : {core::decode, core::prefill}) {
    const outcome<Spec> o = run<Spec>(p, {c});
    const double error = relative_error(o.state, e.state);
    CAPTURE(c == core::prefill, error);
    CHECK(error <= hard_bound);
    CHECK(disagreements(o.out, e.out, hard_bound) == 0);
  }
}

}  // namespace

TEST_CASE("a decay just below 1 survives thousands of tokens of bf16 inputs", "[beta]") {
  check_slow_decay<specs::qwen>({emulated() ? 256 : 4096, 1, 2, 16, 16}, -9.4375f);  // softplus(-9.4375) = 8e-5
  check_slow_decay<specs::glm>({emulated() ? 64 : 512, 1, 1, 128, 128}, -11);        // 5 sigmoid(-11) = 8.4e-5
}

}  // namespace testing
