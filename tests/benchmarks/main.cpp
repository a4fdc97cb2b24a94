// SPDX-License-Identifier: Apache-2.0
// kda_benchmarks: kernels on full-size batches, measured against the limits of this machine.
//   kda_benchmarks [--quick | --smoke] [--json FILE] [--no-ratios] [--cpu-time] [--seconds S] [options of Google Benchmark]
//     --quick   minutes instead of half an hour; --smoke: seconds, tiny batches
//     --json    results, machine and ratios; table.py and plot.py read it
//     --cpu-time  calls on one thread are timed by that thread's CPU time: for a machine that others keep busy
//     --seconds   that each row is measured for (default 0.2)
//     --benchmark_filter=kda_prefill/avx2   some rows only; their names begin with operation and ISA
// Time is the shortest single call. Before the first one, a call's results are compared with the double reference; a
// call that allocates fails.
#include "suite.hpp"

#include <kda/executor/thread_pool.hpp>

#include <benchmark/benchmark.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace bench {

namespace {

/// Runs requests. Google Benchmark calls run() several times for each, with more iterations every time; work and
/// shortest time are kept between these calls.
class runner {
 public:
  explicit runner(machine& m) : machine_(m) {}

  std::vector<row> rows;
  bool failed = false;

  void run(benchmark::State& state, const request& r) {
    try {
      prepare(r);
    } catch (const std::exception& e) {
      fail(state, e.what());
      return;
    }
    row& row = rows.back();
    const kda::executor& executor = machine_.executor(row.threads);
    work_->call_or_throw(executor);  // the executor's threads are awake, caches as a repeated call finds them
    for ([[maybe_unused]] auto _ : state) {
      double shortest = HUGE_VAL;
      for (int calls = 1; calls > 0; --calls) {
        const long before = allocations();
        const double begin = now_for(row.threads);
        const kda::status s = work_->call(executor, kda::checking::checked);
        const double seconds = now_for(row.threads) - begin;
        if (allocations() != before) return fail(state, "the call allocated memory");
        if (!s) return fail(state, s.argument);
        if (shortest == HUGE_VAL && seconds > 0.05 && seconds < 2) calls += 2;  // one iteration is all there will be
        shortest = std::min(shortest, seconds);
      }
      state.SetIterationTime(shortest);
      row.seconds = std::min(row.seconds, shortest);
    }
    state.counters["us"] = 1e6 * row.seconds;
    state.counters["us/token-head"] = 1e6 * row.seconds / row.token_heads;
    if (row.is_delta_rule) {
      state.counters["% peak"] = percent_of_fma_peak(machine_, row);
      state.counters["% bandwidth"] = percent_of_bandwidth(machine_, row);
    }
    state.counters["error"] = row.error;
  }

 private:
  void prepare(const request& r) {
    const std::string name = r.what.name();
    if (!rows.empty() && rows.back().name() == name) return;
    const std::string made = name.substr(0, name.rfind('/'));  // but for threads
    if (made_ != made) {
      made_.clear();
      work_.reset();  // before the next is made: two of the large ones may not fit
      work_ = r.make();
      error_ = work_->check();
      if (!(error_ <= work_->bound())) {
        char text[128];
        std::snprintf(text, sizeof text, "error %.2e is beyond its bound %.2e", error_, work_->bound());
        throw std::runtime_error(text);
      }
      made_ = made;
    }
    rows.push_back(r.what);
    row& row = rows.back();
    row.isa = work_->isa;
    row.seconds = HUGE_VAL;
    row.error = error_;
    row.token_heads = work_->token_heads;
    row.state_bytes = work_->state_bytes;
    row.bytes = work_->bytes;
  }
  void fail(benchmark::State& state, const char* why) {
    failed = true;
    state.SkipWithError(why);
  }

  machine& machine_;
  std::unique_ptr<work> work_;
  std::string made_;
  double error_ = 0;
};

struct options {
  bench::extent extent = extent::full;
  std::string json;
  double seconds = 0.2;
  bool ratios = true;
};

options parse(int& count, char** words) {
  options o;
  int kept = 1;
  for (int i = 1; i < count; ++i) {
    if (std::strcmp(words[i], "--quick") == 0)
      o.extent = extent::quick;
    else if (std::strcmp(words[i], "--smoke") == 0)
      o.extent = extent::smoke;
    else if (std::strcmp(words[i], "--no-ratios") == 0)
      o.ratios = false;
    else if (std::strcmp(words[i], "--cpu-time") == 0)
      cpu_time = true;
    else if (std::strcmp(words[i], "--json") == 0 && i + 1 < count)
      o.json = words[++i];
    else if (std::strcmp(words[i], "--seconds") == 0 && i + 1 < count)
      o.seconds = std::strtod(words[++i], nullptr);
    else
      words[kept++] = words[i];
  }
  count = kept;
  return o;
}

int run_all(int count, char** words) {
  const double start = now();
  const options o = parse(count, words);
  benchmark::Initialize(&count, words);
  if (benchmark::ReportUnrecognizedArguments(count, words)) return 2;

  const index most = std::max(1u, std::thread::hardware_concurrency());
  std::vector<index> threads{1};
  for (const index n : {index{2}, most})
    if (n > threads.back() && n <= most) threads.push_back(n);
  std::vector<std::unique_ptr<kda::thread_pool>> pools;
  std::vector<team> teams;
  for (const index n : threads) {
    pools.push_back(std::make_unique<kda::thread_pool>(n));
    teams.push_back({n, n == 1 ? kda::serial : pools.back()->executor()});
  }

  const double seconds = o.extent == extent::smoke ? 1e-3 : o.seconds;
  machine m(teams, seconds);
  if (o.extent != extent::smoke) std::printf("measuring this machine's limits\n");
  m.measure_all(o.extent == extent::smoke);
  for (const peak& p : m.peaks) std::printf("%-8s %td threads: %8.1f GFLOP/s\n", p.isa.c_str(), p.threads, p.gflops);
  for (const in_place_rate& r : m.rates)
    std::printf("%-8s %td threads: %8.1f GB/s in place over %td KiB\n", r.level.c_str(), r.threads, r.best(),
                r.bytes >> 10);
  std::fflush(stdout);

  runner runner(m);
  const std::vector<request> all = requests(o.extent, threads);
  for (const request& r : all)
    benchmark::RegisterBenchmark(r.what.name().c_str(), [&](benchmark::State& state) { runner.run(state, r); })
        ->UseManualTime()
        ->MinTime(seconds)
        ->Unit(benchmark::kMicrosecond);
  benchmark::RunSpecifiedBenchmarks();

  std::vector<ratio> ratios;
  if (o.ratios) ratios = measure_ratios(m, o.extent, seconds);
  for (const ratio& r : ratios)
    std::printf("%-72s %-7s %td threads: %.3f  %s\n", r.what.c_str(), r.isa.c_str(), r.threads, r.seconds / r.against,
                r.reach.c_str());
  if (!o.json.empty()) write_json(o.json, m, runner.rows, ratios);
  std::printf("kda_benchmarks: %zu rows, %zu ratios, %.0f s%s\n", runner.rows.size(), ratios.size(), now() - start,
              runner.failed ? ", some FAILED" : "");
  return runner.failed ? 1 : 0;
}

}  // namespace

}  // namespace bench

int main(int count, char** words) {
  try {
    return bench::run_all(count, words);
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "kda_benchmarks: %s\n", e.what());
    return 1;
  }
}
