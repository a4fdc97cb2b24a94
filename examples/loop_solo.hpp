// SPDX-License-Identifier: Apache-2.0
// The same request alone: calls of one sequence, on pools of one slot. The prompt goes in as one call (cut where the
// scheduler cut it, if that was off the grid), then token by token.
#pragma once
#include "loop_batch.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

namespace engine {

class solo_run {
 public:
  /// Largest difference from one call that a prompt cut off the grid may show, of its largest output.
  static constexpr double bound = 1e-5;

  solo_run(const kda::table<served>& kernels, const loop_weights& weights, std::uint64_t seed)
      : kernels_(kernels), weights_(weights), seed_(seed) {}

  /// Throws a sentence that names request and token if what the engine gave differs, outputs or the state at the end.
  /// Returns the difference of a prompt cut off the grid from one call, else 0.
  double compare(const request& r, const std::vector<char>& state_at_the_end) {
    std::vector<index> ends = r.cuts;
    ends.push_back(r.prompt);
    const std::vector<char> state = serve(r, ends, r.total);
    for (index t = 0; t < r.total; ++t) {
      const float *want = row(y_, t), *got = row(r.y, t);
      if (r.has_y[static_cast<std::size_t>(t)] == 0) continue;
      for (index c = 0; c < shape::outputs; ++c)
        if (!std::isfinite(want[c]) || std::memcmp(&want[c], &got[c], sizeof(float)) != 0)
          throw std::runtime_error(r.name() + ", token " + std::to_string(t) +
                                   (t < r.prompt ? " (prompt)" : " (decode)") + ", output " + std::to_string(c) + ": " +
                                   std::to_string(got[c]) + ", alone " + std::to_string(want[c]));
    }
    if (state != state_at_the_end)
      throw std::runtime_error(r.name() + ", after token " + std::to_string(r.total - 1) +
                               ": the state differs from the one alone");
    return r.cuts.empty() ? 0 : compare_with_one_call(r);
  }

 private:
  static const float* row(const std::vector<float>& y, index t) { return y.data() + t * shape::outputs; }

  double compare_with_one_call(const request& r) {
    serve(r, {r.prompt}, r.prompt);
    double worst = 0, largest = 0;
    index token = 0;
    for (index t = 0; t < r.prompt; ++t)
      for (index c = 0; c < shape::outputs && r.has_y[static_cast<std::size_t>(t)] != 0; ++c) {
        const double want = static_cast<double>(row(y_, t)[c]);
        const double difference = std::abs(static_cast<double>(row(r.y, t)[c]) - want);
        if (difference > worst) worst = difference, token = t;
        largest = std::max(largest, std::abs(want));
      }
    if (worst > bound * largest)
      throw std::runtime_error(r.name() + ", token " + std::to_string(token) +
                               " (prompt): " + std::to_string(worst / largest * 1e6) + "e-6 off from one call");
    return largest > 0 ? worst / largest : 0;
  }

  // The first `total` tokens into y_; returns the state after them.
  std::vector<char> serve(const request& r, const std::vector<index>& prompt_ends, index total) {
    slot_pools pools(1);
    const std::int32_t slot = pools.take();
    y_.assign(static_cast<std::size_t>(total * shape::outputs), std::numeric_limits<float>::quiet_NaN());
    index position = 0;
    const auto call = [&](index end, kda::mode mode) {
      const index n = end - position;
      if (rows_.capacity() < n) rows_ = token_rows(n);
      for (index i = 0; i < n; ++i) rows_.fill(i, seed_, r.stream(position + i), position + i);
      batch_.clear();
      batch_.add({.tokens = n,
                  .length = n,
                  .position = position,
                  .mode = mode,
                  .has_initial_state = position > 0,
                  .load = slot,
                  .store = slot});
      kda::step_args<served> args = rows_.arguments(n, weights_, pools);
      args.modes = batch_.modes(), args.sequences = batch_.lists();
      require(kernels_.step(args, {scratch_.data(), std::ssize(scratch_)}));
      std::copy_n(rows_.y(0), n * shape::outputs, y_.begin() + position * shape::outputs);
      position = end;
    };
    for (const index end : prompt_ends) call(end, kda::mode::prefill);
    while (position < total) call(position + 1, kda::mode::decode);
    return pools.save({slot, slot, slot_pools::last_window});
  }

  const kda::table<served>& kernels_;
  const loop_weights& weights_;
  std::uint64_t seed_;
  token_rows rows_{256};
  batch batch_;
  std::vector<char> scratch_ = std::vector<char>(
      static_cast<std::size_t>(kda::workspace_bytes({.sequences = 1, .kept_states = most_drafts + 1})));
  std::vector<float> y_;
};

}
