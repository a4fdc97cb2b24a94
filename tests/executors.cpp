// SPDX-License-Identifier: Apache-2.0
// Executors: in whatever order, on however many threads the tasks run, the bits are those of a serial call, and every
// thread's floating-point environment is left as it was found.
#include "support/executors.hpp"

#include "support/fp_environment.hpp"
#include "support/kda_catch.hpp"

#include <kda/executor/thread_pool.hpp>

#include <functional>
#include <thread>

using namespace testing;

namespace {

// The last task first, on the calling thread.
void run_backwards(void*, std::ptrdiff_t count, kda::executor::task f, void* context) {
  for (std::ptrdiff_t i = count; i-- > 0;) f(context, i);
}
// Each task on a thread of its own, all at a time.
void run_on_threads(void*, std::ptrdiff_t count, kda::executor::task f, void* context) {
  std::vector<std::thread> threads;
  for (std::ptrdiff_t i = 0; i < count; ++i) threads.emplace_back(f, context, i);
  for (std::thread& t : threads) t.join();
}
// Two threads, one of which takes the even tasks backwards, whatever concurrency the executor claims.
void run_on_two_threads(void*, std::ptrdiff_t count, kda::executor::task f, void* context) {
  std::thread other([=] {
    for (std::ptrdiff_t i = (count - 1) / 2 * 2; i >= 0; i -= 2) f(context, i);
  });
  for (std::ptrdiff_t i = 1; i < count; i += 2) f(context, i);
  other.join();
}

constexpr decltype(kda::executor::run) ways[] = {run_backwards, run_on_threads, run_on_two_threads};

// Runs each task on a thread whose environment is odd, and counts those that come back with another one.
struct odd_threads {
  std::atomic<int> changed = 0;
  static void run(void* self, std::ptrdiff_t count, kda::executor::task f, void* context) {
    for (std::ptrdiff_t i = 0; i < count; ++i) {
      std::thread([=] {
        const auto odd = odd_fp_environments[static_cast<std::size_t>(i) % std::size(odd_fp_environments)];
        set_fp_environment(odd);
        f(context, i);
        if (current_fp_environment() != odd) ++static_cast<odd_threads*>(self)->changed;
      }).join();
    }
  }
};

}  // namespace

TEMPLATE_TEST_CASE("bits do not depend on the executor", "[executors]", KDA_TEST_CALLS) {
  compared_with_serial<TestType> x;
  for (const std::ptrdiff_t concurrency : concurrencies()) {
    CAPTURE(concurrency);
    for (const auto way : ways) {
      CAPTURE(way == run_backwards, way == run_on_threads);
      for (int repeat = 0; repeat < (emulated() || concurrency > 16 ? 1 : 3); ++repeat)
        CHECK(x.same({.run = way, .concurrency = concurrency}));
    }
    std::ptrdiff_t calls = 0;
    const auto in_place = [&calls](std::ptrdiff_t count, const auto& f) {
      ++calls;
      for (std::ptrdiff_t i = 0; i < count; ++i) f(i);
    };
    CHECK(x.same(kda::executor_of(in_place, concurrency)));
    CHECK(calls == 1);
  }
  for (const std::ptrdiff_t concurrency :
       {std::ptrdiff_t{0}, std::ptrdiff_t{-7}, std::numeric_limits<std::ptrdiff_t>::min()}) {
    CAPTURE(concurrency);
    CHECK(x.same({.run = run_backwards, .concurrency = concurrency}));
    CHECK(x.same({.run = nullptr, .concurrency = concurrency}));
  }
  CHECK(x.same({.run = nullptr, .concurrency = 4}));
}

TEMPLATE_TEST_CASE("bits do not depend on how many threads a pool has, call after call", "[executors][thread_pool]",
                   KDA_TEST_CALLS) {
  compared_with_serial<TestType> x;
  for (const std::ptrdiff_t threads : concurrencies()) {
    CAPTURE(threads);
    kda::thread_pool pool(threads);
    REQUIRE(pool.executor().concurrency == threads);
    const auto parallel_for = [&](std::ptrdiff_t count, auto f) {  // as an engine would lend its pool
      pool.run(
          count, [](void* self, std::ptrdiff_t i) { (*static_cast<decltype(f)*>(self))(i); }, &f);
    };
    for (int repeat = 0; repeat < (emulated() ? 2 : 50); ++repeat) CHECK(x.same(pool.executor()));
    CHECK(x.same(kda::executor_of(parallel_for, threads)));
  }
}

