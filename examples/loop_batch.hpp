// SPDX-License-Identifier: Apache-2.0
// The lists of a call, as an engine keeps them: one entry pushed per sequence, cleared and filled again each round.
#pragma once
#include "loop_requests.hpp"

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace engine {

/// What one sequence of a batch does.
struct batch_entry {
  index tokens = 0;  ///< rows of the tensors
  index length = 0;  ///< of these, the first so many are looked at
  index position = 0;
  kda::mode mode = kda::mode::decode;
  bool has_initial_state = true, frozen = false;
  std::int32_t load = -1, store = -1;
  const std::int32_t* drafts = nullptr;        ///< [most_drafts + 1]: a slot for each token's state
  index accepted = -1;                         ///< with `drafts`: of the last call
  std::vector<std::int32_t> checkpoints = {};  ///< slots, one for each multiple of the interval
};

class batch {
 public:
  static constexpr index most_sequences = 64;
  static constexpr index most_kept = most_sequences * (most_drafts + 1) + 128;

  /// rolling: as kda::speculation::rolling_windows, which holds for a whole call.
  explicit batch(index checkpoint_interval = 0, bool rolling = false)
      : interval_(checkpoint_interval), rolling_(rolling) {
    clear();
  }

  /// No sequence; the first one's tokens will begin at a row of the tensors.
  void clear(index first_row = 0) {
    offsets_.assign(1, first_row), checkpoint_begin_.assign(1, 0);
    for (auto* list : {&load_, &store_, &lengths_, &accepted_, &drafts_, &checkpoint_slots_}) list->clear();
    positions_.clear(), modes_.clear();
    any_frozen_ = false;
  }

  void add(const batch_entry& e) {
    const auto n = static_cast<std::size_t>(size());
    has_initial_state_.at(n) = e.has_initial_state, frozen_.at(n) = e.frozen;
    any_frozen_ = any_frozen_ || e.frozen;
    offsets_.push_back(offsets_.back() + e.tokens);
    lengths_.push_back(static_cast<std::int32_t>(e.length));
    positions_.push_back(e.position), modes_.push_back(e.mode);
    load_.push_back(e.load), store_.push_back(e.store);
    accepted_.push_back(e.drafts == nullptr ? -1 : static_cast<std::int32_t>(e.accepted));
    for (index j = 0; j <= most_drafts; ++j) drafts_.push_back(e.drafts == nullptr ? -1 : e.drafts[j]);
    checkpoint_slots_.insert(checkpoint_slots_.end(), e.checkpoints.begin(), e.checkpoints.end());
    checkpoint_begin_.push_back(std::ssize(checkpoint_slots_));
  }

  [[nodiscard]] index size() const { return std::ssize(store_); }
  [[nodiscard]] index end_row() const { return offsets_.back(); }
  [[nodiscard]] bool any_frozen() const { return any_frozen_; }

  [[nodiscard]] kda::sequences lists() const {
    const index n = size();
    return {.offsets = kda::indices(offsets_.data(), n + 1),
            .lengths = kda::indices(lengths_.data(), n),
            .load_slots = kda::indices(load_.data(), n),
            .store_slots = kda::indices(store_.data(), n),
            .has_initial_state = kda::packed(has_initial_state_.data(), n),
            .frozen = kda::packed(frozen_.data(), n),
            .first_position = kda::indices(positions_.data(), n),
            .checkpoints = {.begin = kda::indices(checkpoint_begin_.data(), n + 1),
                            .slots = kda::indices(checkpoint_slots_.data(), std::ssize(checkpoint_slots_)),
                            .interval = interval_},
            .speculation = {.slots = kda::indices_table(drafts_.data(), n, most_drafts + 1),
                            .num_accepted = kda::indices(accepted_.data(), n),
                            .rolling_windows = rolling_}};
  }
  [[nodiscard]] kda::view<const kda::mode, 1> modes() const { return all(modes_); }

 private:
  index interval_;
  bool rolling_;
  std::vector<std::int64_t> offsets_, positions_, checkpoint_begin_;
  std::vector<std::int32_t> load_, store_, lengths_, accepted_, drafts_, checkpoint_slots_;
  std::array<bool, most_sequences> has_initial_state_{}, frozen_{};  // std::vector<bool> is none of bool
  std::vector<kda::mode> modes_;
  bool any_frozen_ = false;
};

}
