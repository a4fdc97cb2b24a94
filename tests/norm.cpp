// SPDX-License-Identifier: Apache-2.0
// The gated RMS norm: against the reference for every row length and amplitude, both activations; in 16 bits bit for
// bit where every step is exact in fp32, so that the weight is seen to act before or after the cast.
#include "support/kda_catch.hpp"
#include "support/numbers.hpp"

namespace testing {
namespace {

#define KDA_FLOAT_NORMS specs::kda_bounded, specs::kda_softplus, specs::gdn_softplus
#define KDA_NORMS KDA_FLOAT_NORMS, specs::glm, specs::qwen, specs::kda_f16, specs::gdn_f16_stages

template <class Spec> using element = typename kda::detail::traits<Spec>::io::out;
template <class Spec> constexpr bool is_float = std::is_same_v<element<Spec>, float>;
template <class Spec> constexpr bool is_silu = kda::detail::traits<Spec>::norm::act == kda::activation::silu;
template <class Spec>
constexpr bool weight_after_cast = kda::detail::traits<Spec>::norm::order == kda::weight::after_cast;

template <class Spec> struct rows {
  index T, HV, V;
  std::vector<element<Spec>> x, gate;  // [T, HV, V]
  std::vector<float> weight;           // [V]
  float eps;
};

template <class Spec>
rows<Spec> random_rows(index T, index HV, index V, float eps, double amplitude, std::uint64_t seed) {
  random_numbers r(seed);
  return {T,
          HV,
          V,
          rounded_to<element<Spec>>(r.normals(T * HV * V, amplitude)),
          rounded_to<element<Spec>>(r.normals(T * HV * V, 2)),
          r.normals(V),
          eps};
}

template <class Spec> kda::norm_args<Spec> args_of(const rows<Spec>& c, std::vector<element<Spec>>& y) {
  return {.x = kda::packed(c.x.data(), c.T, c.HV, c.V),
          .gate = kda::packed(c.gate.data(), c.T, c.HV, c.V),
          .weight = kda::packed(c.weight.data(), std::ssize(c.weight)),
          .eps = c.eps,
          .y = kda::packed(y.data(), c.T, c.HV, c.V)};
}
template <class Spec> std::vector<element<Spec>> norm(const rows<Spec>& c) {
  std::vector<element<Spec>> y(c.x.size(), kda::round_to<element<Spec>>(not_a_number));
  static scratch w(0);
  const kda::status s = kernels_of<Spec>().norm(args_of(c, y), w, kda::serial);
  if (!s) throw std::runtime_error(std::string(s.argument) + " " + kda::message(s.what));
  return y;
}

template <class Spec>
constexpr auto activation =
    is_silu<Spec> ? kda::reference::activation_kind::silu : kda::reference::activation_kind::sigmoid;

template <class Spec> std::vector<double> exact_norm(const rows<Spec>& c) {
  return kda::reference::rms_norm_gated(widened(c.x), widened(c.gate), widened(c.weight), c.T * c.HV, c.V,
                                        static_cast<double>(c.eps), activation<Spec>);
}

constexpr double bound = 6e-7;

// Elements that the rounding of no number near the exact one gives. With the weight after the cast there are three
// roundings, and each may fall to either side if its argument is within `bound` of a tie.
template <class Spec> index wrong_elements(const rows<Spec>& c) {
  const std::vector<element<Spec>> got = norm(c);
  if constexpr (is_float<Spec> || !weight_after_cast<Spec>) {
    return disagreements(got, exact_norm(c), bound);
  } else {
    const std::vector<double> ones(c.weight.size(), 1), open(c.x.size(), 100);
    const std::vector<double> normalized =
        kda::reference::rms_norm_gated(widened(c.x), open, ones, c.T * c.HV, c.V, static_cast<double>(c.eps),
                                       kda::reference::activation_kind::sigmoid);
    const auto rounded = [](double x, double side) {
      return static_cast<double>(
          kda::to_float(kda::round_to<element<Spec>>(static_cast<float>(x * (1 + side * bound)))));
    };
    index wrong = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double weight = static_cast<double>(c.weight[i % c.weight.size()]),
                   y = static_cast<double>(kda::to_float(got[i]));
      const double opening = kda::reference::activate(activation<Spec>, static_cast<double>(kda::to_float(c.gate[i])));
      bool possible = false;
      for (const int sides : {0, 1, 2, 3, 4, 5, 6, 7})
        possible =
            possible ||
            y == rounded(rounded(rounded(normalized[i], sides & 1 ? 1 : -1) * weight, sides & 2 ? 1 : -1) * opening,
                         sides & 4 ? 1 : -1);
      wrong += possible ? 0 : 1;
    }
    return wrong;
  }
}

}  // namespace

