// SPDX-License-Identifier: Apache-2.0
// Products of bf16: what they may change (prefill, within a bound) and what they may not (decode, cuts, blocking, and
// anything on an ISA without instructions for them).
#include "support/guarded_run.hpp"
#include "support/kda_catch.hpp"
#include "support/regimes.hpp"
#include "support/step.hpp"

namespace testing {
namespace {

#define KDA_PRODUCTS specs::kda_products, specs::gdn_products

constexpr geometry odd{37, 1, 2, 33, 40};

// The same options without the products.
template <class Spec> struct without_products;
template <> struct without_products<specs::kda_products> { using type = specs::kda_given_key; };
template <> struct without_products<specs::gdn_products> { using type = specs::gdn_bf16_value; };
template <> struct without_products<specs::glm_products> { using type = specs::glm; };
template <class Spec> using plain = typename without_products<Spec>::type;

bool has_instructions() { return current_isa() >= kda::isa::avx512_bf16; }

}  // namespace

TEMPLATE_TEST_CASE("products of bf16 are taken where the ISA has them, and nothing changes elsewhere", "[products]",
                   KDA_PRODUCTS, specs::glm_products) {
  using dims = typename kda::detail::traits<TestType>::dims;
  const problem p = ordinary_problem<TestType>(
      {odd.T, odd.H, odd.HV, dims::key ? dims::key : odd.K, dims::value ? dims::value : odd.V}, 301);
  // kernels of all specs for avx512_bf16 are built for the nightly run alone
  const kda::isa isa = has_instructions() ? kda::isa::avx512 : current_isa();
  const kda::table<plain<TestType>>* other = kernels_on<plain<TestType>>(isa);
  if (other == nullptr) other = &kernels_of<plain<TestType>>();
  const auto fp32 = run<plain<TestType>>(p, {core::prefill}, {}, *other);
  CHECK(same_bits(run<TestType>(p, {core::prefill}), fp32) == !has_instructions());
  CHECK(same_bits(run<TestType>(p, {core::decode}), run<plain<TestType>>(p, {core::decode}, {}, *other)));
}

// Unit keys of one channel each, small whole numbers, decay of 1 or 0: every factor and every sum is exact in bf16.
TEST_CASE("products of bf16 are exact where their factors are", "[products]") {
  using spec = specs::kda_products;
  for (const geometry& g : {odd, geometry{64, 1, 1, 128, 128}, geometry{5, 2, 2, 1, 3}, geometry{31, 1, 1, 20, 70}}) {
    if (emulated() && g.K == 128) continue;
    problem p = ordinary_problem<spec>(g, 302);
    random_numbers random(303);
    const auto whole = [&](std::vector<float>& x, double most) {
      for (float& y : x) y = std::round(random.uniform(-most, most));
    };
    whole(p.q, 3), whole(p.v, 8), whole(p.state, 8);
    std::fill(p.k.begin(), p.k.end(), 0.f);
    for (index t = 0; t < g.T; ++t)
      for (index h = 0; h < g.H; ++h) p.k[size((t * g.H + h) * g.K + (5 * t + h) % g.K)] = 1;
    p = with_beta(
        with_decay<spec>(std::move(p),
                         [&](index t, index h, index d) { return (7 * t + 3 * h + d) % 23 == 0 ? minus_infinity : 0; }),
        [](index, index) { return 1; });
    p.scale = 1;
    const exact e = reference_of<spec>(p);
    const outcome<spec> o = run_guarded<spec>(p, core::prefill);
    CAPTURE(g.T, g.K, g.V);
    CHECK(widened(o.out) == e.out);
    CHECK(widened(o.state) == e.state);
  }
}

TEMPLATE_TEST_CASE("products of bf16 keep their bound in every regime", "[products]", KDA_PRODUCTS) {
  for (const regime& r : products_regimes<TestType>())
    for (const problem& p : r.problems) {
      const outcome<TestType> o = run_guarded<TestType>(p, core::prefill);
      const exact e = reference_of<TestType>(p);
      CAPTURE(r.name, p.g.T, p.g.K, p.g.V);
      CHECK(relative_error(o.out, e.out) <= r.bound);
      CHECK(relative_error(o.state, e.state) <= r.bound);
    }
}

TEMPLATE_TEST_CASE("cuts on the grid and blocking do not change a bit of products of bf16", "[products]",
                   KDA_PRODUCTS) {
  for (const index T : {1, 2, 7, 16, 17, 37, 48}) {
    const problem p = ordinary_problem<TestType>({T, 1, 2, 33, 40}, 304);
    const outcome<TestType> whole = run<TestType>(p, {core::prefill});
    CAPTURE(T);
    CHECK(same_bits(whole, run<TestType>(p, {core::prefill}, {}, kernels_of<TestType>(true))));
    if (T <= 16 || std::is_same_v<typename kda::types<TestType>::state, kda::bf16>)
      continue;  // bf16: rounded at each cut
    CHECK(same_bits(whole, run<TestType>(p, {core::prefill}, {16, T - 16})));
    if (T > 32) CHECK(same_bits(whole, run<TestType>(p, {core::prefill}, {32, T - 32})));
  }
}

TEMPLATE_TEST_CASE("with products of bf16 no output depends on a later token", "[products]", KDA_PRODUCTS) {
  const problem p = ordinary_problem<TestType>(odd, 305);
  const outcome<TestType> whole = run<TestType>(p, {core::prefill});
  for (index T = 1; T < odd.T; T += emulated() ? 5 : 1) {
    problem some = p;
    some.g.T = T;
    const auto cut = [&](std::vector<float>& x) { x.resize(x.size() / size(odd.T) * size(T)); };
    cut(some.q), cut(some.k), cut(some.v), cut(some.gate), cut(some.beta);
    auto first = whole.out;
    first.resize(size(T * odd.HV * odd.V));
    CAPTURE(T);
    CHECK(same_bits(run<TestType>(some, {core::prefill}).out, first));
  }
}

TEMPLATE_TEST_CASE("a NaN in one head's products of bf16 stays there", "[products]", KDA_PRODUCTS) {
  problem p = ordinary_problem<TestType>({21, 2, 2, 33, 40}, 306);
  for (index t = 0; t < p.g.T; ++t)
    for (index d = 0; d < p.g.V; ++d) p.v[size((t * 2 + 1) * p.g.V + d)] = std::numeric_limits<float>::quiet_NaN();
  const outcome<TestType> o = run_guarded<TestType>(p, core::prefill);
  for (index t = 0; t < p.g.T; ++t)
    for (index d = 0; d < 2 * p.g.V; ++d)
      REQUIRE(std::isnan(kda::to_float(o.out[size(t * 2 * p.g.V + d)])) == (d >= p.g.V));
}

TEST_CASE("with products of bf16, step equals its parts", "[products]") {
  using call = step_call<specs::glm_products>;
  const std::vector<sequence> batch{continued(1, 11, 0), {37, 12, 1, 2, true, 5}, fresh(19, 16, 6)};
  call fused{batch,
             {kda::mode::decode, kda::mode::prefill, kda::mode::prefill},
             call::states_of(9, 1),
             call::windows_of(9, 2)};
  call parts = fused;
  fused.run();
  call::run_parts(parts.args(), scratch(parts.sequences()));
  CHECK(same_bits(fused, parts));
}

TEST_CASE("states of bf16 have the same bits with AVX512-BF16 as with AVX-512", "[products]") {
  using spec = specs::gdn_bf16_value;
  const kda::table<spec>*a = kernels_on<spec>(kda::isa::avx512), *b = kernels_on<spec>(kda::isa::avx512_bf16);
  if (current_isa() < kda::isa::avx512_bf16 || a == nullptr || b == nullptr) {
    CHECK(current_isa() < kda::isa::avx512_bf16);  // there both are
    return;
  }
  for (const core c : {core::decode, core::prefill}) {
    problem p = ordinary_problem<spec>(odd, 307);
    p.state[0] = std::numeric_limits<float>::infinity(), p.state[1] = std::numeric_limits<float>::quiet_NaN();
    CHECK(same_bits(run<spec>(p, {c}, {}, *a), run<spec>(p, {c}, {}, *b)));
  }
}

}  // namespace testing
