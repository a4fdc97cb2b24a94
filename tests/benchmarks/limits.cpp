// SPDX-License-Identifier: Apache-2.0
// The machine's limits: peak of multiply-adds, and the rate of reading and writing in place.
#include "limits.hpp"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <fstream>
#include <stdexcept>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bench {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
double now_for(index threads) {
  if (!cpu_time || threads != 1) return now();
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

const limit_table* limits_of(kda::isa wanted) {
  if (static_cast<int>(wanted) > static_cast<int>(kda::best_isa())) return nullptr;
  for (const kda::built_kernels* b = limit_kernels_built; b->isa != nullptr; ++b)
    if (std::string(b->isa) == kda::name(wanted)) return static_cast<const limit_table*>(b->table());
  return nullptr;
}

namespace {

#if defined(__x86_64__)
constexpr index dpbf16_chains = 12, dpbf16_rounds = 20'000, dpbf16_flops = 64 * dpbf16_chains * dpbf16_rounds;

// As limit_table::fma: a product of two pairs of bf16 in each of 16 lanes.
[[gnu::target("avx512f,avx512bf16")]] float dpbf16() {
  volatile short factor = 0x3a00;  // 2^-11
  const __m512i pairs = _mm512_set1_epi16(factor);
  const __m512bh a = reinterpret_cast<__m512bh>(pairs);
  __m512 sum[dpbf16_chains];
  KDA_UNROLL
  for (index j = 0; j < dpbf16_chains; ++j) sum[j] = _mm512_set1_ps(0.01f * static_cast<float>(j));
  KDA_NO_UNROLL
  for (index i = 0; i < dpbf16_rounds; ++i) KDA_UNROLL
  for (index j = 0; j < dpbf16_chains; ++j) sum[j] = _mm512_dpbf16_ps(sum[j], a, a);
  float total = 0, lanes[16];
  KDA_UNROLL
  for (index j = 0; j < dpbf16_chains; ++j) {
    _mm512_storeu_ps(lanes, sum[j]);
    total += lanes[0];
  }
  return total;
}
#endif

// Several calls of f on each thread, so that handing them out counts for little.
template <class F> double gflops_of(const team& t, double seconds, double flops, F f) {
  [[maybe_unused]] volatile float sink = 0;
  const index calls = 4 * t.threads;
  const double taken =
      shortest(seconds, t.threads, [&] { for_each_task(t.executor, calls, [&](index) { sink = f(); }); });
  return flops * static_cast<double>(calls) / taken / 1e9;
}

// Bytes of the data cache of a level, as Linux reports it: what CPUID says may be another virtual machine's share too.
index cache_bytes(int level, index otherwise) {
  for (int i = 0; i < 8; ++i) {
    const std::string folder = "/sys/devices/system/cpu/cpu0/cache/index" + std::to_string(i) + "/";
    std::string type, size;
    int its_level = 0;
    std::ifstream(folder + "level") >> its_level;
    std::ifstream(folder + "type") >> type;
    std::ifstream(folder + "size") >> size;
    if (its_level != level || type == "Instruction" || size.empty()) continue;
    return static_cast<index>(std::stol(size)) << (size.back() == 'M' ? 20 : 10);
  }
  return otherwise;
}

index blocks_of(index bytes) { return std::max<index>(bytes / (4 * block_floats), 1); }

}  // namespace

const kda::executor& machine::executor(index threads) const {
  for (const team& t : teams_)
    if (t.threads == threads) return t.executor;
  throw std::invalid_argument("no such team");
}

double machine::fma_gflops(kda::isa isa, index threads) {
  for (const peak& p : peaks)
    if (p.isa == kda::name(isa) && p.threads == threads) return p.gflops;
  const limit_table* table = limits_of(isa);
  if (table == nullptr) throw std::invalid_argument("no limits for this ISA");
  const double gflops =
      gflops_of({threads, executor(threads)}, seconds_, static_cast<double>(table->flops), table->fma);
  peaks.push_back({kda::name(isa), threads, gflops});
  return gflops;
}

index machine::sweep(index bytes, index threads, pattern p) {
  const index blocks = blocks_of(bytes), passes = std::max<index>(1, (index{1} << 24) / bytes),
              parts = std::min(threads, blocks);
  if (buffer_.size() < blocks * block_floats) {
    buffer_ = {};
    buffer_ = random_array<float>(blocks * block_floats, 1, -1, 1, pages::huge);
  }
  const limit_table* table = nullptr;
  for (int i = static_cast<int>(kda::best_isa()); table == nullptr && i >= 0; --i)
    table = limits_of(static_cast<kda::isa>(i));
  const auto pass = p == pattern::one_stream ? table->one_stream : table->four_streams;
  for_each_task(executor(threads), parts, [&](index i) {
    const index first = blocks * i / parts, end = blocks * (i + 1) / parts;
    for (index n = 0; n < passes; ++n) pass(buffer_.data() + first * block_floats, end - first, 1.f);
  });
  return passes;
}

double machine::in_place_gbps(index bytes, index threads, const std::string& level) {
  for (const in_place_rate& r : rates)
    if (r.bytes == bytes && r.threads == threads) return r.best();
  const auto rate = [&](pattern p) {
    index passes = 0;
    const double taken = shortest(seconds_, threads, [&] { passes = sweep(bytes, threads, p); });
    return 2 * static_cast<double>(4 * blocks_of(bytes) * block_floats * passes) / taken / 1e9;
  };
  rates.push_back({level, bytes, threads, rate(pattern::one_stream), rate(pattern::four_streams)});
  return rates.back().best();
}

void machine::measure_all(bool small) {
  const index l2 = cache_bytes(2, index{1} << 20);
  const index l3 = cache_bytes(3, index{16} << 20);
  for (const team& t : teams_) {
    for (int i = 0; i <= static_cast<int>(kda::best_isa()); ++i)
      if (limits_of(static_cast<kda::isa>(i)) != nullptr) fma_gflops(static_cast<kda::isa>(i), t.threads);
#if defined(__x86_64__)
    if (kda::best_isa() >= kda::isa::avx512_bf16)
      peaks.push_back({"dpbf16", t.threads, gflops_of(t, seconds_, static_cast<double>(dpbf16_flops), dpbf16)});
#endif
    in_place_gbps(l2 / 2 * t.threads, t.threads, "L2");
    in_place_gbps(std::max(l3 / 4, 2 * l2 * t.threads), t.threads, "L3");
    if (!small) in_place_gbps(std::max<index>(8 * l3, index{512} << 20), t.threads, "DRAM");
  }
}

}  // namespace bench
