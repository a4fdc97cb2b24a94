// SPDX-License-Identifier: Apache-2.0
// The ratios of the engine contract. What is compared is measured in turns, so that a busy moment hits both; a turn is a
// few calls, so that all but the first find the caches as a call of their own kind leaves them.
#include "suite.hpp"

#include <array>

namespace bench {

namespace {

/// Shortest calls of each function, which run on `threads` threads, in seconds, measured in turns.
template <class... F> std::array<double, sizeof...(F)> in_turns(double seconds, index threads, const F&... f) {
  std::array<double, sizeof...(F)> best{};
  best.fill(HUGE_VAL);
  const double start = now();
  for (int n = 0; n < 3 || now() - start < seconds; ++n) {
    std::size_t i = 0;
    const auto time = [&](const auto& g) {
      for (int call = 0; call < 3; ++call) {
        const double begin = now_for(threads);
        g();
        best[i] = std::min(best[i], now_for(threads) - begin);
      }
      ++i;
    };
    (time(f), ...);
  }
  return best;
}

std::vector<index> equal(index n, index tokens) { return std::vector<index>(static_cast<std::size_t>(n), tokens); }
std::vector<kda::mode> equal(index n, kda::mode m) { return std::vector<kda::mode>(static_cast<std::size_t>(n), m); }

template <class Spec> class comparison {
 public:
  comparison(machine& m, const kda::table<Spec>& table, const geometry& g, double seconds, std::vector<ratio>& to)
      : machine_(m), table_(table), g_(g), seconds_(seconds), to_(to), most_(m.teams().back().threads) {}

  void mixed_batch(index decodes, index tokens) {
    std::vector<index> lengths = equal(decodes, index{1});
    std::vector<kda::mode> modes = equal(decodes, kda::mode::decode);
    step_work<Spec> some(table_, modes, g_, lengths, most_);
    lengths.push_back(tokens), modes.push_back(kda::mode::prefill);
    step_work<Spec> mixed(table_, modes, g_, lengths, most_);
    step_work<Spec> one(table_, {kda::mode::prefill}, g_, {tokens}, most_);
    for (const team& t : machine_.teams()) {
      const auto [together, apart_a, apart_b] = in_turns(
          4 * seconds_, t.threads, [&] { mixed.call_or_throw(t.executor); }, [&] { some.call_or_throw(t.executor); },
          [&] { one.call_or_throw(t.executor); });
      add("step: " + std::to_string(decodes) + " decodes with a prefill of " + std::to_string(tokens) +
              " tokens, over the two apart",
          t.threads, together, apart_a + apart_b, "<= 1.1");
    }
  }

  void slot_order(index N) {
    // in one memory: two pools on other pages differ by more than what is looked for
    constexpr index gap = 1040;  // more than a page, and no power of two
    core_work<Spec> w(table_, kda::mode::decode, g_, equal(N, index{1}), most_, {.gap = gap});
    const batch shuffled(equal(N, index{1}), {}), sequential(equal(N, index{1}), {.shuffled = false});
    const std::string decode = "decode, N = " + std::to_string(N) + ": ";
    for (const team& t : machine_.teams()) {
      const auto [a, b, c] = in_turns(
          4 * seconds_, t.threads, [&] { w.call_with(shuffled, 0, t.executor); },
          [&] { w.call_with(sequential, 0, t.executor); }, [&] { w.call_with(shuffled, gap, t.executor); });
      add(decode + "shuffled slots over sequential ones", t.threads, a, b, "<= 1.05");
      add(decode + "padded slots over dense ones", t.threads, c, a, "<= 1.05");
    }
  }

  void checks() {
    core_work<Spec> w(table_, kda::mode::decode, g_, {1}, most_);
    const auto [checked, unchecked] = in_turns(
        4 * seconds_, 1, [&] { w.call_or_throw(); }, [&] { w.call_or_throw(kda::serial, kda::unchecked); });
    add("decode, N = 1: checked over unchecked", 1, checked, unchecked, "<= 1.02");
  }

  void fused(kda::mode m, index N, index T) {
    step_work<Spec> w(table_, equal(N, m), g_, equal(N, T), most_);
    for (const team& t : machine_.teams()) {
      const auto [step, parts] = in_turns(
          4 * seconds_, t.threads, [&] { w.call_or_throw(t.executor); },
          [&] {
            if (!w.call_parts(t.executor)) throw std::runtime_error("a part of step was refused");
          });
      add(shape_name("step", N, T) + " over conv, " + core_name(m) + ", norm", t.threads, step, parts, "<= 0.9");
    }
  }

  void threads(kda::mode m, index N, index T, const char* reach) {
    core_work<Spec> w(table_, m, g_, equal(N, T), most_);
    for (const team& t : machine_.teams()) {
      if (t.threads == 1) continue;
      const auto [one, several] = in_turns(
          4 * seconds_, t.threads, [&] { w.call_or_throw(); }, [&] { w.call_or_throw(t.executor); });
      add(shape_name(core_name(m), N, T) + ": speed of " + std::to_string(t.threads) + " threads over one", t.threads,
          one, several, t.threads == 2 ? reach : "");
    }
  }

 private:
  static std::string core_name(kda::mode m) { return m == kda::mode::decode ? "decode" : "prefill"; }
  static std::string shape_name(const std::string& what, index N, index T) {
    return what + ", N = " + std::to_string(N) + ", T = " + std::to_string(T);
  }
  void add(const std::string& what, index threads, double seconds, double against, const char* reach) {
    to_.push_back({what, table_.isa, threads, seconds, against, reach});
  }

  machine& machine_;
  const kda::table<Spec>& table_;
  geometry g_;
  double seconds_;
  std::vector<ratio>& to_;
  index most_;
};

}  // namespace

std::vector<ratio> measure_ratios(machine& m, extent e, double seconds) {
  std::vector<ratio> all;
  const bool small = e == extent::smoke;
  for_each_isa(glm_f32, [&](const kda::table<specs::glm_f32>& table) {
    if (std::string(table.isa) == kda::name(kda::isa::scalar)) return;
    comparison<specs::glm_f32> c(m, table, small ? two_heads : glm, seconds, all);
    c.mixed_batch(small ? 4 : 64, small ? 32 : 512);
    c.slot_order(small ? 4 : 32);
    c.checks();
    c.fused(kda::mode::prefill, 1, small ? 32 : 512);
    c.fused(kda::mode::decode, 1, 1);
    c.fused(kda::mode::decode, small ? 4 : 32, 1);
    c.threads(kda::mode::prefill, 1, small ? 32 : 512, ">= 1.9");
    c.threads(kda::mode::decode, 1, 1, ">= 1.9");
    c.threads(kda::mode::decode, small ? 4 : 32, 1, "");
  });
  return all;
}

}  // namespace bench
