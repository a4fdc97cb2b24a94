// SPDX-License-Identifier: Apache-2.0
// L2 norm of q and k: eps inside the root and on the sum, at every amplitude, row length and type; done once by prefill
// and decode, or not at all.
#include "support/kda_catch.hpp"
#include "support/numbers.hpp"

namespace testing {
namespace {

constexpr float qk_eps = 1e-6f;

template <class Spec> using element = typename kda::types<Spec>::stage_qkv;

template <class Spec>
std::vector<float> l2norm(const std::vector<element<Spec>>& x, index rows, index K, float eps, float scale) {
  std::vector<float> y(x.size(), not_a_number);
  static scratch w(0);
  const kda::status s = kernels_of<Spec>().l2norm(
      {.x = kda::packed(x.data(), rows, 1, K), .eps = eps, .scale = scale, .y = kda::packed(y.data(), rows, 1, K)}, w,
      kda::serial);
  if (!s) throw std::runtime_error(std::string(s.argument) + " " + kda::message(s.what));
  return y;
}

// Worst error of an element relative to the largest one of its own row: rows may differ by orders of magnitude.
double worst_row(const std::vector<float>& got, const std::vector<double>& exact, index K) {
  double worst = 0;
  for (index first = 0; first < std::ssize(got); first += K)
    worst = std::max(worst, relative_error(std::vector<float>(got.begin() + first, got.begin() + first + K),
                                           std::vector<double>(exact.begin() + first, exact.begin() + first + K)));
  return worst;
}

template <class Spec> double error_of(const std::vector<float>& values, index rows, index K, float eps, float scale) {
  const auto x = rounded_to<element<Spec>>(values);
  return worst_row(
      l2norm<Spec>(x, rows, K, eps, scale),
      kda::reference::l2norm_rows(widened(x), rows, K, static_cast<double>(eps), static_cast<double>(scale)), K);
}

constexpr double bound = 6e-7;  // relative to the row's largest: the sum of 256 squares in one lane, halved by the root

}  // namespace

TEMPLATE_TEST_CASE("rows of any length are normalised", "[l2norm]", specs::kda_norm_key, specs::glm, specs::kda_f16) {
  random_numbers r(1);
  for (index K = 1; K <= 256; K += K < 70 && !emulated() ? 1 : 13) {
    CAPTURE(K);
    CHECK(error_of<TestType>(r.normals(5 * K), 5, K, qk_eps, 1 / std::sqrt(static_cast<float>(K))) <= bound);
  }
  CHECK(error_of<TestType>(r.normals(35 * 256), 35, 256, qk_eps, 1) <= bound);
}

TEMPLATE_TEST_CASE("eps stands inside the root, on the sum of squares, at every amplitude", "[l2norm]",
                   specs::kda_norm_key, specs::glm, specs::kda_f16) {
  random_numbers r(2);
  constexpr bool is_f16 = std::is_same_v<element<TestType>, kda::f16>;
  for (const double amplitude : {1e15, 6e4, 1e4, 1., 0.1, 0.01, 1e-3, 1e-4, 1e-6, 1e-12})
    for (const float eps : {qk_eps, 0.f, 1e-12f, 0.5f}) {
      if (eps == 0.f && amplitude < (is_f16 ? 1e-4 : 1e-6)) continue;  // squares that are denormal are 0, as is 1e-12
      if (is_f16 && amplitude > 1e4) continue;                         // infinity
      for (const index K : {1, 24, 128}) {
        CAPTURE(amplitude, eps, K);
        CHECK(error_of<TestType>(r.normals(3 * K, amplitude), 3, K, eps, -0.3f) <= bound);
      }
    }
}

// Their squares, and from two channels on the root of their sum, are no halves.
TEST_CASE("rows of the largest halves are normalised", "[l2norm]") {
  random_numbers r(8);
  for (const index K : {1, 2, 24, 37, 256}) {
    std::vector<float> x(size(3 * K));
    for (float& e : x) e = r.uniform() < 0.5 ? 65504.f : -65504.f;
    CAPTURE(K);
    CHECK(error_of<specs::kda_f16>(x, 3, K, qk_eps, 1) <= bound);
    CHECK(error_of<specs::gdn_f16_stages>(x, 3, K, qk_eps, 1) <= bound);
  }
  problem p = ordinary_problem<specs::kda_f16>({20, 1, 2, 256, 16}, 9);
  for (auto* x : {&p.q, &p.k})
    for (float& e : *x) e = std::copysign(65504.f, e);
  const exact e = reference_of<specs::kda_f16>(p);
  for (const core c : {core::decode, core::prefill}) {
    const outcome<specs::kda_f16> o = run<specs::kda_f16>(p, {c});
    CHECK(disagreements(o.out, e.out, ordinary_bound) == 0);
    CHECK(relative_error(o.state, e.state) <= ordinary_bound);
  }
}

TEMPLATE_TEST_CASE("a row of zeros stays zero, and a NaN stays in its row", "[l2norm]", specs::kda_norm_key, specs::glm,
                   specs::kda_f16) {
  random_numbers r(3);
  const index K = 37;
  std::vector<float> values = r.normals(4 * K);
  const std::vector<float> expected = l2norm<TestType>(rounded_to<element<TestType>>(values), 4, K, qk_eps, 1);
  std::fill(values.begin() + K, values.begin() + 2 * K, 0.f);
  values[size(3 * K - 1)] = not_a_number;
  const std::vector<float> y = l2norm<TestType>(rounded_to<element<TestType>>(values), 4, K, qk_eps, 1);
  for (index i = 0; i < 4 * K; ++i) {
    const float got = y[size(i)];
    CAPTURE(i, got);
    CHECK((i / K == 1 ? got == 0.f : i / K == 2 ? std::isnan(got) : bits_of(got) == bits_of(expected[size(i)])));
  }
}

TEST_CASE("a wrong eps, scale or row length is refused by name, and nothing is written", "[l2norm]") {
  const auto refused = [](index K, float eps, float scale, kda::error what, const std::string& argument) {
    const std::vector<float> x(size(2 * K), 1.f);
    std::vector<float> y(x.size(), 7.f);
    scratch w(0);
    const kda::status s = kernels_of<specs::kda_norm_key>().l2norm(
        {.x = kda::packed(x.data(), 2, 1, K), .eps = eps, .scale = scale, .y = kda::packed(y.data(), 2, 1, K)}, w,
        kda::serial);
    CAPTURE(K, eps, scale);
    CHECK(s.what == what);
    CHECK(s.argument == argument);
    CHECK(same_bits(y, std::vector<float>(y.size(), 7.f)));
  };
  for (const float eps : {-1e-6f, -infinity, infinity, not_a_number})
    refused(8, eps, 1, kda::error::wrong_value, "eps");
  for (const float scale : {-infinity, infinity, not_a_number})
    refused(8, qk_eps, scale, kda::error::wrong_value, "scale");
  refused(257, qk_eps, 1, kda::error::wrong_shape, "x");
  refused(0, qk_eps, 1, kda::error::wrong_shape, "x");
}

namespace {

template <class Normalized, class Given> void check_that_calls_agree() {
  for (const geometry g : {geometry{37, 2, 4, 24, 40}, geometry{16, 1, 1, 128, 32}, geometry{5, 1, 1, 1, 3}}) {
    problem p = ordinary_problem<Normalized>(g, 4);
    p.scale = 0.37f;
    problem given = p;
    given.q = l2norm<Normalized>(p.q, g.T * g.H, g.K, qk_eps, p.scale);
    given.k = l2norm<Normalized>(p.k, g.T * g.H, g.K, qk_eps, 1);
    given.scale = 1;
    for (const core c : {core::decode, core::prefill}) {
      const outcome<Normalized> inside = run<Normalized>(p, {c});
      const outcome<Given> before = run<Given>(given, {c});
      CAPTURE(g.K, c == core::prefill);
      CHECK(same_bits(inside.out, before.out));
      CHECK(same_bits(inside.state, before.state));
    }
  }
}

}  // namespace

TEST_CASE("prefill and decode normalise as the call does, bit for bit, and given q and k not once more", "[l2norm]") {
  check_that_calls_agree<specs::kda_norm_key, specs::kda_given_key>();
  check_that_calls_agree<specs::kda_norm_value, specs::kda_given_value>();
  check_that_calls_agree<specs::gdn_norm_key, specs::gdn_given_key>();
  check_that_calls_agree<specs::gdn_norm_value, specs::gdn_given_value>();
}

TEMPLATE_TEST_CASE("q and k that are given are used at the length they have", "[l2norm]", specs::kda_given_key,
                   specs::gdn_given_value) {
  problem p = ordinary_problem<TestType>({20, 1, 2, 24, 16}, 5);
  for (float& e : p.q) e *= 3;
  for (float& e : p.k) e *= 0.7f;
  for (const core c : {core::decode, core::prefill}) CHECK(errors_of<TestType>(p, c).worst() <= ordinary_bound);
}

TEMPLATE_TEST_CASE("prefill and decode agree with the reference for q and k of every amplitude", "[l2norm]",
                   specs::kda_norm_key, specs::gdn_norm_value) {
  for (const float amplitude : {1e15f, 1.f, 0.1f, 0.01f, 1e-3f, 1e-4f}) {
    problem p = ordinary_problem<TestType>({20, 1, 2, 24, 16}, 6);
    for (auto* x : {&p.q, &p.k})
      for (float& e : *x) e *= amplitude;
    for (const core c : {core::decode, core::prefill}) {
      const errors e = errors_of<TestType>(p, c);
      CAPTURE(amplitude, c == core::prefill, e.out, e.state);
      CHECK(e.worst() <= ordinary_bound);
    }
  }
}

TEMPLATE_TEST_CASE("under keys of zero the state only decays", "[l2norm]", specs::kda_norm_key, specs::gdn_norm_value) {
  problem p = ordinary_problem<TestType>({20, 1, 2, 24, 16}, 7);
  p.gate.assign(p.gate.size(), -0.125f);
  p.k.assign(p.k.size(), 0.f);
  const double left = std::exp(-0.125 * 20);
  std::vector<double> decayed = widened(p.state);
  for (double& e : decayed) e *= left;
  for (const core c : {core::decode, core::prefill})
    CHECK(relative_error(run<TestType>(p, {c}).state, decayed) <= ordinary_bound);
}

}  // namespace testing
