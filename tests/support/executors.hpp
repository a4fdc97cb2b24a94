// SPDX-License-Identifier: Apache-2.0
// What the tests of executors share: a call whose bits are compared, and tasks that count.
#pragma once
#include "batches.hpp"

#include <atomic>
#include <chrono>
#include <thread>

namespace testing {

/// Several tasks for each thread: sequences of many lengths, some of them empty or padding.
inline std::vector<sequence> mixed_batch() {
  std::vector<sequence> batch;
  for (std::int64_t n = 0; n < 12; ++n)
    batch.push_back({n * 5 % 23, static_cast<std::uint64_t>(n), n % 5 == 4 ? -1 : n, n, n % 3 != 2});
  return batch;
}

inline std::vector<std::ptrdiff_t> concurrencies() {
  if (emulated()) return {2, 16};
  return {1, 2, 3, 5, 7, 8, 13, 16, 31, 64};
}

/// A call over a mixed batch, and whether it gives the bits of the serial call with another executor.
template <class Call> class compared_with_serial {
 public:
  compared_with_serial() { serial_.run(); }
  bool same(const kda::executor& e) {
    Call x = fresh_;
    throw_unless(Call::function()(x.args(), scratch_, e));
    return same_bits(x.out, serial_.out) && same_bits(x.states.cells, serial_.states.cells);
  }

 private:
  const Call fresh_{mixed_batch(), Call::pool_of(12, 1)};
  Call serial_ = fresh_;
  scratch scratch_{12, 64};  // once: it is large
};

/// Tasks that count how often each has run, and how many run at a time.
struct counted_tasks {
  std::ptrdiff_t count;
  std::vector<std::atomic<int>> runs;
  std::atomic<std::ptrdiff_t> running = 0, most_at_a_time = 0;
  std::chrono::microseconds pause{0};

  explicit counted_tasks(std::ptrdiff_t n) : count(n), runs(size(n)) {}
  static void run(void* self, std::ptrdiff_t i) {
    auto& t = *static_cast<counted_tasks*>(self);
    const std::ptrdiff_t now = ++t.running;
    for (std::ptrdiff_t most = t.most_at_a_time; most < now && !t.most_at_a_time.compare_exchange_weak(most, now);) {
    }
    if (t.pause.count() > 0) std::this_thread::sleep_for(t.pause);
    ++t.runs.at(size(i));
    --t.running;
  }
  [[nodiscard]] bool each_once() const {
    return running == 0 && std::all_of(runs.begin(), runs.end(), [](const auto& n) { return n == 1; });
  }
};

}  // namespace testing
