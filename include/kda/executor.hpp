// SPDX-License-Identifier: Apache-2.0
// Who runs the tasks of a call, and the scratch memory they run in. Both belong to the caller: the library starts no
// thread and allocates nothing.
#pragma once
#include "config.hpp"

#include <cstddef>

namespace kda::inline v0 {

/// Runs `task(context, i)` once for every i in [0, count), in any order, on any threads, and returns when all have
/// ended. Two pointers rather than a template parameter, so that no kernel is compiled once more for each executor.
struct executor {
  using task = void (*)(void* context, std::ptrdiff_t i);
  void* self = nullptr;
  void (*run)(void* self, std::ptrdiff_t count, task f, void* context) = nullptr;  ///< null: on the calling thread
  std::ptrdiff_t concurrency = 1;  ///< tasks that are worth running at a time; each has scratch of its own
};

/// Everything on the calling thread.
inline constexpr executor serial{};

}  // namespace kda::inline v0

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

/// The executor of an engine's own pool: `parallel_for(count, f)` is to call f(i) once for every i in [0, count) and to
/// return when all have ended. It must outlive the executor.
template <class ParallelFor>
[[nodiscard]] KDA_INLINE constexpr executor executor_of(ParallelFor& parallel_for, std::ptrdiff_t concurrency) {
  return {
      .self = const_cast<void*>(static_cast<const void*>(&parallel_for)),  // the type below has the const
      .run = [](void* self, std::ptrdiff_t count, executor::task f,
                void* context) { (*static_cast<ParallelFor*>(self))(count, [=](std::ptrdiff_t i) { f(context, i); }); },
      .concurrency = concurrency};
}

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE

namespace kda::inline v0 {

/// Whether a call looks at its arguments first. Unchecked, a wrong argument is undefined behaviour.
enum class checking { checked, unchecked };
inline constexpr checking unchecked = checking::unchecked;

/// Scratch memory for one call, of any alignment; nothing in it is read before it is written, nothing outlives the
/// call. Size: workspace_bytes() in batch.hpp.
struct workspace {
  void* data = nullptr;
  std::ptrdiff_t bytes = 0;
};

}  // namespace kda::inline v0
