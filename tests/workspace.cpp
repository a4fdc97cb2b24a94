// SPDX-License-Identifier: Apache-2.0
// Nothing of a workspace is read before it is written: whatever it holds, wherever it lies, the bits are the same.
#include "support/delta_rule.hpp"
#include "support/guarded.hpp"
#include "support/kda_catch.hpp"

namespace testing {
namespace {

/// Memory of exactly the bytes a call asks for, before an inaccessible page, filled with floats.
struct filled_memory {
  guarded<unsigned char> bytes;
  filled_memory(index n, std::size_t misaligned, const std::vector<float>& fill) : bytes(size(n), misaligned) {
    const std::size_t step = fill.size() * sizeof(float);
    for (std::size_t i = 0; i < bytes.size(); i += step)
      std::memcpy(bytes.data() + i, fill.data(), std::min(step, bytes.size() - i));
  }
  operator kda::workspace() const { return {.data = bytes.data(), .bytes = static_cast<index>(bytes.size())}; }
};

const std::vector<float> nans(256, std::numeric_limits<float>::quiet_NaN()), zeros(256),
    huge(256, 1e38f), numbers = random_numbers(110).normals(1023);

/// Two sequences of the problem's tokens, cut in the middle, one of them fresh; results are tensors and pool.
template <class Spec> outcome<Spec> run_in(const problem& p, core c, bool fresh_first, const kda::workspace& w) {
  using state_type = typename kda::detail::traits<Spec>::state::type;
  packed_tensors<Spec> t(p);
  const geometry& g = p.g;
  std::vector<state_type> pool = to_layout<Spec>(rounded_to<state_type>(p.state), g);
  pool.insert(pool.end(), pool.begin(), pool.end());
  const std::int32_t offsets[] = {0, static_cast<std::int32_t>(g.T / 2), static_cast<std::int32_t>(g.T)};
  const std::int32_t slots[] = {1, 0};
  const bool has[] = {!fresh_first, fresh_first};
  kda::delta_rule_args<Spec> a = t.args();
  a.sequences = {.offsets = kda::indices(offsets, 3),
                 .load_slots = kda::indices(slots, 2),
                 .store_slots = kda::indices(slots, 2),
                 .has_initial_state = kda::packed(has, 2)};
  a.states = {.data = pool.data(), .slots = 2, .slot_stride = g.HV * g.K * g.V};
  const kda::status s = call_of(kernels_of<Spec>(), c)(a, w, kda::serial);
  if (!s) throw std::runtime_error(std::string(s.argument) + " " + kda::message(s.what));
  return {t.out, pool};
}

TEMPLATE_TEST_CASE("prefill and decode do not depend on what their workspace holds or where it lies", "[workspace]",
                   specs::kda_given_key, specs::kda_given_value, specs::kda_norm_key, specs::gdn_given_key,
                   specs::gdn_norm_value, specs::delta_key, specs::delta_value, specs::kda_tiled, specs::kda_bf16_key,
                   specs::kda_bf16_value, specs::kda_bounded, specs::kda_softplus, specs::gdn_softplus,
                   specs::gdn_bounded, specs::qwen, specs::kda_mixed) {
  const index bytes = kda::workspace_bytes({.sequences = 2});
  for (const geometry& g :
       {geometry{emulated() ? 17 : 39, 1, 2, 20, 29}, geometry{4, 1, 1, 1, 1}, geometry{18, 1, 1, 33, 270}}) {
    if (emulated() && g.T == 18) continue;
    const problem p = ordinary_problem<TestType>(g, 111);
    for (const core c : {core::decode, core::prefill})
      for (const bool fresh_first : {true, false}) {  // whichever comes first finds the fill
        const auto run_again = [&](const kda::workspace& w) { return run_in<TestType>(p, c, fresh_first, w); };
        const filled_memory first(bytes, 0, nans);
        const outcome<TestType> want = run_again(first);
        CAPTURE(g.T, g.K, g.V, c == core::prefill, fresh_first);
        CHECK(same_bits(run_again(first), want));  // in what the first call left
        for (const auto* fill : {&zeros, &huge, &numbers})
          CHECK(same_bits(run_again(filled_memory(bytes, 0, *fill)), want));
        for (const std::size_t misaligned : {1u, 4u, 31u, 63u}) {
          if (emulated() && misaligned != 31) continue;
          CHECK(same_bits(run_again(filled_memory(bytes, misaligned, nans)), want));
        }
        CHECK(std::all_of(want.out.begin(), want.out.end(), [](auto x) { return std::isfinite(kda::to_float(x)); }));
      }
  }
}

TEST_CASE("gate, beta and l2norm do not depend on what their workspace holds", "[workspace]") {
  using spec = specs::kda_bounded;
  const problem p = ordinary_problem<spec>({37, 2, 4, 21, 12}, 112);
  const geometry& g = p.g;
  const packed_tensors<spec> t(p);
  const auto all_of = [&](const std::vector<float>& fill) {
    const filled_memory w(kda::workspace_bytes({}), 0, fill);
    std::vector<float> decay(p.gate.size()), beta(p.beta.size()), q(p.q.size());
    REQUIRE(kernels_of<spec>().gate({.x = kda::packed(t.gate.data(), g.T, g.HV, g.K),
                                     .gate_params = t.params(),
                                     .g = kda::packed(decay.data(), g.T, g.HV, g.K)},
                                    w, kda::serial));
    REQUIRE(kernels_of<spec>().beta(
        {.b = kda::packed(t.beta.data(), g.T, g.HV), .beta = kda::packed(beta.data(), g.T, g.HV)}, w, kda::serial));
    REQUIRE(kernels_of<spec>().l2norm({.x = kda::packed(t.q.data(), g.T, g.H, g.K),
                                       .eps = 1e-6f,
                                       .scale = 1.f,
                                       .y = kda::packed(q.data(), g.T, g.H, g.K)},
                                      w, kda::serial));
    decay.insert(decay.end(), beta.begin(), beta.end());
    decay.insert(decay.end(), q.begin(), q.end());
    return decay;
  };
  const std::vector<float> want = all_of(nans);
  CHECK(std::all_of(want.begin(), want.end(), [](float x) { return std::isfinite(x) && x != 0; }));
  for (const auto* fill : {&zeros, &huge, &numbers}) CHECK(same_bits(all_of(*fill), want));
}

TEST_CASE("a workspace need not grow with tokens, heads or widths, and one byte less is refused", "[workspace]") {
  using spec = specs::kda_norm_key;
  const index bytes = kda::workspace_bytes({.sequences = 2});
  const problem small = ordinary_problem<spec>({2, 1, 1, 1, 1}, 113),
                large = ordinary_problem<spec>({emulated() ? 3 : 18, 1, 2, 256, 300}, 114);
  for (const core c : {core::decode, core::prefill}) {
    for (const problem* p : {&small, &large}) {
      CHECK_NOTHROW(run_in<spec>(*p, c, true, filled_memory(bytes, 0, nans)));
      CHECK_THROWS_WITH(run_in<spec>(*p, c, true, filled_memory(bytes - 1, 0, nans)),
                        std::string("workspace ") + kda::message(kda::error::workspace_too_small));
    }
  }
}

}  // namespace
}  // namespace testing
