// SPDX-License-Identifier: Apache-2.0
// The type between the stages: with intermediate<float> conv writes floats, the delta rule reads and writes them, norm
// reads them, while projections, convolution states and the norm's output stay bf16. Numbers that bf16 holds give the
// bits of a spec without; others must not be rounded on their way.
#include "support/batches.hpp"
#include "support/kda_catch.hpp"
#include "support/numbers.hpp"

namespace testing {
namespace {

template <class Spec, class Same> struct pair {
  using with = Spec;     // float between the stages
  using without = Same;  // bf16, and otherwise the same
};
#define KDA_PAIRS (pair<specs::glm_float_stages, specs::glm>), (pair<specs::qwen_float_stages, specs::qwen>)

template <class Spec>
constexpr bool has_float_stages = std::is_same_v<typename kda::types<Spec>::stage_qkv, float>&& std::is_same_v<
    typename kda::types<Spec>::stage_out, float>&& std::is_same_v<typename kda::types<Spec>::qkv, kda::bf16>&&
    std::is_same_v<typename kda::types<Spec>::out, kda::bf16>;
static_assert(has_float_stages<specs::glm_float_stages> && has_float_stages<specs::qwen_float_stages>);
static_assert(std::is_same_v<kda::types<specs::glm>::stage_qkv, kda::bf16>);

std::vector<float> as_floats(const std::vector<kda::bf16>& x) {
  std::vector<float> y;
  for (const kda::bf16 e : x) y.push_back(kda::to_float(e));
  return y;
}
bool any_not_bf16(const std::vector<float>& x) { return !same_bits(as_floats(rounded_to<kda::bf16>(x)), x); }

}  // namespace

TEMPLATE_TEST_CASE("the convolution writes the intermediate type and keeps its states as they were", "[intermediate]",
                   KDA_PAIRS) {
  const std::vector<sequence> batch{continued(7, 1, 0), fresh(2, 2, 1), {1, 3, 3, 2, true}};
  using with = conv_call<typename TestType::with>;
  using without = conv_call<typename TestType::without>;
  const auto before = with::pool_of(4, 1);
  with x(batch, before);
  without y(batch, before);
  x.run(), y.run();
  CHECK(any_not_bf16(x.out));
  CHECK(same_bits(rounded_to<kda::bf16>(x.out), y.out));
  CHECK(same_bits(x.states.cells, y.states.cells));
}

TEMPLATE_TEST_CASE("the delta rule reads and writes the intermediate type", "[intermediate]", KDA_PAIRS) {
  using with = typename TestType::with;
  using without = typename TestType::without;
  for (const core c : {core::decode, core::prefill}) {
    // bf16 numbers: the same bits until the last rounding
    problem p = ordinary_problem<with>({emulated() ? 18 : 37, 1, 2, 128, 128}, 2);
    for (auto* x : {&p.q, &p.k, &p.v}) *x = as_floats(rounded_to<kda::bf16>(*x));
    const outcome<with> o = run<with>(p, {c});
    const outcome<without> rounded = run<without>(p, {c});
    CHECK(any_not_bf16(o.out));
    CHECK(same_bits(rounded_to<kda::bf16>(o.out), rounded.out));
    CHECK(same_bits(o.state, rounded.state));
    // floats: nothing is rounded on its way in or out
    const problem fine = ordinary_problem<with>({37, 2, 4, 24, 40}, 3);
    CHECK(errors_of<with>(fine, c).worst() <= ordinary_bound);
  }
}

TEMPLATE_TEST_CASE("the norm of q and k reads the intermediate type", "[intermediate]", KDA_PAIRS) {
  using spec = typename TestType::with;
  const index T = 5, H = 2, K = 20;
  const std::vector<float> x = random_numbers(4).normals(T * H * K);
  std::vector<float> y(x.size());
  scratch w(0);
  REQUIRE(kernels_of<spec>().l2norm(
      {.x = kda::packed(x.data(), T, H, K), .eps = 1e-6f, .scale = 0.5f, .y = kda::packed(y.data(), T, H, K)}, w,
      kda::serial));
  CHECK(relative_error(y, kda::reference::l2norm_rows(widened(x), T * H, K, 1e-6, 0.5)) <= 3e-7);
}

TEMPLATE_TEST_CASE("the gated norm reads the intermediate type and writes the output's", "[intermediate]", KDA_PAIRS) {
  using with = typename TestType::with;
  using without = typename TestType::without;
  const index T = 6, HV = 3, V = 37;
  random_numbers r(5);
  const std::vector<float> fine = r.normals(T * HV * V), weight = r.normals(V);
  const auto gate = rounded_to<kda::bf16>(r.normals(T * HV * V));
  const auto coarse = rounded_to<kda::bf16>(fine);
  scratch w(0);
  const auto norm_of = [&]<class Spec, class X>(const std::vector<X>& x) {
    std::vector<kda::bf16> y(x.size());
    REQUIRE(kernels_of<Spec>().norm({.x = kda::packed(x.data(), T, HV, V),
                                     .gate = kda::packed(gate.data(), T, HV, V),
                                     .weight = kda::packed(weight.data(), V),
                                     .eps = 1e-5f,
                                     .y = kda::packed(y.data(), T, HV, V)},
                                    w, kda::serial));
    return y;
  };
  const auto want = norm_of.template operator()<without>(coarse);
  CHECK(same_bits(norm_of.template operator()<with>(as_floats(coarse)), want));
  const auto got = norm_of.template operator()<with>(fine);
  CHECK_FALSE(same_bits(got, want));
  if constexpr (kda::detail::traits<with>::norm::order == kda::weight::before_cast)
    CHECK(disagreements(got,
                        kda::reference::rms_norm_gated(widened(fine), widened(gate), widened(weight), T * HV, V, 1e-5,
                                                       kda::reference::activation_kind::sigmoid),
                        6e-7) == 0);
}

}  // namespace testing
