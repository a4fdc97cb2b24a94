// SPDX-License-Identifier: Apache-2.0
// OpenMP as an executor. A program of its own, neither static (gcc's OpenMP wants to load others) nor run under the
// thread sanitizer (which does not see how gcc's OpenMP orders memory).
#include "support/executors.hpp"
#include "support/kda_catch.hpp"

#include <kda/executor/openmp.hpp>

using namespace testing;

TEMPLATE_TEST_CASE("bits do not depend on how many threads OpenMP has", "[openmp]", KDA_TEST_CALLS) {
  compared_with_serial<TestType> x;
  for (const std::ptrdiff_t threads : concurrencies()) {
    CAPTURE(threads);
    const kda::executor e = kda::openmp(threads);
    REQUIRE(e.concurrency == threads);
    for (int repeat = 0; repeat < (emulated() ? 2 : 10); ++repeat) CHECK(x.same(e));
  }
  bool same[2] = {};
#pragma omp parallel for num_threads(2)
  for (int i = 0; i < 2; ++i) same[i] = i == 1 || x.same(kda::openmp(3));  // in a region of the engine's
  CHECK(same[0]);
  CHECK(kda::openmp(-3).concurrency == 1);
  CHECK(kda::openmp(std::numeric_limits<std::ptrdiff_t>::max()).concurrency == 65536);
}

TEST_CASE("OpenMP runs each task once, at most so many at a time", "[openmp]") {
  for (const std::ptrdiff_t threads : {1, 2, 5})
    for (const std::ptrdiff_t count : {0, 1, 2, 5, 40}) {
      CAPTURE(threads, count);
      counted_tasks tasks(count);
      const kda::executor e = kda::openmp(threads);
      e.run(e.self, count, counted_tasks::run, &tasks);
      CHECK(tasks.each_once());
      CHECK(tasks.most_at_a_time <= threads);
    }
}
