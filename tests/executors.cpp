// SPDX-License-Identifier: Apache-2.0
// Executors: in whatever order, on however many threads the tasks run, the bits are those of a serial call, and every
// thread's floating-point environment is left as it was found.
#include "support/batches.hpp"
#include "support/kda_catch.hpp"

#include <atomic>
#include <cfenv>
#include <functional>
#include <thread>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

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

// Several tasks for each thread: sequences of many lengths, some of them empty or padding.
std::vector<sequence> mixed_batch() {
  std::vector<sequence> batch;
  for (std::int64_t n = 0; n < 12; ++n)
    batch.push_back({n * 5 % 23, static_cast<std::uint64_t>(n), n % 5 == 4 ? -1 : n, n, n % 3 != 2});
  return batch;
}

#if defined(__SSE2__)
unsigned environment() { return _mm_getcsr(); }
void set_environment(unsigned e) { _mm_setcsr(e); }
// Rounding toward minus infinity, toward zero, and denormals flushed; exceptions masked, one flag raised.
constexpr unsigned odd_environments[] = {0x3f80, 0x7f80, 0x9fc0, 0x1f81};
#else
int environment() { return std::fegetround(); }
void set_environment(int e) { std::fesetround(e); }
constexpr int odd_environments[] = {FE_DOWNWARD, FE_TOWARDZERO};
#endif

// Runs each task on a thread whose environment is odd, and counts those that come back with another one.
struct odd_threads {
  std::atomic<int> changed = 0;
  static void run(void* self, std::ptrdiff_t count, kda::executor::task f, void* context) {
    for (std::ptrdiff_t i = 0; i < count; ++i) {
      std::thread([=] {
        const auto odd = odd_environments[static_cast<std::size_t>(i) % std::size(odd_environments)];
        set_environment(odd);
        f(context, i);
        if (environment() != odd) ++static_cast<odd_threads*>(self)->changed;
      }).join();
    }
  }
};

}  // namespace

TEMPLATE_TEST_CASE("bits do not depend on the executor", "[executors]", KDA_TEST_CALLS) {
  const std::vector<sequence> batch = mixed_batch();
  const auto before = TestType::pool_of(12, 1);
  TestType serial(batch, before);
  const TestType fresh_call = serial;
  serial.run();
  scratch w(std::ssize(batch), 64);  // once: it is large
  const auto same = [&](const kda::executor& e) {
    TestType x = fresh_call;
    throw_unless(TestType::function()(x.args(), w, e));
    return same_bits(x.out, serial.out) && same_bits(x.states.cells, serial.states.cells);
  };
  const auto concurrencies = emulated() ? std::vector{2, 16} : std::vector{1, 2, 3, 5, 7, 8, 13, 16, 64};
  for (const auto way : ways)
    for (const std::ptrdiff_t concurrency : concurrencies) {
      CAPTURE(way == run_backwards, way == run_on_threads, concurrency);
      for (int repeat = 0; repeat < (emulated() || concurrency > 16 ? 1 : 3); ++repeat)
        CHECK(same({.run = way, .concurrency = concurrency}));
    }
  for (const std::ptrdiff_t concurrency :
       {std::ptrdiff_t{0}, std::ptrdiff_t{-7}, std::numeric_limits<std::ptrdiff_t>::min()}) {
    CAPTURE(concurrency);
    CHECK(same({.run = run_backwards, .concurrency = concurrency}));
    CHECK(same({.run = nullptr, .concurrency = concurrency}));
  }
  CHECK(same({.run = nullptr, .concurrency = 4}));
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

  for (const auto odd : odd_environments) {  // of the caller
    TestType x(batch, before);
    const auto args = x.args();
    scratch w(std::ssize(batch));
    const auto found = environment();
    set_environment(odd);
    const kda::status s = TestType::function()(args, w, kda::serial);
    const auto left = environment();
    set_environment(found);
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
  for (int repeat = 0; repeat < (emulated() ? 2 : 20); ++repeat) {
    auto shared = before;
    TestType x(batches[0], TestType::pool_of(0, 1)), y(batches[1], TestType::pool_of(0, 1));
    kda::status answers[2];
    std::vector<std::thread> threads;
    for (const std::size_t i : {0u, 1u}) {
      auto args = (i == 0 ? x : y).args();
      args.states.data = shared.cells.data();
      args.states.slots = shared.slots;
      threads.emplace_back(
          [args, &answer = answers[i]] { answer = TestType::function()(args, scratch(3), kda::serial); });
    }
    for (std::thread& t : threads) t.join();
    CHECK((answers[0] && answers[1]));
    CHECK(same_bits(x.out, alone[0].out));
    CHECK(same_bits(y.out, alone[1].out));
    CHECK(same_bits(shared.cells, want.cells));
  }
}
