// SPDX-License-Identifier: Apache-2.0
// kda::thread_pool: threads for an engine that has none. Opt-in: it uses the standard library.
//
// Thread t of n owns tasks t, t + n, ... of a call and counts them down in `left_[t]`; whoever takes one off has that
// task to do. Threads take their own first, so that a thread mostly meets the same task in each call, then the others'.
// The caller is thread 0 and then waits until `unfinished_` is 0, so a worker that wakes late, or never, costs time and
// nothing else. What orders the memory: left_ is stored with release after the task is set, and taken from with acquire;
// unfinished_ is counted down with release, and its 0 is read with acquire before the next call sets another task;
// `calls_` counts calls once their tasks can be taken.
#pragma once
#include "../executor.hpp"

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

/// N threads that run the tasks of one call at a time, the caller's thread being one of them. Calls from several
/// threads wait for each other. Tasks must not throw, nor call their own pool. Idle threads look for work for some tens
/// of microseconds, which spans the gap between two kernels, and then sleep.
class thread_pool {
 public:
  /// Starts threads - 1 threads; std::system_error if the system has no more.
  explicit thread_pool(std::ptrdiff_t threads) : left_(static_cast<std::size_t>(threads > 1 ? threads : 1)) {
    for (std::ptrdiff_t i = 1; i < threads; ++i)
      workers_.emplace_back([this, i](const std::stop_token& end) { work(i, end); });
  }

  /// Threads that work at a time, the caller's among them.
  [[nodiscard]] std::ptrdiff_t size() const { return static_cast<std::ptrdiff_t>(left_.size()); }

  /// f(context, i) for every i in [0, count); returns when all have ended.
  void run(std::ptrdiff_t count, kda::executor::task f, void* context) {
    if (count <= 1 || size() == 1) {
      for (std::ptrdiff_t i = 0; i < count; ++i) f(context, i);
      return;
    }
    const std::lock_guard one_at_a_time(callers_);
    task_ = f, context_ = context;
    unfinished_.store(count, std::memory_order_relaxed);
    for (std::ptrdiff_t t = 0; t < size() && t < count; ++t)
      left_of(t).store((count - t + size() - 1) / size(), std::memory_order_release);
    calls_.fetch_add(1, std::memory_order_release);
    { const std::lock_guard lock(mutex_); }  // whoever found nothing to do is asleep now, and can be woken
    wake_.notify_all();
    while (take_task(0)) {
    }
    const auto all_done = [this] { return unfinished_.load(std::memory_order_acquire) == 0; };
    if (spin_until(all_done)) return;
    std::unique_lock lock(mutex_);
    done_.wait(lock, all_done);
  }

  /// This pool, for kda's calls.
  [[nodiscard]] kda::executor executor() {
    return {.self = this,
            .run = [](void* self, std::ptrdiff_t count, kda::executor::task f,
                      void* context) { static_cast<thread_pool*>(self)->run(count, f, context); },
            .concurrency = size()};
  }

 private:
  static constexpr int spins = 100;

  template <class F> static bool spin_until(const F& f) {
    for (int i = 0; i < spins; ++i) {
      if (f()) return true;
      std::this_thread::yield();  // to the threads that are awaited, where there are more threads than cores
    }
    return false;
  }

  struct alignas(64) counter {
    std::atomic<std::ptrdiff_t> tasks = 0;
  };
  std::atomic<std::ptrdiff_t>& left_of(std::ptrdiff_t thread) { return left_[static_cast<std::size_t>(thread)].tasks; }

  bool take_task(std::ptrdiff_t thread) {
    for (std::ptrdiff_t t = 0; t < size(); ++t) {
      const std::ptrdiff_t owner = thread + t < size() ? thread + t : thread + t - size();
      std::atomic<std::ptrdiff_t>& left = left_of(owner);
      std::ptrdiff_t n = left.load(std::memory_order_relaxed);
      while (n > 0 && !left.compare_exchange_weak(n, n - 1, std::memory_order_acquire, std::memory_order_relaxed)) {
      }
      if (n <= 0) continue;
      task_(context_, owner + (n - 1) * size());
      if (unfinished_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
        { const std::lock_guard lock(mutex_); }
        done_.notify_one();
      }
      return true;
    }
    return false;
  }

  void work(std::ptrdiff_t thread, const std::stop_token& end) {
    std::ptrdiff_t seen = 0;
    const auto called = [&] { return calls_.load(std::memory_order_acquire) != seen; };
    while (!end.stop_requested()) {
      seen = calls_.load(std::memory_order_acquire);
      while (take_task(thread)) {
      }
      if (spin_until([&] { return called() || end.stop_requested(); })) continue;
      std::unique_lock lock(mutex_);
      wake_.wait(lock, end, called);
    }
  }

  std::mutex callers_, mutex_;  // mutex_ guards nothing but the moment before sleep
  std::condition_variable_any wake_;
  std::condition_variable done_;
  kda::executor::task task_ = nullptr;
  void* context_ = nullptr;
  std::vector<counter> left_;
  alignas(64) std::atomic<std::ptrdiff_t> calls_ = 0;
  alignas(64) std::atomic<std::ptrdiff_t> unfinished_ = 0;
  std::vector<std::jthread> workers_;  // last: stopped and joined before what they use goes away
};

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
