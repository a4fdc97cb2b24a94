// SPDX-License-Identifier: Apache-2.0
// kda::openmp(threads): an engine's OpenMP threads as an executor. Opt-in; compile with -fopenmp.
#pragma once
#include "../executor.hpp"

#include <cstdint>

#if !defined(_OPENMP)
#error "kda/executor/openmp.hpp: OpenMP is off; compile with -fopenmp"
#endif

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

/// Runs tasks in a parallel region of at most `threads` threads. Within another parallel region OpenMP grants one
/// thread unless it was told otherwise: the tasks then run one after the other.
[[nodiscard]] inline executor openmp(std::ptrdiff_t threads) {
  constexpr std::ptrdiff_t most = 1 << 16;
  threads = threads < 1 ? 1 : threads < most ? threads : most;
  return {
      .self = reinterpret_cast<void*>(static_cast<std::uintptr_t>(threads)),  // no object: nothing has to outlive it
      .run =
          [](void* self, std::ptrdiff_t count, executor::task f, void* context) {
            const auto limit = static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(self));
#pragma omp parallel for schedule(static, 1) \
    num_threads(static_cast <int>(count < limit ? count : limit)) if (count > 1)
            for (std::ptrdiff_t i = 0; i < count; ++i) f(context, i);
          },
      .concurrency = threads};
}

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
