// SPDX-License-Identifier: Apache-2.0
// The threads of the example programs: kda's own pool, which an engine without one may take too, and a loop over it.
#pragma once
#include <kda/executor/thread_pool.hpp>

#include <cstddef>

namespace engine {

class thread_pool : public kda::thread_pool {
 public:
  using kda::thread_pool::thread_pool;

  /// f(i) for every i in [0, count); f must not throw.
  template <class F> void for_each(std::ptrdiff_t count, F f) {
    run(
        count, [](void* self, std::ptrdiff_t i) { (*static_cast<F*>(self))(i); }, &f);
  }
};

}