TEMPLATE_TEST_CASE("rows of any length are normalised, weighted and gated", "[norm]", KDA_NORMS) {
  for (index V = 1; V <= 300; V += emulated() ? 37 : V < 70 ? 1 : 23) {
    CAPTURE(V);
    CHECK(wrong_elements(random_rows<TestType>(5, 3, V, 1e-6f, 1, 1)) == 0);
  }
}

TEMPLATE_TEST_CASE("eps of the norm stands inside the root, on the mean, at every amplitude", "[norm]", KDA_NORMS) {
  for (const double amplitude : {1e15, 6e4, 1e4, 1., 0.1, 0.01, 1e-3, 1e-4, 1e-12})
    for (const float eps : {1e-5f, 1e-6f, 0.f, 0.25f})
      for (const index V : {1, 24, 129}) {
        if (eps == 0.f && amplitude < 1e-6) continue;  // squares that are denormal are 0
        if (std::is_same_v<element<TestType>, kda::f16> && amplitude > 1e4) continue;  // infinity
        CAPTURE(amplitude, eps, V);
        CHECK(wrong_elements(random_rows<TestType>(2, 2, V, eps, amplitude, 2)) == 0);
      }
}

TEMPLATE_TEST_CASE("a row's result depends on nothing but the row, for any number of tokens and heads", "[norm]",
                   KDA_NORMS) {
  for (const index T : {0, 1, 15, 16, 17, 33})
    for (const index HV : {1, 3}) {
      const auto all = random_rows<TestType>(T, HV, 21, 1e-6f, 1, 3);
      std::vector<element<TestType>> alone;
      for (index row = 0; row < T * HV; ++row) {
        auto one = all;
        one.T = one.HV = 1;
        one.x.assign(all.x.begin() + row * 21, all.x.begin() + (row + 1) * 21);
        one.gate.assign(all.gate.begin() + row * 21, all.gate.begin() + (row + 1) * 21);
        const auto y = norm(one);
        alone.insert(alone.end(), y.begin(), y.end());
      }
      CAPTURE(T, HV);
      CHECK(same_bits(norm(all), alone));
    }
}

TEMPLATE_TEST_CASE("the gate saturates cleanly; a NaN in it stays in its channel, one in x in its row", "[norm]",
                   KDA_NORMS) {
  const index V = 21;
  auto c = random_rows<TestType>(4, 1, V, 1e-6f, 1, 4);
  const auto number = [](float x) { return kda::round_to<element<TestType>>(x); };
  const auto clean = norm(c);
  c.gate[1] = number(-infinity);
  c.gate[2] = number(-1e4f);
  c.gate[3] = number(infinity);
  c.gate[size(V + 5)] = number(not_a_number);
  c.x[size(3 * V - 1)] = number(not_a_number);
  const auto y = norm(c);
  index wrong = 0;
  for (index i = 0; i < 4 * V; ++i) {
    const float got = kda::to_float(y[size(i)]);
    bool right = bits_of(got) == bits_of(kda::to_float(clean[size(i)]));
    if (i == 1 || i == 2) right = got == 0;
    if (i == 3) right = is_silu<TestType> ? std::isinf(got) : std::abs(got) > 0 && std::isfinite(got);
    if (i == V + 5 || i / V == 2) right = std::isnan(got);
    wrong += right ? 0 : 1;
  }
  CHECK(wrong == 0);
}

