// SPDX-License-Identifier: Apache-2.0
// What the kernels and the reference gave, held against what a file stores.
#pragma once
#include "reader.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace golden {

/// One output: its worst error over its bound, among all ways of computing it.
class judged_output {
 public:
  judged_output(object& outputs, const std::string& name, std::initializer_list<index> shape,
                domain d = domain::numbers)
      : name_(name), stored_(outputs.output(name, shape, d)) {
    double largest = 0;
    for (const float x : stored_.data)
      if (std::isfinite(x)) largest = std::max(largest, std::abs(static_cast<double>(x)));
    bound_ = stored_.max_abs + stored_.max_rel * largest;
  }

  /// `way` says how the result came about, in case it is the worst.
  template <class T> void judge(const std::string& way, const std::vector<T>& got) {
    if (got.size() != stored_.data.size()) throw fault(name_ + " has the wrong size (" + way + ")");
    for (std::size_t i = 0; i < got.size(); ++i) {
      const auto x = static_cast<double>(got[i]), want = static_cast<double>(stored_.data[i]);
      const double off = error(x, want), ratio = off == 0 ? 0 : off / bound_;
      if (ratio > worst_) worst_ = ratio, where_ = way + ": " + text(x) + " for " + text(want) + " at " + place(i);
    }
  }

  [[nodiscard]] bool passes() const { return worst_ <= 1; }
  [[nodiscard]] std::string verdict() const {
    char number[32];
    std::snprintf(number, sizeof number, worst_ < 1e4 ? "%.2f" : "%.0e", worst_);
    return name_ + " " + number + (passes() ? "" : " (" + where_ + ")");
  }

 private:
  // |x - want|; any value that a float cannot hold stands for a stored minus infinity, and NaN is as wrong as can be.
  static double error(double x, double want) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    if (std::isinf(want)) return x < -static_cast<double>(std::numeric_limits<float>::max()) ? 0 : infinity;
    return std::isnan(x) ? infinity : std::abs(x - want);
  }
  static std::string text(double x) {
    char digits[32];
    std::snprintf(digits, sizeof digits, "%.9g", x);
    return digits;
  }
  [[nodiscard]] std::string place(std::size_t i) const {
    std::string indices;
    auto rest = static_cast<index>(i), inside = std::ssize(stored_.data);
    for (const index extent : stored_.shape) {
      inside /= extent;
      indices += indices.empty() ? "[" : ",";
      indices += std::to_string(rest / inside);
      rest %= inside;
    }
    return indices + "]";
  }

  std::string name_, where_;
  stored_output stored_;
  double bound_ = 0, worst_ = 0;
};

using judged_outputs = std::vector<judged_output>;

}  // namespace golden
