// SPDX-License-Identifier: Apache-2.0
// Gate laws: each against the double reference over its whole range, its parameters and their absence, what a NaN
// reaches, and that prefill and decode apply the very law that the gate call computes.
#include "support/kda_catch.hpp"
#include "support/numbers.hpp"

namespace testing {
namespace {

#define KDA_GATE_LAWS                                                                                        \
  specs::kda_bounded, specs::kda_softplus, specs::gdn_bounded, specs::gdn_softplus, specs::glm, specs::qwen, \
      specs::kda_f16
#define KDA_BOUNDED_LAWS specs::kda_bounded, specs::gdn_bounded, specs::glm, specs::kda_f16

template <class Spec> using law_of = typename kda::detail::traits<Spec>::gate;
template <class Spec> using gate_type = typename kda::detail::traits<Spec>::io::gate;
template <class Spec> constexpr bool is_bounded = std::is_same_v<law_of<Spec>, kda::gate::bounded>;
template <class Spec> constexpr bool per_channel = kda::detail::is_per_channel<Spec>;

// One call's inputs: x [T, HV, K], dt_bias [HV, K] or empty, a_log [>= HV] or empty. K is 1 for a law per head.
struct logits {
  index T, HV, K;
  std::vector<float> x, a_log, dt_bias;
  float lower_bound = -5;
};

// A parameter that is left out has neither elements nor a pointer.
kda::view<const float, 1> parameter(const std::vector<float>& x) {
  return x.empty() ? kda::view<const float, 1>{} : kda::packed(x.data(), std::ssize(x));
}

template <class Spec>
kda::gate_args<Spec> args_of(const logits& c, const std::vector<gate_type<Spec>>& x, std::vector<float>& g) {
  const kda::view<const float, 1> a_log = parameter(c.a_log), dt_bias = parameter(c.dt_bias);
  kda::detail::gate_params_of<Spec> params = [&]() -> kda::detail::gate_params_of<Spec> {
    if constexpr (is_bounded<Spec>)
      return {.lower_bound = c.lower_bound, .a_log = a_log, .dt_bias = dt_bias};
    else
      return {.a_log = a_log, .dt_bias = dt_bias};
  }();
  if constexpr (per_channel<Spec>)
    return {
        .x = kda::packed(x.data(), c.T, c.HV, c.K), .gate_params = params, .g = kda::packed(g.data(), c.T, c.HV, c.K)};
  else
    return {.x = kda::packed(x.data(), c.T, c.HV), .gate_params = params, .g = kda::packed(g.data(), c.T, c.HV)};
}

template <class Spec> std::vector<float> gate(const logits& c) {
  const auto x = rounded_to<gate_type<Spec>>(c.x);
  std::vector<float> g(x.size(), not_a_number);
  static scratch w(0);
  const kda::status s = kernels_of<Spec>().gate(args_of<Spec>(c, x, g), w, kda::serial);
  if (!s) throw std::runtime_error(std::string(s.argument) + " " + kda::message(s.what));
  return g;
}

template <class Spec> std::vector<double> exact_gate(const logits& c) {
  const auto x = rounded_and_widened<gate_type<Spec>>(c.x), a_log = widened(c.a_log), dt_bias = widened(c.dt_bias);
  if constexpr (is_bounded<Spec>)
    return kda::reference::bounded_gate(x, a_log, dt_bias, static_cast<double>(c.lower_bound), c.T, c.HV, c.K);
  else
    return kda::reference::unbounded_gate(x, a_log, dt_bias, c.T, c.HV, c.K);
}

// Every x with every A_log and every bias; biases run over channels, or over further heads, and are shifted from head
// to head.
template <class Spec>
logits table_of(const std::vector<float>& x, const std::vector<float>& a_log, const std::vector<float>& bias) {
  const index n = std::ssize(bias);
  logits c{.T = std::ssize(x),
           .HV = std::ssize(a_log) * (per_channel<Spec> ? 1 : n),
           .K = per_channel<Spec> ? n : 1,
           .x = {},
           .a_log = {},
           .dt_bias = {}};
  for (const float e : x) c.x.insert(c.x.end(), size(c.HV * c.K), e);
  for (index h = 0; h < c.HV; ++h) c.a_log.push_back(a_log[size(h) / size(per_channel<Spec> ? 1 : n)]);
  for (index i = 0; i < c.HV * c.K; ++i) c.dt_bias.push_back(bias[size((i + i / n) % n)]);
  return c;
}

template <class Spec> logits random_logits(index T, index HV, index K, std::uint64_t seed) {
  random_numbers r(seed);
  const index channels = per_channel<Spec> ? K : 1;
  return {.T = T,
          .HV = HV,
          .K = channels,
          .x = r.normals(T * HV * channels, 3),
          .a_log = r.normals(HV),
          .dt_bias = r.normals(HV * channels)};
}

}  // namespace

TEMPLATE_TEST_CASE("each gate law follows the reference over its range", "[gates]", KDA_GATE_LAWS) {
  const logits c =
      table_of<TestType>({-100, -50, -20, -10, -5, -2, -1, -0.25f, -1e-3f, 0, 1e-3f, 0.25f, 1, 2, 5, 10, 20, 50, 100},
                         {-4, -1, 0, 1, 2.77f, 5}, {0, -20, 1, -5, 0.5f, -1, 5, 0.01f, -0.3f, 2});
  const std::vector<float> g = gate<TestType>(c);
  const std::vector<double> exact = exact_gate<TestType>(c);
  std::vector<double> most(
      size(c.HV));  // of each head: with one for all, the head of the largest A_log would hide the others
  for (index i = 0; i < std::ssize(g); ++i) {
    double& m = most[size(i / c.K % c.HV)];
    m = std::max(m, std::abs(exact[size(i)]));
  }
  double worst = 0, worst_of_small = 0;
  for (index i = 0; i < std::ssize(g); ++i) {
    const double want = exact[size(i)], error = std::abs(static_cast<double>(g[size(i)]) - want);
    worst = std::max(worst, std::isnan(error) ? 1 : error / most[size(i / c.K % c.HV)]);
    // e^y of a rounded y: the tiny ones are right in their own right, and not just next to the largest
    if (std::abs(want) > 1e-35)
      worst_of_small = std::max(worst_of_small, error / -want / (4 + std::abs(std::log(-want))));
  }
  CAPTURE(worst, worst_of_small);
  CHECK(worst <= 2e-7);
  CHECK(worst_of_small <= 0x1p-23);
}

TEMPLATE_TEST_CASE("no gate law leaves its range, whatever its logits, A_log and dt_bias", "[gates]", KDA_GATE_LAWS) {
  const logits c =
      table_of<TestType>({-infinity, -largest, -1e30f, -1e4f, -200, -1, -smallest_normal, 0, smallest_normal, 1, 200,
                          1e4f, 1e30f, largest, infinity},
                         {-infinity, -largest, -200, -86, -80, 0, 40, 80, 88, 88.72f, 89, 100, 1e4f, infinity},
                         {0, -infinity, -largest, -100, 100, largest, infinity});
  const std::vector<float> g = gate<TestType>(c);
  const std::vector<double> exact = exact_gate<TestType>(c);
  const double limit = is_bounded<TestType> ? -5 : -std::numeric_limits<double>::infinity();
  const double flushed = 5 * 0x1p-124;  // what exp and the fp environment flush to zero
  index wrong = 0;
  for (index i = 0; i < std::ssize(g); ++i) {
    const double got = static_cast<double>(g[size(i)]), want = std::max(exact[size(i)], -1e300);
    const index h = i / c.K % c.HV;
    const bool beyond = want < -static_cast<double>(largest);
    const double slack = 1e-5 * std::abs(want) + flushed;
    const bool right = got >= limit && got <= 0 && (beyond ? std::isinf(got) : std::abs(got - want) <= slack);
    if (!right && ++wrong == 1)
      UNSCOPED_INFO("x " << c.x[size(i)] << ", A_log " << c.a_log[size(h)] << ", dt_bias "
                         << c.dt_bias[size(i % std::ssize(c.dt_bias))] << ": " << got << ", not " << want);
  }
  CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("a NaN among a gate's inputs stays with what it belongs to", "[gates]", KDA_GATE_LAWS) {
  const logits clean = random_logits<TestType>(20, 3, 21, 1);
  const std::vector<float> expected = gate<TestType>(clean);
  // f(t, h, d): whether that g must be NaN, and every other must keep its bits.
  const auto check = [&](const char* what, const logits& c, auto f) {
    const std::vector<float> g = gate<TestType>(c);
    index wrong = 0;
    for (index i = 0; i < std::ssize(g); ++i) {
      const bool hit = f(i / (c.HV * c.K), i / c.K % c.HV, i % c.K);
      if (hit ? !std::isnan(g[size(i)]) : bits_of(g[size(i)]) != bits_of(expected[size(i)])) ++wrong;
    }
    CAPTURE(what, wrong);
    CHECK(wrong == 0);
  };
  const index K = clean.K, HV = clean.HV, channel = K - 1;
  for (const float nan : {not_a_number, from_bits(0xffffffffu), from_bits(0x7f800001u)}) {
    logits c = clean;
    c.x[size((7 * HV + 1) * K + channel)] = nan;
    check("x", c, [&](index t, index h, index d) { return t == 7 && h == 1 && d == channel; });
    c = clean;
    c.dt_bias[size(2 * K + channel)] = nan;
    check("dt_bias", c, [&](index, index h, index d) { return h == 2 && d == channel; });
    c = clean;
    c.a_log[0] = nan;
    check("a_log", c, [&](index, index h, index) { return h == 0; });
  }
}

TEMPLATE_TEST_CASE("a NaN among the gate's inputs reaches no other head's outputs and state", "[gates]",
                   specs::kda_bounded, specs::kda_softplus, specs::gdn_bounded, specs::gdn_softplus) {
  const geometry g{20, 1, 3, 21, 9};
  const problem clean = ordinary_problem<TestType>(g, 2);
  problem p = clean;
  const index K = gates<TestType>(g) / g.HV;
  p.gate[size((7 * g.HV + 1) * K)] = not_a_number;
  for (const core c : {core::decode, core::prefill}) {
    const outcome<TestType> expected = run<TestType>(clean, {c}), got = run<TestType>(p, {c});
    index nans = 0;
    for (index i = 0; i < std::ssize(got.out); ++i) {
      const bool own_head = i / g.V % g.HV == 1;
      nans += std::isnan(got.out[size(i)]) ? 1 : 0;
      if (!own_head && bits_of(got.out[size(i)]) != bits_of(expected.out[size(i)])) FAIL("another head's output " << i);
    }
    for (index i = 0; i < std::ssize(got.state); ++i)
      if (i / (g.K * g.V) != 1 && bits_of(got.state[size(i)]) != bits_of(expected.state[size(i)]))
        FAIL("another head's state " << i);
    CHECK(nans == (g.T - 7) * g.V);  // from its token on
  }
}

TEMPLATE_TEST_CASE("an absent A_log is a multiplier of 1, an absent dt_bias is 0", "[gates]", KDA_GATE_LAWS) {
  logits given = random_logits<TestType>(5, 3, 21, 3), absent = given;
  given.dt_bias.assign(given.dt_bias.size(), 0.f);
  absent.dt_bias.clear();
  CHECK(same_bits(gate<TestType>(given), gate<TestType>(absent)));
  if (is_bounded<TestType>) {
    given.a_log.assign(given.a_log.size(), 0.f);
    absent.a_log.clear();
    CHECK(same_bits(gate<TestType>(given), gate<TestType>(absent)));
  }
}

TEMPLATE_TEST_CASE("what A_log holds past the last head is ignored", "[gates]", KDA_GATE_LAWS) {
  const logits exact = random_logits<TestType>(5, 3, 21, 4);
  logits longer = exact;
  longer.a_log.insert(longer.a_log.end(), 5, not_a_number);
  CHECK(same_bits(gate<TestType>(exact), gate<TestType>(longer)));
}

TEMPLATE_TEST_CASE("lower_bound is a factor and not a clamp", "[gates]", KDA_BOUNDED_LAWS) {
  logits c = random_logits<TestType>(5, 3, 21, 5);
  const std::vector<float> once = gate<TestType>(c);
  c.lower_bound *= 2;
  std::vector<float> twice = gate<TestType>(c);
  for (float& e : twice) e /= 2;
  CHECK(same_bits(once, twice));
}

TEST_CASE("the laws are different functions of the same logits", "[gates]") {
  const logits c = random_logits<specs::kda_bounded>(5, 3, 21, 6);
  const std::vector<float> bounded = gate<specs::kda_bounded>(c), softplus = gate<specs::kda_softplus>(c);
  CHECK(relative_error(bounded, widened(softplus)) > 0.5);
}

TEMPLATE_TEST_CASE("a gate law is right for any number of tokens and channels", "[gates]", KDA_GATE_LAWS) {
  for (const index T : {0, 1, 2, 15, 16, 17, 31, 32, 33, 100})
    for (const index K : {1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 33, 128, 255, 256}) {
      if (per_channel<TestType> ? T > 2 && K != 9 : K > 1) continue;
      const logits c = random_logits<TestType>(T, 3, K, 7);
      CAPTURE(T, K);
      CHECK(relative_error(gate<TestType>(c), exact_gate<TestType>(c)) <= 2e-7);
    }
}

TEMPLATE_TEST_CASE("wrong gate parameters are refused by name, and nothing is written", "[gates]", KDA_GATE_LAWS) {
  const logits c = random_logits<TestType>(5, 3, 21, 8);
  const auto x = rounded_to<gate_type<TestType>>(c.x);
  const auto refused = [&](const logits& wrong, kda::error what, const std::string& argument) {
    std::vector<float> g(x.size(), 7.f);
    scratch w(0);
    const kda::status s = kernels_of<TestType>().gate(args_of<TestType>(wrong, x, g), w, kda::serial);
    CAPTURE(argument);
    CHECK(s.what == what);
    CHECK(s.argument == argument);
    CHECK(same_bits(g, std::vector<float>(g.size(), 7.f)));
  };
  logits wrong = c;
  wrong.dt_bias.resize(size(per_channel<TestType> ? c.HV : c.HV - 1));  // per head where it should be per channel
  refused(wrong, kda::error::wrong_shape, "gate_params.dt_bias");
  wrong = c;
  wrong.dt_bias.push_back(0);
  refused(wrong, kda::error::wrong_shape, "gate_params.dt_bias");
  wrong = c;
  wrong.a_log.pop_back();
  refused(wrong, kda::error::wrong_shape, "gate_params.a_log");
  if (!is_bounded<TestType>) {
    wrong.a_log.clear();
    refused(wrong, kda::error::wrong_shape, "gate_params.a_log");
    return;
  }
  for (const float lower_bound : {0.f, -0.f, 1.f, -infinity, infinity, not_a_number}) {
    wrong = c;
    wrong.lower_bound = lower_bound;
    refused(wrong, kda::error::wrong_value, "gate_params.lower_bound");
  }
}

namespace {

// The problem with its law and its form of beta already applied by Spec's own gate and beta calls.
template <class Spec> problem with_given_gate(const problem& p) {
  const geometry& g = p.g;
  problem given = p;
  given.gate = gate<Spec>({.T = g.T,
                           .HV = g.HV,
                           .K = gates<Spec>(g) / g.HV,
                           .x = p.gate,
                           .a_log = p.a_log,
                           .dt_bias = p.dt_bias,
                           .lower_bound = p.lower_bound});
  scratch w(0);
  const kda::beta_args<Spec> a{.b = kda::packed(p.beta.data(), g.T, g.HV),
                               .beta = kda::packed(given.beta.data(), g.T, g.HV)};
  if (!kernels_of<Spec>().beta(a, w, kda::serial)) throw std::runtime_error("beta");
  return given;
}

template <class Law, class Given> void check_that_calls_agree() {
  for (const geometry g : {geometry{37, 2, 4, 24, 40}, geometry{16, 1, 1, 128, 32}, geometry{3, 1, 3, 1, 1}}) {
    const problem p = ordinary_problem<Law>(g, 9), given = with_given_gate<Law>(p);
    for (const core c : {core::decode, core::prefill}) {
      const outcome<Law> with_law = run<Law>(p, {c});
      const outcome<Given> with_g = run<Given>(given, {c});
      CAPTURE(g.T, g.K, c == core::prefill);
      CHECK(same_bits(with_law.out, with_g.out));
      CHECK(same_bits(with_law.state, with_g.state));
    }
  }
}

}  // namespace

TEST_CASE("prefill and decode apply the law that the gate call computes, bit for bit", "[gates]") {
  check_that_calls_agree<specs::kda_bounded, specs::kda_norm_value>();
  check_that_calls_agree<specs::kda_softplus, specs::kda_norm_key>();
  check_that_calls_agree<specs::gdn_bounded, specs::gdn_norm_value>();
  check_that_calls_agree<specs::gdn_softplus, specs::gdn_norm_key>();
}

}  // namespace testing
