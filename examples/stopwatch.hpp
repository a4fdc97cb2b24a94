// SPDX-License-Identifier: Apache-2.0
// Wall-clock time of the examples' stages.
#pragma once
#include <chrono>
#include <utility>

namespace engine {

class stopwatch {
 public:
  /// Seconds since the last lap, or since the beginning.
  double lap() {
    const auto now = std::chrono::steady_clock::now();
    return std::chrono::duration<double>(now - std::exchange(last_, now)).count();
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

}
