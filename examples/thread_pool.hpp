// SPDX-License-Identifier: Apache-2.0
// A small thread pool, as every engine has one already, and how kda borrows it: executor().
#pragma once
#include <kda/executor.hpp>

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

namespace engine {

class thread_pool {
 public:
  explicit thread_pool(std::ptrdiff_t threads) {
    for (std::ptrdiff_t i = 1; i < threads; ++i)
      workers_.emplace_back([this](const std::stop_token& end) { work(end); });
  }

  /// Threads that work at a time, the caller's among them.
  [[nodiscard]] std::ptrdiff_t size() const { return std::ssize(workers_) + 1; }

  /// f(context, i) for every i in [0, count); returns when all have ended. One caller at a time.
  void run(std::ptrdiff_t count, kda::executor::task f, void* context) {
    std::unique_lock lock(mutex_);
    task_ = f, context_ = context, next_ = 0, count_ = count;
    wake_.notify_all();
    take_tasks(lock);
    idle_.wait(lock, [this] { return running_ == 0; });
  }

  /// f(i) for every i in [0, count).
  template <class F> void for_each(std::ptrdiff_t count, F f) {
    run(
        count, [](void* self, std::ptrdiff_t i) { (*static_cast<F*>(self))(i); }, &f);
  }

  /// This pool, for kda's calls.
  [[nodiscard]] kda::executor executor() {
    return {.self = this,
            .run = [](void* self, std::ptrdiff_t count, kda::executor::task f,
                      void* context) { static_cast<thread_pool*>(self)->run(count, f, context); },
            .concurrency = size()};
  }

 private:
  void work(const std::stop_token& end) {
    std::unique_lock lock(mutex_);
    while (wake_.wait(lock, end, [this] { return next_ < count_; })) take_tasks(lock);
  }

  void take_tasks(std::unique_lock<std::mutex>& lock) {
    while (next_ < count_) {
      const std::ptrdiff_t i = next_++;
      ++running_;
      lock.unlock();
      task_(context_, i);
      lock.lock();
      if (--running_ == 0) idle_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any wake_;
  std::condition_variable idle_;
  kda::executor::task task_ = nullptr;
  void* context_ = nullptr;
  std::ptrdiff_t next_ = 0, count_ = 0, running_ = 0;
  std::vector<std::jthread> workers_;  // last: stopped and joined before what they use goes away
};

}