TEMPLATE_TEST_CASE("a row of zeros gives zeros", "[norm]", KDA_NORMS) {
  auto c = random_rows<TestType>(2, 2, 21, 1e-6f, 0, 5);
  for (const auto e : norm(c)) CHECK(kda::to_float(e) == 0.f);
}

namespace {

// y with the casts where `after_cast` says, from plain fp32 operations; r is the row's 1 / sqrt(mean + eps).
template <class T>
std::vector<T> emulated_rows(const std::vector<T>& x, const std::vector<float>& weight,
                             const std::vector<float>& opening, float r, bool after_cast) {
  const auto rounded = [](float e) { return kda::to_float(kda::round_to<T>(e)); };
  std::vector<T> y;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const float normalized = kda::to_float(x[i]) * r;
    const float weighted = after_cast ? rounded(weight[i] * rounded(normalized)) : weight[i] * normalized;
    y.push_back(kda::round_to<T>(weighted * opening[i]));
  }
  return y;
}

// Whole numbers have exact sums of squares in any order; far from 0 the sigmoid is exactly 0 or 1. So every step is one
// rounded fp32 operation, and the result is known to the bit.
template <class Spec> void check_bits() {
  const index V = 301;
  random_numbers r(6);
  rows<Spec> c{1, 1, V, {}, {}, r.normals(V), 0.5f};
  float sum = 0;
  std::vector<float> opening;
  for (index i = 0; i < V; ++i) {
    const auto whole = static_cast<float>(static_cast<int>(60 * r.uniform()) - 30),
               gate = static_cast<float>(20 + i % 13);
    sum += whole * whole;
    c.x.push_back(kda::round_to<element<Spec>>(whole));
    c.gate.push_back(kda::round_to<element<Spec>>(gate));
    opening.push_back(is_silu<Spec> ? gate : 1.f);
  }
  const float root = 1.f / std::sqrt(sum / static_cast<float>(V) + c.eps);
  const auto before = emulated_rows(c.x, c.weight, opening, root, false),
             after = emulated_rows(c.x, c.weight, opening, root, true);
  CHECK(!same_bits(before, after));  // or this could not tell one from the other
  CHECK(same_bits(norm(c), weight_after_cast<Spec> ? after : before));
}

}  // namespace

TEST_CASE("in 16 bits the weight acts before or after the cast, to the bit", "[norm]") {
  check_bits<specs::glm>();
  check_bits<specs::qwen>();
  check_bits<specs::kda_f16>();
  check_bits<specs::gdn_f16_stages>();
}

TEMPLATE_TEST_CASE("a wrong eps or weight is refused by name, and nothing is written", "[norm]", KDA_NORMS) {
  const auto refused = [](const rows<TestType>& c, kda::error what, const std::string& argument) {
    const std::vector<element<TestType>> before(c.x.size(), kda::round_to<element<TestType>>(7));
    auto y = before;
    scratch w(0);
    const kda::status s = kernels_of<TestType>().norm(args_of(c, y), w, kda::serial);
    CAPTURE(c.eps, c.weight.size());
    CHECK(s.what == what);
    CHECK(s.argument == argument);
    CHECK(same_bits(y, before));
  };
  for (const float eps : {-1e-6f, -infinity, infinity, not_a_number})
    refused(random_rows<TestType>(2, 2, 21, eps, 1, 7), kda::error::wrong_value, "eps");
  for (const index length : {1, 20, 22, 42}) {
    auto c = random_rows<TestType>(2, 2, 21, 1e-6f, 1, 7);
    c.weight.resize(size(length));
    refused(c, kda::error::wrong_shape, "weight");
  }
}

}  // namespace testing
