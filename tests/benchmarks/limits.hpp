// SPDX-License-Identifier: Apache-2.0
// What this machine can do at most, measured in the same run as everything that is compared with it.
#pragma once
#include "limit_table.hpp"
#include "memory.hpp"

#include <kda/cpu.hpp>
#include <kda/executor.hpp>

#include <string>
#include <vector>

namespace bench {

/// The table of an ISA; null if it was not built or cannot run here.
const limit_table* limits_of(kda::isa);

/// 10^9 bytes read and written per second by passes over a buffer in place.
struct in_place_rate {
  std::string level;  ///< where the buffer lies: L2, L3 or DRAM; "states" if it is as large as some pool of states
  index bytes, threads;
  double one_stream, four_streams;
  [[nodiscard]] double best() const { return one_stream > four_streams ? one_stream : four_streams; }
};
struct peak {
  std::string isa;  ///< "dpbf16": the products of AVX512-BF16
  index threads;
  double gflops;
};
struct team {
  index threads;
  kda::executor executor;
};

/// Limits, each measured for `seconds` when it is first asked for.
class machine {
 public:
  machine(std::vector<team> teams, double seconds) : teams_(std::move(teams)), seconds_(seconds) {}

  [[nodiscard]] const std::vector<team>& teams() const { return teams_; }
  [[nodiscard]] const kda::executor& executor(index threads) const;
  double fma_gflops(kda::isa, index threads);
  enum class pattern { one_stream, four_streams };  ///< see limit_table
  /// Reads and writes a buffer of this size in place, a small one several times, so that it is worth the call: how often.
  index sweep(index bytes, index threads, pattern);
  /// The better pattern's rate for a buffer of this size.
  double in_place_gbps(index bytes, index threads, const std::string& level = "states");
  /// What is reported whatever else is measured: peaks of all ISAs, and L2, L3 and, unless `small`, DRAM, for every team.
  void measure_all(bool small);

  std::vector<peak> peaks;
  std::vector<in_place_rate> rates;

 private:
  std::vector<team> teams_;
  double seconds_;
  array<float> buffer_;
};

/// Calls f(task) for every task in [0, count) on the executor.
template <class F> void for_each_task(const kda::executor& e, index count, const F& f) {
  if (e.run == nullptr)
    for (index i = 0; i < count; ++i) f(i);
  else
    e.run(
        e.self, count, [](void* self, index i) { (*static_cast<const F*>(self))(i); }, const_cast<F*>(&f));
}

/// Seconds since some moment. `cpu_time`: of the calling thread's own work, for calls on one thread.
double now();
inline bool cpu_time = false;
double now_for(index threads);

/// Shortest of repeated calls of f, which runs on `threads` threads, in seconds: at least five, unless these take ten times as long as `seconds`.
template <class F> double shortest(double seconds, index threads, const F& f) {
  double best = 1e300;
  const double start = now();
  for (int n = 0;; ++n) {
    const double spent = now() - start;
    if ((spent >= seconds && n >= 5) || (spent >= 10 * seconds && n >= 1)) return best;
    const double begin = now_for(threads);
    f();
    const double taken = now_for(threads) - begin;
    best = taken < best ? taken : best;
  }
}

}  // namespace bench
