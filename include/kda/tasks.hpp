// SPDX-License-Identifier: Apache-2.0
// How a call's work reaches the executor, and the scratch that each task works in.
#pragma once
#include "batch.hpp"
#include "executor.hpp"
#include "prologue.hpp"
#include "sequence.hpp"
#include "simd/fp_scope.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

/// Workspace of a call: the check's slot table, then the scratch of each task that runs at the time.
struct call_scratch {
  detail::slot_entry* table;
  float* tasks;
};
KDA_INLINE call_scratch divide(const workspace& w, const sequences& s) {
  const auto aligned = [](std::uintptr_t p) KDA_INLINE_LAMBDA {
    constexpr std::uintptr_t to = detail::alignment;
    return (p + to - 1) / to * to;
  };
  const std::uintptr_t table = aligned(reinterpret_cast<std::uintptr_t>(w.data));
  const auto table_bytes =
      static_cast<std::uintptr_t>(detail::slot_table_entries(s.has_initial_state.shape[0] + kept_states(s))) *
      sizeof(detail::slot_entry);
  return {reinterpret_cast<detail::slot_entry*>(table), reinterpret_cast<float*>(aligned(table + table_bytes))};
}

/// The batch's sequences from the longest to the shortest, by powers of two, so that no long one begins last: order[i]
/// .sequence. It takes the place of the slot table, which nobody needs once a call is checked.
KDA_NOINLINE inline const detail::slot_entry* longest_first(const sequences& s, detail::slot_entry* order) {
  const std::ptrdiff_t n = s.has_initial_state.shape[0];
  constexpr int sizes = 65;
  const auto size_of = [&](std::ptrdiff_t i) KDA_INLINE_LAMBDA {
    const auto tokens = static_cast<std::uint64_t>(tokens_of(s, i));
    return tokens == 0 ? 0 : 64 - __builtin_clzll(tokens);
  };
  std::ptrdiff_t next[sizes + 1] = {};  // where sequences of each size go: counts, then their sums
  for (std::ptrdiff_t i = 0; i < n; ++i) ++next[sizes - 1 - size_of(i) + 1];
  for (int size = 0; size < sizes; ++size) next[size + 1] += next[size];
  for (std::ptrdiff_t i = 0; i < n; ++i) order[next[sizes - 1 - size_of(i)]++].sequence = i;
  return order;
}

/// A call cut into tasks of one sequence, one value head or a few, and a block of their columns. Whole heads as long as
/// they keep all runners busy; else blocks of whole vectors, at least 32 columns, since each repeats the work on q and k.
struct head_grid {
  const detail::slot_entry* order;
  std::ptrdiff_t sequences, first_head, heads, value_dim, block, blocks, in_turn, groups;

  struct place {
    std::ptrdiff_t sequence, head, heads, column, columns;
  };
  [[nodiscard]] KDA_INLINE std::ptrdiff_t count() const { return sequences * groups * blocks; }
  [[nodiscard]] KDA_INLINE place at(std::ptrdiff_t i) const {
    const std::ptrdiff_t column = i % blocks * block, rest = value_dim - column;
    const std::ptrdiff_t head = i / blocks % groups * in_turn, left = heads - head;
    return {static_cast<std::ptrdiff_t>(order[i / (groups * blocks)].sequence), first_head + head,
            left < in_turn ? left : in_turn, column, rest < block ? rest : block};
  }
};
/// How many heads may follow one another in a task: `most`, as long as their states [key_dim, columns] fit into its
/// scratch (0: they need none there).
struct turns {
  std::ptrdiff_t most, key_dim;
};
/// In chunks, where a page of a token-major tensor holds rows of several heads, or in a step, which convolves them first.
inline constexpr std::ptrdiff_t most_in_turn = 8;
/// In decode: their states lie side by side, and two runners on neighbouring ones disturb each other's prefetchers.
inline constexpr std::ptrdiff_t most_in_a_row = 32;

