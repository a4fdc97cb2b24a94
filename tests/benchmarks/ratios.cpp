// SPDX-License-Identifier: Apache-2.0
// The ratios of the engine contract. What is compared is measured in turns, so that a busy moment hits both; a turn is a
// few calls, so that all but the first find the caches as a call of their own kind leaves them.
#include "suite.hpp"

#include <array>
#include <functional>

namespace bench {

namespace {

using calls = std::vector<std::function<void()>>;

/// Shortest calls of each function, which run on `threads` threads, in seconds, measured in turns.
std::vector<double> in_turns(double seconds, index threads, const calls& all) {
  std::vector<double> best(all.size(), HUGE_VAL);
  const double start = now();
  for (int n = 0; n < 3 || now() - start < seconds; ++n)
    for (std::size_t i = 0; i < all.size(); ++i)
      for (int call = 0; call < 3; ++call) {
        const double begin = now_for(threads);
        all[i]();
        best[i] = std::min(best[i], now_for(threads) - begin);
      }
  return best;
}
template <class... F> std::array<double, sizeof...(F)> in_turns(double seconds, index threads, const F&... f) {
  const std::vector<double> best = in_turns(seconds, threads, calls{f...});
  std::array<double, sizeof...(F)> times{};
  std::copy(best.begin(), best.end(), times.begin());
  return times;
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

/// One call of a core by different specs on one ISA, and, of decode, the passes over states in place that bound it.
class cores {
 public:
  cores(machine& m, kda::mode mode, const geometry& g, index N, index T, double seconds, std::vector<ratio>& to)
      : machine_(m), mode_(mode), g_(g), lengths_(equal(N, T)), seconds_(seconds), to_(to) {
    what_ = mode == kda::mode::decode ? "decode, N = " + std::to_string(N) : "prefill, T = " + std::to_string(T);
  }

  /// The kernels of `list` for this ISA, if there are.
  template <class Spec> void add(const std::string& name, kda::kernel_list<Spec> list, const std::string& isa) {
    for_each_isa(list, [&](const kda::table<Spec>& table) {
      if (table.isa != isa) return;
      works_.push_back(std::make_unique<core_work<Spec>>(table, mode_, g_, lengths_, machine_.teams().back().threads));
      names_.push_back(name);
    });
  }
  void measure() {
    for (const team& t : machine_.teams()) {
      calls all;
      for (const auto& w : works_) all.push_back([&] { w->call_or_throw(t.executor); });
      if (mode_ == kda::mode::decode)
        for (const auto p : {machine::pattern::one_stream, machine::pattern::four_streams})
          all.push_back([&, p] { passes_ = machine_.sweep(static_cast<index>(works_[0]->state_bytes), t.threads, p); });
      times_.push_back(in_turns(2 * seconds_ * static_cast<double>(all.size()), t.threads, all));
    }
  }
  enum class form { time, speed };
  /// How long `name` takes, or how fast it is, against `other`; nothing if one of them is not there.
  void report(const std::string& name, const std::string& other, form f, const std::vector<const char*>& reach) {
    const std::size_t a = place_of(name), b = place_of(other);
    if (a == names_.size() || b == names_.size()) return;
    const bool speed = f == form::speed;
    for (std::size_t i = 0; i < times_.size(); ++i)
      put(what_ + (speed ? ": speed of " : ": ") + name + " over " + other, a, i, times_[i][speed ? b : a],
          times_[i][speed ? a : b], reach);
  }
  /// How long `name` takes against the faster pass over its states.
  void report_floor(const std::string& name, const std::vector<const char*>& reach) {
    const std::size_t a = place_of(name);
    for (std::size_t i = 0; a < names_.size() && i < times_.size(); ++i)
      put(what_ + ": " + name + " over a pass over the states in place", a, i, times_[i][a],
          std::min(times_[i][names_.size()], times_[i][names_.size() + 1]) / static_cast<double>(passes_), reach);
  }

 private:
  [[nodiscard]] std::size_t place_of(const std::string& name) const {
    return static_cast<std::size_t>(std::find(names_.begin(), names_.end(), name) - names_.begin());
  }
  // reach: with one thread, with two.
  void put(const std::string& what, std::size_t work, std::size_t team, double seconds, double against,
           const std::vector<const char*>& reach) {
    to_.push_back({what, works_[work]->isa, machine_.teams()[team].threads, seconds, against,
                   team < reach.size() ? reach[team] : ""});
  }

  machine& machine_;
  kda::mode mode_;
  geometry g_;
  std::vector<index> lengths_;
  double seconds_;
  std::vector<ratio>& to_;
  std::string what_;
  index passes_ = 1;  // of a sweep over the states
  std::vector<std::unique_ptr<work>> works_;
  std::vector<std::string> names_;
  std::vector<std::vector<double>> times_;  // of each team: of each work, then of the passes in place
};

// Specs against each other on the vectors of `isa`; bf16 by the instructions of AVX512-BF16 where there are.
void compare_specs(machine& m, const std::string& isa, bool small, double seconds, std::vector<ratio>& to) {
  const bool narrow = isa == kda::name(kda::isa::avx2), has_bf16 = kda::best_isa() >= kda::isa::avx512_bf16;
  const std::string bf16 = !narrow && has_bf16 ? kda::name(kda::isa::avx512_bf16) : isa;
  const geometry& g = small ? two_heads : glm;
  const std::string value_major = "fp32 states [V, K]", key_major = "fp32 states [K, V]", half = "bf16 states [V, K]",
                    gdn = "GDN", products = "bf16 products", gdn_products = "GDN with bf16 products";
  {
    cores c(m, kda::mode::decode, g, small ? 4 : 32, 1, seconds, to);
    c.add(value_major, glm_f32, isa);
    c.add(key_major, glm_f32_key, isa);
    c.add(half, glm_f32_state_bf16, bf16);
    c.add(gdn, gdn_f32, isa);
    c.measure();
    c.report_floor(value_major, {"<= 1.25", "<= 1.2"});
    c.report_floor(key_major, {"<= 1.35"});
    c.report(key_major, value_major, cores::form::time, {"<= 1.12"});
    if (narrow || has_bf16)
      c.report(half, value_major, cores::form::speed, {narrow ? ">= 1.2" : ">= 1.8", narrow ? ">= 1.5" : ">= 1.8"});
    c.report(gdn, value_major, cores::form::time, {"<= 1"});
  }
  cores c(m, kda::mode::prefill, g, 1, small ? 32 : 512, seconds, to);
  c.add(value_major, glm_f32, isa);
  c.add(key_major, glm_f32_key, isa);
  c.add(gdn, gdn_f32, isa);
  c.add(products, glm_f32_products, bf16);
  c.add(gdn_products, gdn_f32_products, bf16);
  c.measure();
  c.report(key_major, value_major, cores::form::time, {"<= 1.05"});
  c.report(gdn, value_major, cores::form::time, {"<= 1"});
  c.report(products, value_major, cores::form::speed, {">= 1.5"});
  c.report(gdn_products, gdn, cores::form::speed, {">= 1.5"});
}

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
    compare_specs(m, table.isa, small, seconds, all);
  });
  return all;
}

}  // namespace bench