TEST_CASE("a thread pool runs each task once and returns when all have ended", "[executors][thread_pool]") {
  for (const std::ptrdiff_t threads : {-1, 0, 1, 2, 3, 8}) {
    kda::thread_pool pool(threads);
    CHECK(pool.size() == std::max(threads, std::ptrdiff_t{1}));
    for (int repeat = 0; repeat < (emulated() ? 3 : 40); ++repeat)
      for (const std::ptrdiff_t count : {0, 1, 2, 3, 7, 8, 9, 100}) {
        CAPTURE(threads, count, repeat);
        counted_tasks tasks(count);
        if (repeat % 4 == 1) tasks.pause = std::chrono::microseconds(20);
        pool.run(count, counted_tasks::run, &tasks);
        CHECK(tasks.each_once());
        CHECK(tasks.most_at_a_time <= pool.size());
        if (repeat % 8 == 7 && count == 9)  // until the threads sleep
          std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
  }
}

TEST_CASE("threads of a pool work at the same time, asleep or not when the call comes", "[executors][thread_pool]") {
  kda::thread_pool pool(4);
  for (int repeat = 0; repeat < 6; ++repeat) {
    CAPTURE(repeat);
    struct meeting {  // tasks that end when all four have begun, or are not going to
      std::atomic<int> begun = 0, met = 0;
      static void run(void* self, std::ptrdiff_t) {
        auto& m = *static_cast<meeting*>(self);
        ++m.begun;
        const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        while (m.begun < 4 && std::chrono::steady_clock::now() < late) std::this_thread::yield();
        if (m.begun == 4) ++m.met;
      }
    } all;
    pool.run(4, meeting::run, &all);
    REQUIRE(all.met == 4);
    if (repeat % 2 == 0)  // until they sleep, which takes longer on a busy machine
      std::this_thread::sleep_for(std::chrono::milliseconds(repeat == 4 ? 1000 : 3));
  }
}

TEST_CASE("a thread pool takes calls from several threads", "[executors][thread_pool]") {
  kda::thread_pool pool(3);
  std::vector<std::thread> callers;
  std::atomic<int> wrong = 0;
  for (int caller = 0; caller < 4; ++caller)
    callers.emplace_back([&, caller] {
      for (std::ptrdiff_t n = 0; n < (emulated() ? 30 : 500); ++n) {
        counted_tasks tasks(caller + n % 7);
        tasks.pause = std::chrono::microseconds(n % 2);  // a sleep in every other call, so that calls meet
        pool.run(tasks.count, counted_tasks::run, &tasks);
        if (!tasks.each_once()) ++wrong;
      }
    });
  for (std::thread& t : callers) t.join();
  CHECK(wrong == 0);
}

TEST_CASE("a thread pool may end before its threads have begun", "[executors][thread_pool]") {
  for (int n = 0; n < (emulated() ? 5 : 100); ++n) {
    kda::thread_pool pool(5);
    counted_tasks tasks(n % 3 == 0 ? 0 : 9);
    pool.run(tasks.count, counted_tasks::run, &tasks);
    CHECK(tasks.each_once());
  }
}

TEMPLATE_TEST_CASE("bits of gate, beta, l2norm and norm do not depend on the executor", "[executors]",
                   specs::kda_bounded, specs::gdn_softplus, specs::glm) {
  token_operations<TestType> x({.T = 83, .H = 2, .HV = 4, .K = 20, .V = 19});
  scratch w(0, 64);
  x.for_each([&](auto call, auto args) {
    const auto result = [&](const kda::executor& e) {
      const auto& out = output_of(args);
      std::memset(static_cast<void*>(out.data), canary_bytes, elements_of(out) * sizeof(*out.data));
      throw_unless(call(args, w, e));
      return std::vector(out.data, out.data + elements_of(out));
    };
    const auto serial = result(kda::serial);
    for (const auto way : ways)
      for (const std::ptrdiff_t concurrency : {0, 1, 3, 8, 64})
        CHECK(same_bits(result({.run = way, .concurrency = concurrency}), serial));
  });
}

TEMPLATE_TEST_CASE("an executor is given no more tasks than may run at a time, each of them once", "[executors]",
                   KDA_TEST_CALLS) {
  struct counts {
    std::ptrdiff_t calls = 0, tasks = 0;
    static void run(void* self, std::ptrdiff_t count, kda::executor::task f, void* context) {
      auto& c = *static_cast<counts*>(self);
      ++c.calls;
      c.tasks = count;
      for (std::ptrdiff_t i = 0; i < count; ++i) f(context, i);
    }
  };
  for (const std::ptrdiff_t concurrency : {1, 3, 64}) {
    counts c;
    TestType(mixed_batch(), TestType::pool_of(12, 1)).run({.self = &c, .run = counts::run, .concurrency = concurrency});
    CHECK(c.calls == 1);
    CHECK(c.tasks >= 1);
    CHECK(c.tasks <= concurrency);
    counts none;
    TestType({}, TestType::pool_of(1, 1)).run({.self = &none, .run = counts::run, .concurrency = concurrency});
    CHECK(none.calls == 0);
  }
}

TEMPLATE_TEST_CASE("the floating-point environment changes no bit and is left as it was", "[executors]",
                   KDA_TEST_CALLS) {
  const std::vector<sequence> batch = mixed_batch();
  const auto before = TestType::pool_of(12, 1);
  TestType usual(batch, before);
  usual.run();

  TestType on_threads(batch, before);  // of threads
  odd_threads threads;
  on_threads.run({.self = &threads, .run = odd_threads::run, .concurrency = 4});
  CHECK(threads.changed == 0);
  CHECK(same_bits(on_threads.out, usual.out));
  CHECK(same_bits(on_threads.states.cells, usual.states.cells));

  for (const auto odd : odd_fp_environments) {  // of the caller
    TestType x(batch, before);
    const auto args = x.args();
    scratch w(std::ssize(batch));
    kda::status s{};
    fp_environment left = 0;
    {
      const fp_environment_scope scope(odd);
      s = TestType::function()(args, w, kda::serial);
      left = current_fp_environment();
    }
    CHECK(s);
    CHECK(left == odd);
    CHECK(same_bits(x.out, usual.out));
    CHECK(same_bits(x.states.cells, usual.states.cells));
  }
}

TEMPLATE_TEST_CASE("two threads may call at the same time on slots of one pool", "[executors]", KDA_TEST_CALLS) {
  const std::vector<sequence> batches[] = {{continued(21, 1, 0), fresh(4, 2, 2), continued(1, 3, 4)},
                                           {continued(1, 4, 1), continued(13, 5, 3), {7, 6, 6, 5, true}}};
  const auto before = TestType::pool_of(7, 1);
  auto want = before;
  std::vector<TestType> alone;
  for (const auto& batch : batches) {
    alone.emplace_back(batch, before);
    alone.back().run();
    for (const sequence& s : batch) want.set_slot(s.store, alone.back().states.slot(s.store));
  }
  kda::thread_pool pool(3);
  const kda::executor executors[] = {kda::serial, pool.executor(), {.run = run_backwards, .concurrency = 2}};
  for (int repeat = 0; repeat < (emulated() ? 3 : 45); ++repeat) {
    CAPTURE(repeat);
    const kda::executor e = executors[repeat % 3];
    auto shared = before;
    TestType x(batches[0], TestType::pool_of(0, 1)), y(batches[1], TestType::pool_of(0, 1));
    kda::status answers[2];
    std::vector<std::thread> threads;
    for (const std::size_t i : {0u, 1u}) {
      auto args = (i == 0 ? x : y).args();
      args.states.data = shared.cells.data();
      args.states.slots = shared.slots;
      threads.emplace_back(
          [args, e, &answer = answers[i]] { answer = TestType::function()(args, scratch(3, e.concurrency), e); });
    }
    for (std::thread& t : threads) t.join();
    CHECK((answers[0] && answers[1]));
    CHECK(same_bits(x.out, alone[0].out));
    CHECK(same_bits(y.out, alone[1].out));
    CHECK(same_bits(shared.cells, want.cells));
  }
}