/// `splittable`: whether a head's columns may go to several tasks. Heads take turns as long as each runner has four tasks.
KDA_INLINE head_grid make_head_grid(const sequences& s, const detail::slot_entry* order, std::ptrdiff_t first_head,
                                    std::ptrdiff_t heads, std::ptrdiff_t value_dim, const executor& e, bool splittable,
                                    turns heads_in_turn) {
  constexpr std::ptrdiff_t least = 32;
  head_grid g{order, s.has_initial_state.shape[0], first_head, heads, value_dim, detail::max_value_columns, 1, 1,
              heads};
  constexpr std::ptrdiff_t many = std::ptrdiff_t{1} << 20;
  const std::ptrdiff_t runners = e.run == nullptr || e.concurrency < 1 ? 1
                                 : e.concurrency < many                ? e.concurrency
                                                                       : many;
  const std::ptrdiff_t whole = g.sequences * heads, wanted = runners == 1 ? 1 : 2 * runners;
  if (splittable && whole > 0 && whole < wanted) {
    const std::ptrdiff_t parts = (wanted + whole - 1) / whole;
    const std::ptrdiff_t columns = detail::round_up((value_dim + parts - 1) / parts, 16);
    if (columns < g.block) g.block = columns < least ? least : columns;
  }
  g.blocks = (value_dim + g.block - 1) / g.block;
  const std::ptrdiff_t state = heads_in_turn.key_dim * detail::round_up(value_dim < g.block ? value_dim : g.block, 16);
  const auto groups_of = [&](std::ptrdiff_t n) KDA_INLINE_LAMBDA { return (heads + n - 1) / n; };
  for (std::ptrdiff_t n = 2; n <= heads_in_turn.most; n *= 2) {
    if (n * state > detail::max_key_dim * detail::max_value_columns) break;
    if (g.sequences * groups_of(n) * g.blocks < 2 * wanted && e.run != nullptr) break;
    g.in_turn = n;
  }
  g.groups = groups_of(g.in_turn);
  return g;
}

/// Tasks dealt out to the runners, from the first, which are the longest, to the last. A runner takes the tasks of its own
/// share, then those left in the others. Where an executor gives a runner the same thread in each call, that thread
/// finds the states that it left in its caches.
template <class Task> struct task_queue {
  const Task& task;
  float* scratch;
  std::ptrdiff_t count, runners;

  KDA_INLINE task_queue(const Task& task_, float* scratch_, std::ptrdiff_t count_, std::ptrdiff_t runners_)
      : task(task_), scratch(scratch_), count(count_), runners(runners_) {
    for (std::ptrdiff_t r = 0; r < runners; ++r) next_of(r) = r;
  }

  /// Takes tasks until none is left, in scratch number `runner`. Never inlined, so that no arithmetic leaves the
  /// fp_scope.
  KDA_NOINLINE void drain(std::ptrdiff_t runner) {
    float* own = scratch_of(runner) + detail::alignment / static_cast<std::ptrdiff_t>(sizeof(float));
    for (std::ptrdiff_t r = 0, other = runner; r < runners; ++r, other = other + 1 < runners ? other + 1 : 0) {
      for (std::ptrdiff_t i = take(next_of(other)); i < count; i = take(next_of(other))) task(i, arena{own});
    }
  }
  static void run(void* self, std::ptrdiff_t runner) {
    const fp_scope scope;
    static_cast<task_queue*>(self)->drain(runner);
  }

 private:
  [[nodiscard]] KDA_INLINE float* scratch_of(std::ptrdiff_t runner) const {
    return scratch + runner * (detail::task_bytes / static_cast<std::ptrdiff_t>(sizeof(float)));
  }
  /// The next task of a runner's share, at the head of its scratch.
  [[nodiscard]] KDA_INLINE std::ptrdiff_t& next_of(std::ptrdiff_t runner) const {
    return *reinterpret_cast<std::ptrdiff_t*>(scratch_of(runner));
  }
  /// A task of a share; `count` or more: none is left. It is looked at first, so that the idle do not write there.
  KDA_INLINE std::ptrdiff_t take(std::ptrdiff_t& next) const {
    const std::ptrdiff_t seen = __atomic_load_n(&next, __ATOMIC_RELAXED);
    return seen < count ? __atomic_fetch_add(&next, runners, __ATOMIC_RELAXED) : seen;
  }
};

/// task(i, scratch) for i in [0, count). The executor is given as many runners as may run at a time, each with scratch
/// of its own; runners help each other, so it does not matter which of them runs, or how often, or when.
template <class Task>
KDA_INLINE void run_tasks(const executor& e, float* scratch, std::ptrdiff_t count, const Task& task) {
  if (count <= 0) return;
  const std::ptrdiff_t most = e.run == nullptr || e.concurrency < 1 ? 1 : e.concurrency;
  task_queue<Task> queue(task, scratch, count, most < count ? most : count);
  if (e.run == nullptr)
    task_queue<Task>::run(&queue, 0);
  else
    e.run(e.self, queue.runners, &task_queue<Task>::run, &queue);
}

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
