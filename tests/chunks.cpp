// SPDX-License-Identifier: Apache-2.0
// Prefill cuts a sequence into chunks, an engine cuts it into calls: neither may show. Any number of tokens, any split
// into prefill and decode calls, any first position; bit for bit where the contract says so.
#include "support/guarded_run.hpp"
#include "support/kda_catch.hpp"

namespace testing {
namespace {

#define KDA_BOTH_DECAYS_AND_LAYOUTS \
  specs::kda_norm_key, specs::kda_norm_value, specs::gdn_norm_key, specs::gdn_norm_value

constexpr index C = kda::chunk_tokens;

/// Tokens [first, first + n) of a problem whose first token stands at `position` of its prompt, state in and out
/// through `pool` (the spec's layout). Tensors are all there; the call's offsets choose.
template <class Spec, class State>
void call(packed_tensors<Spec>& t, std::vector<State>& pool, core c, index first, index n, std::int64_t position,
          bool has_state = true) {
  const std::int64_t offsets[] = {first, first + n};
  const std::int32_t slot[] = {0};
  kda::delta_rule_args<Spec> a = t.args();
  a.sequences = {.offsets = kda::indices(offsets, 2),
                 .load_slots = kda::indices(slot, 1),
                 .store_slots = kda::indices(slot, 1),
                 .has_initial_state = kda::packed(&has_state, 1),
                 .first_position = kda::indices(&position, 1)};
  a.states = {.data = pool.data(), .slots = 1, .slot_stride = std::ssize(pool)};
  static scratch w(1);
  const kda::status s = call_of(kernels_of<Spec>(), c)(a, w, kda::serial);
  if (!s) throw std::runtime_error(std::string(s.argument) + " " + kda::message(s.what));
}

template <class Spec> using state_of = typename kda::detail::traits<Spec>::state::type;

template <class Spec> std::vector<state_of<Spec>> initial_pool(const problem& p) {
  return to_layout<Spec>(rounded_to<state_of<Spec>>(p.state), p.g);
}

/// The problem in prefill calls of these lengths, from `position` on.
template <class Spec>
outcome<Spec> run_from(std::int64_t position, const problem& p, const std::vector<index>& lengths) {
  packed_tensors<Spec> t(p);
  std::vector<state_of<Spec>> pool = initial_pool<Spec>(p);
  index first = 0;
  for (const index n : lengths) {
    call(t, pool, core::prefill, first, n, position + first);
    first += n;
  }
  return {t.out, from_layout<Spec>(pool, p.g)};
}

template <class Spec> double error_of(const outcome<Spec>& o, const exact& e) {
  return std::max(relative_error(o.out, e.out), relative_error(o.state, e.state));
}

// ---- numbers of tokens ----------------------------------------------------------------------------------------------

TEMPLATE_TEST_CASE("any number of tokens is right, whole chunks or not, and no token past the last is touched",
                   "[chunks]", KDA_BOTH_DECAYS_AND_LAYOUTS, specs::kda_mixed, specs::delta_key) {
  for (const index T : {1, 2, 3, 4, 5, 7, 15, 16, 17, 31, 32, 33, 47, 48, 49, 63, 64, 65, 127, 128, 129, 191, 193}) {
    if (emulated() && T > 65) continue;
    const problem p = ordinary_problem<TestType>({T, 1, 1, 20, 28}, 30);
    const exact e = reference_of<TestType>(p);
    for (const core c : {core::decode, core::prefill}) {
      CAPTURE(T, c == core::prefill);
      CHECK(error_of<TestType>(run_guarded<TestType>(p, c), e) <= ordinary_bound);
    }
  }
}

TEMPLATE_TEST_CASE("no tokens leave the state as it is, and make zeros of a fresh one", "[chunks]", specs::kda_norm_key,
                   specs::gdn_norm_value, specs::kda_bf16_value) {
  const problem p = ordinary_problem<TestType>({0, 1, 2, 20, 28}, 31);
  for (const core c : {core::decode, core::prefill}) {
    packed_tensors<TestType> t(p);
    const std::vector<state_of<TestType>> before = initial_pool<TestType>(p);
    std::vector<state_of<TestType>> pool = before;
    call(t, pool, c, 0, 0, 5);
    CHECK(same_bits(pool, before));
    call(t, pool, c, 0, 0, 0, false);
    CHECK(same_bits(pool, std::vector<state_of<TestType>>(pool.size())));
  }
}

// ---- splits ---------------------------------------------------------------------------------------------------------

TEMPLATE_TEST_CASE("every split of a few tokens into prefill and decode calls is right", "[chunks]",
                   KDA_BOTH_DECAYS_AND_LAYOUTS) {
  const index T = emulated() ? 4 : 6;
  const problem p = ordinary_problem<TestType>({T, 1, 1, 9, 7}, 32);
  const exact e = reference_of<TestType>(p);
  int runs = 0;
  double worst = 0;
  for (unsigned cuts = 0; cuts < 1u << (T - 1); ++cuts) {
    std::vector<index> lengths = {1};
    for (index t = 1; t < T; ++t) {
      if ((cuts >> (t - 1) & 1u) != 0)
        lengths.push_back(1);
      else
        ++lengths.back();
    }
    for (unsigned kinds = 0; kinds < 1u << lengths.size(); ++kinds) {
      std::vector<core> cores;
      for (std::size_t i = 0; i < lengths.size(); ++i)
        cores.push_back((kinds >> i & 1u) != 0 ? core::prefill : core::decode);
      worst = std::max(worst, error_of<TestType>(run<TestType>(p, cores, lengths), e));
      ++runs;
    }
  }
  CHECK(runs == (T == 6 ? 2 * 243 : 2 * 27));  // 2 * 3^(T - 1): no cut, or one before either kind of call
  CHECK(worst <= ordinary_bound);
}

TEMPLATE_TEST_CASE("every split of up to 40 tokens into two calls of either kind is right", "[chunks]",
                   KDA_BOTH_DECAYS_AND_LAYOUTS) {
  for (index T = 1; T <= 40; T += emulated() ? 13 : 1) {
    const problem p = ordinary_problem<TestType>({T, 1, 1, 12, 10}, 33);
    const exact e = reference_of<TestType>(p);
    for (index cut = 0; cut <= T; cut += emulated() ? 4 : 1)
      for (const core first : {core::decode, core::prefill})
        for (const core second : {core::decode, core::prefill}) {
          const double error = error_of<TestType>(run<TestType>(p, {first, second}, {cut, T - cut}), e);
          if (error <= ordinary_bound) continue;
          CAPTURE(T, cut, first == core::prefill, second == core::prefill);
          CHECK(error <= ordinary_bound);
        }
    CHECK(error_of<TestType>(run<TestType>(p, {core::prefill}, std::vector<index>(size(T), 1)), e) <= ordinary_bound);
  }
}

TEMPLATE_TEST_CASE("random splits of long sequences are right", "[chunks]", KDA_BOTH_DECAYS_AND_LAYOUTS) {
  random_numbers random(34);
  for (int round = 0; round < (emulated() ? 3 : 20); ++round) {
    const auto T = static_cast<index>(random.uniform(41, 300));
    const problem p = ordinary_problem<TestType>({T, 1, 1, 16, 16}, 35 + static_cast<std::uint64_t>(round));
    std::vector<index> lengths;
    std::vector<core> cores;
    for (index left = T; left > 0; left -= lengths.back()) {
      lengths.push_back(std::min(left, static_cast<index>(random.uniform(0, 80))));
      cores.push_back(random.uniform() < 0.5 ? core::decode : core::prefill);
    }
    CAPTURE(T, lengths);
    CHECK(error_of<TestType>(run<TestType>(p, cores, lengths), reference_of<TestType>(p)) <= ordinary_bound);
  }
}

TEMPLATE_TEST_CASE("1 to 9 segments from a random state are right, each head with a gate of its own", "[chunks]",
                   KDA_BOTH_DECAYS_AND_LAYOUTS) {
  // no forgetting in head 0, nearly all in head 1, between them in head 2
  problem p = ordinary_problem<TestType>({90, 1, 3, 16, 12}, 41);
  const std::size_t per_head = p.gate.size() / 90 / 3;
  for (std::size_t i = 0; i < p.gate.size(); ++i) {
    const std::size_t head = i / per_head % 3;
    p.gate[i] = head == 0 ? 0.f : head == 1 ? -10.f : p.gate[i];
  }
  const exact e = reference_of<TestType>(p);
  for (index segments = 1; segments <= 9; ++segments) {
    std::vector<index> lengths;
    for (index i = 0; i < segments; ++i) lengths.push_back(90 * (i + 1) / segments - 90 * i / segments);
    CAPTURE(segments);
    for (const core c : {core::prefill, core::decode})
      CHECK(error_of<TestType>(run<TestType>(p, {c}, lengths), e) <= ordinary_bound);
  }
}

TEMPLATE_TEST_CASE("the state after T tokens decodes token T + 1 as a prefill of T + 1 would", "[chunks]",
                   KDA_BOTH_DECAYS_AND_LAYOUTS) {
  for (const index T : {1, 15, 16, 17, 31, 47, 63, 64, 130}) {
    const problem p = ordinary_problem<TestType>({T + 1, 1, 1, 24, 16}, 36);
    const exact whole = {widened(run<TestType>(p, {core::prefill}).out),
                         widened(run<TestType>(p, {core::prefill}).state)};
    CAPTURE(T);
    CHECK(error_of<TestType>(run<TestType>(p, {core::prefill, core::decode}, {T, 1}), whole) <= ordinary_bound);
  }
}

// ---- bits -----------------------------------------------------------------------------------------------------------

TEMPLATE_TEST_CASE("a prompt cut at multiples of chunk_tokens gives the bits of one call", "[chunks]",
                   KDA_BOTH_DECAYS_AND_LAYOUTS, specs::delta_value, specs::kda_mixed) {
  constexpr index T = 5 * C + 9;
  const problem p = ordinary_problem<TestType>({T, 1, 2, 24, 20}, 37);
  for (const std::int64_t position :
       {std::int64_t{0}, std::int64_t{5}, std::int64_t{15}, (std::int64_t{1} << 40) + 7}) {
    const outcome<TestType> whole = run_from<TestType>(position, p, {T});
    const index to_grid = (C - static_cast<index>(position % C)) % C;  // tokens before the first multiple
    CAPTURE(position);
    for (index cut = to_grid; cut <= T; cut += C)
      CHECK(same_bits(run_from<TestType>(position, p, {cut, T - cut}), whole));
    std::vector<index> lengths = {to_grid};
    for (index left = T - to_grid; left > 0; left -= lengths.back()) lengths.push_back(std::min(left, C));
    CHECK(same_bits(run_from<TestType>(position, p, lengths), whole));
  }
}

TEST_CASE("first_position moves the chunk grid, and only its remainder counts", "[chunks]") {
  using spec = specs::kda_norm_key;
  const problem p = ordinary_problem<spec>({3 * C, 1, 1, 24, 20}, 38);
  const outcome<spec> at_0 = run_from<spec>(0, p, {3 * C}), at_5 = run_from<spec>(5, p, {3 * C});
  CHECK_FALSE(same_bits(at_0, at_5));
  CHECK(same_bits(run_from<spec>(C, p, {3 * C}), at_0));
  CHECK(same_bits(run_from<spec>((std::int64_t{1} << 50) + 5, p, {3 * C}), at_5));
  CHECK(error_of<spec>(at_5, reference_of<spec>(p)) <= ordinary_bound);
}

TEMPLATE_TEST_CASE("n tokens decoded in one call have the bits of n calls", "[chunks]", KDA_BOTH_DECAYS_AND_LAYOUTS,
                   specs::delta_key, specs::delta_value, specs::kda_bf16_key, specs::kda_bf16_value, specs::kda_bounded,
                   specs::gdn_softplus, specs::qwen) {
  for (const index n : {1, 2, 3, 4, 5, 8, 16, 17, 33}) {
    const problem p = ordinary_problem<TestType>({n, 1, 2, 24, 20}, 39);
    const outcome<TestType> one_call = run<TestType>(p, {core::decode});
    CAPTURE(n);
    CHECK(same_bits(run<TestType>(p, {core::decode}, std::vector<index>(size(n), 1)), one_call));
    CHECK(same_bits(run<TestType>(p, {core::decode}, {n / 2, n - n / 2}), one_call));
  }
}

TEMPLATE_TEST_CASE("outputs and states do not depend on what follows, nor on how much follows", "[chunks]",
                   KDA_BOTH_DECAYS_AND_LAYOUTS, specs::delta_key, specs::kda_bounded, specs::gdn_softplus) {
  constexpr index T = 2 * C + 7;
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  const problem p = ordinary_problem<TestType>({T, 1, 2, 20, 12}, 40);
  const index row = p.g.HV * p.g.V;
  for (const core c : {core::decode, core::prefill}) {
    const outcome<TestType> whole = run<TestType>(p, {c});
    for (index cut = 1; cut < T; cut += emulated() ? 5 : 1) {
      // tokens from the cut on hold `number`; the call ends at the cut or goes on to the last of them
      const auto state_after = [&](float number, float beta, index tokens) {
        packed_tensors<TestType> t(p);
        const auto follow = [&](auto& x, index per_token, float value) {
          std::fill(x.begin() + cut * per_token, x.end(), value);
        };
        follow(t.q, p.g.H * p.g.K, number), follow(t.k, p.g.H * p.g.K, number), follow(t.v, row, number);
        follow(t.gate, gates<TestType>(p.g), number), follow(t.beta, p.g.HV, beta);
        auto state = initial_pool<TestType>(p);
        call(t, state, c, 0, tokens, 0);
        CHECK(std::equal(t.out.begin(), t.out.begin() + cut * row, whole.out.begin(), [](float x, float y) {
          return __builtin_bit_cast(std::uint32_t, x) == __builtin_bit_cast(std::uint32_t, y);
        }));
        if (tokens == cut) CHECK(std::all_of(t.out.begin() + cut * row, t.out.end(), [](float x) { return x == 0; }));
        return state;
      };
      CAPTURE(cut, c == core::prefill);
      CHECK(same_bits(state_after(nan, nan, cut), state_after(-7.5f, 1, cut)));
      state_after(-7.5f, 1, T);
      state_after(nan, nan, T);
    }
  }
}

}  // namespace
}  // namespace testing
