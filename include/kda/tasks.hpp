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

template <class Task> struct task_queue {
  const Task& task;
  float* scratch;
  std::ptrdiff_t count, next;

  /// Takes tasks until none is left, in scratch number `runner`. Never inlined, so that no arithmetic leaves the
  /// fp_scope.
  KDA_NOINLINE void drain(std::ptrdiff_t runner) {
    float* own = scratch + runner * (detail::task_bytes / static_cast<std::ptrdiff_t>(sizeof(float)));
    for (;;) {
      const std::ptrdiff_t i = __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
      if (i >= count) return;
      task(i, arena{own});
    }
  }
  static void run(void* self, std::ptrdiff_t runner) {
    const fp_scope scope;
    static_cast<task_queue*>(self)->drain(runner);
  }
};

/// task(i, scratch) for i in [0, count). The executor is given as many runners as may run at a time, each with scratch
/// of its own; runners take tasks from a queue, so it does not matter which of them runs, or how often, or when.
template <class Task>
KDA_INLINE void run_tasks(const executor& e, float* scratch, std::ptrdiff_t count, const Task& task) {
  if (count <= 0) return;
  task_queue<Task> queue{task, scratch, count, 0};
  const std::ptrdiff_t most = e.run == nullptr || e.concurrency < 1 ? 1 : e.concurrency;
  if (e.run == nullptr)
    task_queue<Task>::run(&queue, 0);
  else
    e.run(e.self, most < count ? most : count, &task_queue<Task>::run, &queue);
}

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
