// SPDX-License-Identifier: Apache-2.0
// More value heads than q/k heads: which q/k head serves which value head, and that heads know nothing of each other.
#include "support/batches.hpp"
#include "support/kda_catch.hpp"

namespace testing {
namespace {

/// x [T, heads, width] with head `from(h)` of it as head h of the result, h < count.
template <class From>
std::vector<float> pick_heads(const std::vector<float>& x, index tokens, index heads, index width, index count,
                              From from) {
  std::vector<float> y;
  for (index t = 0; t < tokens; ++t)
    for (index h = 0; h < count; ++h) {
      const auto row = x.begin() + (t * heads + from(h)) * width;
      y.insert(y.end(), row, row + width);
    }
  return y;
}

/// The problem with value head `from(h)` as its value head h, h < count, and q/k head `key(h)` as q/k head h, h <
/// key_count.
template <class Spec, class From, class Key>
problem pick(const problem& p, index count, From from, index key_count, Key key) {
  const geometry& g = p.g;
  problem r = p;
  r.g.H = key_count;
  r.g.HV = count;
  r.q = pick_heads(p.q, g.T, g.H, g.K, key_count, key);
  r.k = pick_heads(p.k, g.T, g.H, g.K, key_count, key);
  r.v = pick_heads(p.v, g.T, g.HV, g.V, count, from);
  r.gate = pick_heads(p.gate, g.T, g.HV, gates<Spec>(g) / g.HV, count, from);
  r.beta = pick_heads(p.beta, g.T, g.HV, 1, count, from);
  r.state = pick_heads(p.state, 1, g.HV, g.K * g.V, count, from);
  if (!p.a_log.empty()) r.a_log = pick_heads(p.a_log, 1, g.HV, 1, count, from);
  if (!p.dt_bias.empty()) r.dt_bias = pick_heads(p.dt_bias, 1, g.HV, gates<Spec>(g) / g.HV, count, from);
  return r;
}

template <class Spec> index key_head_of(index hv, const geometry& g) {
  return std::is_same_v<typename kda::detail::traits<Spec>::head_map, kda::head_map::tiled> ? hv % g.H
                                                                                            : hv / (g.HV / g.H);
}

const geometry shapes[] = {{19, 2, 6, 12, 20}, {19, 1, 8, 12, 20}, {5, 16, 48, 8, 8}, {19, 3, 3, 12, 20}};

#define KDA_MAPPED_SPECS specs::kda_given_key, specs::kda_tiled, specs::gdn_given_value, specs::gdn_tiled

TEMPLATE_TEST_CASE("any number of value heads a q/k head is right", "[heads]", KDA_MAPPED_SPECS) {
  for (const geometry& g : shapes) {
    const problem p = ordinary_problem<TestType>(g, 60);
    const exact e = reference_of<TestType>(p);
    for (const core c : {core::decode, core::prefill}) {
      CAPTURE(g.H, g.HV, c == core::prefill);
      CHECK(errors_of<TestType>(p, c, e).worst() <= ordinary_bound);
    }
  }
}

TEMPLATE_TEST_CASE("shared q/k heads give the bits of q/k heads repeated by the map", "[heads]", KDA_MAPPED_SPECS) {
  for (const geometry& g : shapes) {
    const problem p = ordinary_problem<TestType>(g, 61);
    const auto same = [](index h) { return h; };
    const problem repeated = pick<TestType>(p, g.HV, same, g.HV, [&](index h) { return key_head_of<TestType>(h, g); });
    for (const core c : {core::decode, core::prefill}) {
      CAPTURE(g.H, g.HV, c == core::prefill);
      CHECK(same_bits(run<TestType>(p, {c}), run<TestType>(repeated, {c})));
    }
  }
}

// hv = r H + h, tiled, is the same pair of heads as hv = h R + r, interleaved.
template <class Interleaved, class Tiled> void hold_permutation() {
  for (const geometry& g : shapes) {
    const problem p = ordinary_problem<Interleaved>(g, 62);
    const index R = g.HV / g.H;
    const auto same = [](index h) { return h; };
    const auto to_tiled = [&](index hv) { return hv % g.H * R + hv / g.H; };
    const problem permuted = pick<Interleaved>(p, g.HV, to_tiled, g.H, same);
    for (const core c : {core::decode, core::prefill}) {
      const outcome<Interleaved> a = run<Interleaved>(p, {c});
      const outcome<Tiled> b = run<Tiled>(permuted, {c});
      CAPTURE(g.H, g.HV, c == core::prefill);
      CHECK(same_bits(pick_heads(a.out, g.T, g.HV, g.V, g.HV, to_tiled), b.out));
      CHECK(same_bits(pick_heads(a.state, 1, g.HV, g.K * g.V, g.HV, to_tiled), b.state));
      if (g.H > 1 && R > 1) CHECK_FALSE(same_bits(run<Tiled>(p, {c}).out, a.out));
    }
  }
}

TEST_CASE("permuting the value heads turns one head map into the other", "[heads]") {
  hold_permutation<specs::kda_given_key, specs::kda_tiled>();
  hold_permutation<specs::gdn_given_value, specs::gdn_tiled>();
}

TEMPLATE_TEST_CASE("a head among many has the bits it has alone", "[heads]", KDA_MAPPED_SPECS, specs::kda_norm_value,
                   specs::kda_bounded, specs::kda_softplus, specs::gdn_softplus, specs::gdn_bounded) {
  for (const geometry& g : {geometry{19, 2, 6, 12, 20}, geometry{4, 7, 21, 20, 12}}) {
    const problem p = ordinary_problem<TestType>(g, 63);
    for (const core c : {core::decode, core::prefill}) {
      const outcome<TestType> all = run<TestType>(p, {c});
      for (index hv = 0; hv < g.HV; ++hv) {
        const auto this_head = [&](index) { return hv; };
        const problem alone = pick<TestType>(p, 1, this_head, 1, [&](index) { return key_head_of<TestType>(hv, g); });
        const outcome<TestType> one = run<TestType>(alone, {c});
        CAPTURE(hv, c == core::prefill);
        CHECK(same_bits(one.out, pick_heads(all.out, g.T, g.HV, g.V, 1, this_head)));
        CHECK(same_bits(one.state, pick_heads(all.state, 1, g.HV, g.K * g.V, 1, this_head)));
      }
    }
  }
}

TEMPLATE_TEST_CASE("a NaN stays in its own head", "[heads]", specs::kda_norm_key, specs::kda_bounded,
                   specs::kda_softplus, specs::gdn_norm_value, specs::gdn_softplus, specs::gdn_bounded) {
  const geometry g{19, 3, 6, 12, 20};
  const problem clean = ordinary_problem<TestType>(g, 64);
  constexpr float nan = std::numeric_limits<float>::quiet_NaN();
  constexpr index poisoned = 2, token = 3;  // value head 2 and its neighbour 3 share q/k head 1
  for (const char* tensor : {"v", "gate", "beta", "state", "a_log", "dt_bias", "k"}) {
    problem p = clean;
    const std::string name = tensor;
    const index width = gates<TestType>(g) / g.HV;
    index last = poisoned;
    if (name == "v") p.v[size((token * g.HV + poisoned) * g.V + 1)] = nan;
    if (name == "gate") p.gate[size((token * g.HV + poisoned) * width)] = nan;
    if (name == "beta") p.beta[size(token * g.HV + poisoned)] = nan;
    if (name == "state") p.state[size(poisoned * g.K * g.V)] = nan;
    if (name == "a_log" && !p.a_log.empty()) p.a_log[size(poisoned)] = nan;
    if (name == "dt_bias" && !p.dt_bias.empty()) p.dt_bias[size(poisoned * width)] = nan;
    if (name == "k") p.k[size((token * g.H + poisoned / 2) * g.K)] = nan, last = poisoned + 1;
    const bool has = has_law<TestType> || (name != "a_log" && name != "dt_bias");
    for (const core c : {core::decode, core::prefill}) {
      const outcome<TestType> a = run<TestType>(clean, {c}), b = run<TestType>(p, {c});
      for (index hv = 0; hv < g.HV; ++hv) {
        const auto this_head = [&](index) { return hv; };
        const auto got = pick_heads(b.out, g.T, g.HV, g.V, 1, this_head);
        const auto want = pick_heads(a.out, g.T, g.HV, g.V, 1, this_head);
        CAPTURE(name, hv, c == core::prefill);
        if (has && hv >= poisoned && hv <= last)
          CHECK(std::any_of(got.begin(), got.end(), [](float x) { return std::isnan(x); }));
        else
          CHECK(same_bits(got, want));
      }
    }
  }
}

TEMPLATE_TEST_CASE("calls over head ranges are slices of the whole call, and touch nothing of other heads", "[heads]",
                   decode_call<specs::kda_given_key>, prefill_call<specs::kda_given_key>, decode_call<specs::kda_tiled>,
                   prefill_call<specs::kda_tiled>, decode_call<specs::kda_bounded>, prefill_call<specs::kda_bounded>,
                   decode_call<specs::gdn_softplus>, prefill_call<specs::gdn_softplus>,
                   decode_call<specs::kda_bf16_value>, prefill_call<specs::kda_bf16_value>, decode_call<specs::qwen>,
                   prefill_call<specs::qwen>) {
  // an odd number of heads, cut unevenly and within a group
  const geometry g{.T = 0, .H = 3, .HV = 21, .K = 9, .V = 11};
  const std::vector<sequence> batch{{18, 1, 0, 1, true, 3}, fresh(2, 2, 2), continued(1, 3, -1), continued(1, 4, 3)};
  const auto before = TestType::pool_of(4, 5, g);
  TestType whole(batch, before, g), parts(batch, before, g);
  whole.run();
  const auto rows_of = [&](auto& tensor, index head, const auto& f) {  // of [T, HV, ...]
    const std::size_t row = tensor.size() / size(22 * g.HV);
    for (index token = 0; token < 22; ++token) f(tensor, size(token * g.HV + head) * row, row);
  };
  index done = 0;
  for (const auto& [first, count] : {std::pair<index, index>{0, 5}, {5, 1}, {6, 0}}) {
    const index end = count == 0 ? g.HV : first + count;
    TestType part(batch, parts.states, g);
    part.out = parts.out;
    for (index h = 0; h < g.HV; ++h)
      if (h < first || h >= end)
        for_each_tensor(part, [&](auto& tensor) {
          if (&tensor != static_cast<const void*>(&part.tensors.q) &&
              &tensor != static_cast<const void*>(&part.tensors.k))
            rows_of(tensor, h, [](auto& x, std::size_t at, std::size_t n) { put_nan(x, at, n); });
        });
    auto args = part.args();
    args.heads = {.first = first, .count = count};
    REQUIRE(TestType::function()(args, scratch(4), kda::serial));
    done = end;
    auto want = whole.out;
    for (index h = done; h < g.HV; ++h)
      rows_of(want, h, [](auto& x, std::size_t at, std::size_t n) {
        std::memset(static_cast<void*>(&x[at]), canary_bytes, n * sizeof(x[0]));
      });
    auto states = whole.states;
    for (const std::int64_t slot : {1, 2, 3}) {
      auto of_slot = whole.states.slot(slot);
      const auto old = before.slot(slot);
      std::copy(old.begin() + done * g.K * g.V, old.end(), of_slot.begin() + done * g.K * g.V);
      states.set_slot(slot, of_slot);
    }
    CAPTURE(first, count);
    CHECK(same_bits(part.out, want));
    CHECK(same_bits(part.states.cells, states.cells));
    parts.out = part.out;
    parts.states = part.states;
  }
}

}  // namespace
}  // namespace testing
