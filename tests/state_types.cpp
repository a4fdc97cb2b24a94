// SPDX-License-Identifier: Apache-2.0
// What is rounded to 16 bits, and what never is: tensors and stored states may be; gate, beta, decay and all arithmetic
// are fp32.
#include "support/kda_catch.hpp"
#include "support/numbers.hpp"
#include "support/regimes.hpp"

#include <algorithm>

namespace testing {
namespace {

static_assert(std::is_same_v<decltype(kda::delta_rule_args<specs::kda_mixed>::states), kda::state_pool<float>>);
static_assert(std::is_same_v<decltype(kda::delta_rule_args<specs::glm>::states), kda::state_pool<float>>);
static_assert(std::is_same_v<decltype(kda::delta_rule_args<specs::kda_f16>::states), kda::state_pool<float>>);
static_assert(std::is_same_v<decltype(kda::delta_rule_args<specs::kda_bf16_key>::states), kda::state_pool<kda::bf16>>);

// ---- fp32 states ----------------------------------------------------------------------------------------------------

TEST_CASE("with bf16 tensors an fp32 state stays fp32 over 2048 decoded tokens", "[state]") {
  using spec = specs::kda_mixed;
  const problem p = ordinary_problem<spec>({sized(2048, 256), 1, 2, 32, 24}, 70);
  const exact e = reference_of<spec>(p);
  CHECK(errors_of<spec>(p, core::decode, e).worst() <= hard_bound);
  CHECK(errors_of<spec>(p, core::prefill, e).worst() <= hard_bound);
  // the same through a bf16 state is far outside: the test would see one
  CHECK(errors_of<specs::kda_bf16_value>(p, core::decode).state > 100 * hard_bound);
}

TEMPLATE_TEST_CASE("outputs of 16 bits are rounded once, from fp32, and states not at all", "[state]", specs::glm,
                   specs::qwen, specs::kda_f16, specs::gdn_f16_stages) {
  const problem p = ordinary_problem<TestType>({sized(70, 18), 1, 1, 128, 128}, 71);
  const exact e = reference_of<TestType>(p);
  for (const core c : {core::decode, core::prefill}) {
    const outcome<TestType> o = run<TestType>(p, {c});
    CAPTURE(c == core::prefill);
    CHECK(disagreements(o.out, e.out, ordinary_bound) == 0);
    CHECK(relative_error(o.state, e.state) <= ordinary_bound);
  }
}

// alpha near 0.99992 and beta near 0 from bf16 logits: rounded themselves, they would be 1 and coarse steps.
TEST_CASE("decay and beta made from bf16 logits are not rounded to bf16", "[state]") {
  using spec = specs::qwen;
  problem p = ordinary_problem<spec>({4096, 1, 1, 16, 24}, 72);
  p.a_log = {0.f};
  p.dt_bias = {0.f};
  std::fill(p.gate.begin(), p.gate.end(), -9.4375f);  // softplus: 8e-5
  std::fill(p.beta.begin(), p.beta.end(), -9.f);      // sigmoid: 1.2e-4
  const exact e = reference_of<spec>(p);
  for (const core c : {core::decode, core::prefill}) {
    const outcome<spec> o = run<spec>(p, {c});
    CAPTURE(c == core::prefill);
    CHECK(relative_error(o.state, e.state) <= hard_bound);
    CHECK(disagreements(o.out, e.out, hard_bound) == 0);
  }
}

// ---- bf16 states ----------------------------------------------------------------------------------------------------

// The same problem with fp32 states: specs that differ in nothing else.
template <class Spec>
using with_fp32_state =
    std::conditional_t<std::is_same_v<Spec, specs::kda_bf16_key>, specs::kda_norm_key, specs::kda_norm_value>;

problem with_rounded_state(problem p) {
  for (float& s : p.state) s = kda::to_float(kda::to_bf16(s));
  return p;
}

TEMPLATE_TEST_CASE("prefill rounds a bf16 state once, at the end of the call", "[state]", specs::kda_bf16_key,
                   specs::kda_bf16_value) {
  const problem p = with_rounded_state(ordinary_problem<TestType>({45, 1, 2, 20, 28}, 73));
  const outcome<TestType> narrow = run<TestType>(p, {core::prefill});
  const auto wide = run<with_fp32_state<TestType>>(p, {core::prefill});
  CHECK(same_bits(narrow.out, wide.out));
  CHECK(same_bits(narrow.state, rounded_to<kda::bf16>(wide.state)));
}

TEMPLATE_TEST_CASE("decode computes in fp32 and rounds a bf16 state after each token", "[state]", specs::kda_bf16_key,
                   specs::kda_bf16_value) {
  constexpr index T = 20;
  const problem p = with_rounded_state(ordinary_problem<TestType>({T, 1, 2, 20, 28}, 74));
  problem token = p;
  token.g.T = 1;
  const auto slice = [](const std::vector<float>& x, index t) {
    const index width = std::ssize(x) / T;
    return std::vector<float>(x.begin() + t * width, x.begin() + (t + 1) * width);
  };
  outcome<TestType> all;
  for (index t = 0; t < T; ++t) {
    token.q = slice(p.q, t), token.k = slice(p.k, t), token.v = slice(p.v, t);
    token.gate = slice(p.gate, t), token.beta = slice(p.beta, t);
    const exact e = reference_of<TestType>(token);
    const outcome<TestType> o = run<TestType>(token, {core::decode});
    CAPTURE(t);
    CHECK(disagreements(o.out, e.out, ordinary_bound) == 0);
    CHECK(disagreements(o.state, e.state, ordinary_bound) == 0);
    all.out.insert(all.out.end(), o.out.begin(), o.out.end());
    all.state = o.state;
    std::transform(o.state.begin(), o.state.end(), token.state.begin(), [](kda::bf16 s) { return kda::to_float(s); });
  }
  const outcome<TestType> run_of_all = run<TestType>(p, {core::decode});
  CHECK(same_bits(run_of_all.out, all.out));
  CHECK(same_bits(run_of_all.state, all.state));
}

// The bound of docs/numerics.md: outputs of prefill as with fp32 states, states 2^-8; in decode 2^-5 while every
// channel forgets at least 1 % a token, whatever T.
TEMPLATE_TEST_CASE("a bf16 state keeps its own bound", "[state]", specs::kda_bf16_key, specs::kda_bf16_value) {
  for (const double g : {-2., -0.5, -0.1, -0.01})
    for (const index T : {index{64}, sized(2048, 128)}) {
      const problem p = with_decay<TestType>(ordinary_problem<TestType>({T, 1, 1, 16, 24}, 75),
                                             [=](index, index, index) { return g; });
      const exact e = reference_of<TestType>(p);
      const errors prefill = errors_of<TestType>(p, core::prefill, e), decode = errors_of<TestType>(p, core::decode, e);
      CAPTURE(g, T, prefill.out, prefill.state, decode.out, decode.state);
      CHECK(prefill.out <= ordinary_bound);
      CHECK(prefill.state <= 0x1p-8 + ordinary_bound);
      CHECK(decode.worst() <= 0x1p-5);
      // closer than bf16 can be would mean that the state is not bf16
      CHECK(prefill.state > 0x1p-11);
      CHECK(decode.out > 0x1p-16);
    }
}

}  // namespace
}  // namespace testing
