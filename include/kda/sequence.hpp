// SPDX-License-Identifier: Apache-2.0
// What the lists of a batch say of one sequence: its tokens, where its state comes from and where it goes.
#pragma once
#include "batch.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

struct sequence {
  std::ptrdiff_t index;          // in the batch
  std::ptrdiff_t first, tokens;  // of the packed tensors
  std::int64_t position;         // of token `first` in the whole prompt
  bool padding, has_initial_state, frozen, speculative;
  std::int64_t load;         // if it has an initial state
  std::int64_t load_window;  // the same for convolutions: differs with rolling windows
  std::int64_t store;        // unless frozen or speculative
};

KDA_INLINE bool is_speculative(const sequences& s, std::ptrdiff_t n) {
  return s.speculation.num_accepted.size != 0 && s.speculation.num_accepted[n] >= 0;
}
KDA_INLINE bool is_frozen(const sequences& s, std::ptrdiff_t n) { return s.frozen.data != nullptr && s.frozen.data[n]; }
KDA_INLINE std::ptrdiff_t tokens_of(const sequences& s, std::ptrdiff_t n) {
  return static_cast<std::ptrdiff_t>(s.lengths.size != 0 ? s.lengths[n] : s.offsets[n + 1] - s.offsets[n]);
}
KDA_INLINE std::int64_t position_of(const sequences& s, std::ptrdiff_t n) {
  return s.first_position.size != 0 ? s.first_position[n] : 0;
}
/// The slot that holds the state before the first token, if there is one.
KDA_INLINE std::int64_t load_slot(const sequences& s, std::ptrdiff_t n) {
  if (is_speculative(s, n) && s.speculation.num_accepted[n] > 0)
    return s.speculation.slots.at(n, static_cast<std::ptrdiff_t>(s.speculation.num_accepted[n]) - 1);
  return s.load_slots.size != 0 ? s.load_slots[n] : s.store_slots[n];
}

/// The slot that holds the convolution window before the first token.
KDA_INLINE std::int64_t load_window_slot(const sequences& s, std::ptrdiff_t n) {
  if (s.speculation.rolling_windows && is_speculative(s, n) && s.speculation.num_accepted[n] > 0)
    return s.speculation.slots.at(n, 0);
  return load_slot(s, n);
}

/// States that the check's slot table must hold besides one for each sequence.
KDA_INLINE std::ptrdiff_t kept_states(const sequences& s) {
  return s.checkpoints.slots.size + s.speculation.slots.rows * s.speculation.slots.columns();
}

KDA_NOINLINE inline sequence sequence_at(const sequences& s, std::ptrdiff_t n, std::int64_t first_slot) {
  sequence q{};
  q.index = n;
  q.first = static_cast<std::ptrdiff_t>(s.offsets[n]);
  q.tokens = tokens_of(s, n);
  q.position = position_of(s, n);
  q.has_initial_state = s.has_initial_state.data[n];
  q.frozen = is_frozen(s, n);
  q.speculative = is_speculative(s, n);
  if (q.has_initial_state) {
    q.load = load_slot(s, n);
    q.load_window = load_window_slot(s, n);
    q.padding = q.load < first_slot || q.load_window < first_slot;
  }
  if (q.frozen) return q;
  if (q.speculative) {
    q.padding = q.padding || (q.tokens > 0 && s.speculation.slots.at(n, 0) < first_slot);
  } else {
    q.store = s.store_slots[n];
    q.padding = q.padding || q.store < first_slot;
  }
  return q;
}

/// The checkpoints of one sequence, in order.
class checkpoint_walk {
 public:
  KDA_INLINE checkpoint_walk(const sequences& s, std::ptrdiff_t n)
      : lists_(&s.checkpoints), position_(position_of(s, n)) {
    if (lists_->begin.size == 0) return;
    begin_ = at_ = static_cast<std::ptrdiff_t>(lists_->begin[n]);
    end_ = static_cast<std::ptrdiff_t>(lists_->begin[n + 1]);
  }
  [[nodiscard]] KDA_INLINE bool done() const { return at_ == end_; }
  /// It is taken after so many tokens of this call.
  [[nodiscard]] KDA_INLINE std::int64_t tokens() const {
    const std::int64_t position = lists_->positions.size != 0
                                      ? lists_->positions[at_]
                                      : (position_ / lists_->interval + 1 + (at_ - begin_)) * lists_->interval;
    return position - position_;
  }
  [[nodiscard]] KDA_INLINE std::int64_t slot() const { return lists_->slots[at_]; }
  KDA_INLINE void advance() { ++at_; }

 private:
  const checkpoints* lists_;
  std::int64_t position_;
  std::ptrdiff_t begin_ = 0, at_ = 0, end_ = 0;
};

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
