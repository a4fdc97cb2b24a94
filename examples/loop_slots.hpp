// SPDX-License-Identifier: Apache-2.0
// The two pools of an engine, recurrent states and convolution windows, and who has which slot. A free slot holds NaN
// bytes, from the start and again after each owner: whoever reads it, or writes to it, is found out. One more slot at
// either end is never given out.
#pragma once
#include "loop_kernels.hpp"
#include "tensor.hpp"

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace engine {

/// Tokens that are drafted at most, besides the one that is known.
inline constexpr index most_drafts = 4;

/// A sequence's state: its slot, and where its convolution window begins.
struct place {
  std::int32_t state, window;
  index column;
};

class slot_pools {
 public:
  /// Windows longer than the convolution needs: drafts of speculating::rolling share one.
  static constexpr index columns = shape::W - 2 + most_drafts + 1;
  /// Where a window begins that is not shared: with what came last.
  static constexpr index last_window = columns - (shape::W - 1);

  explicit slot_pools(index slots)
      : slots_(slots), states_(bytes((slots + 2) * state_stride)), windows_(bytes((slots + 2) * window_stride)) {
    poison(states_.data(), std::ssize(states_) * 4);
    poison(windows_.data(), std::ssize(windows_) * 2);
    for (index s = slots; s-- > 0;) free_.push_back(static_cast<std::int32_t>(s));
  }

  [[nodiscard]] index free() const { return std::ssize(free_); }

  /// The slot that became free last, or -1.
  std::int32_t take() {
    if (free_.empty()) return -1;
    const std::int32_t s = free_.back();
    free_.pop_back();
    check_free(s);
    return s;
  }
  void give_back(std::int32_t s) {
    poison(state(s), state_stride * 4);
    poison(window(s), window_stride * 2);
    free_.push_back(s);
  }

  /// Nobody has written before or behind the pools.
  void check_ends() const {
    check_free(-1);
    check_free(slots_);
  }

  /// A sequence's state as bytes, and back into a slot of these or other pools.
  [[nodiscard]] std::vector<char> save(const place& p) {
    const kda::saved_state_args<served> a = at(p);
    std::vector<char> kept(bytes(kda::saved_state_bytes(a)));
    require(kda::save_state(a, 0, kept.data(), std::ssize(kept)));
    return kept;
  }
  void restore(std::int32_t s, const std::vector<char>& kept) {
    std::int64_t position = 0;  // which the request itself knows
    require(kda::restore_state(at({s, s, last_window}), position, kept.data(), std::ssize(kept)));
  }

  [[nodiscard]] kda::state_pool<float> states() {
    return {.data = state(0), .slots = slots_, .slot_stride = state_stride};
  }
  [[nodiscard]] kda::conv_pool<kda::bf16> windows() {
    return {.data = window(0), .slots = slots_, .slot_stride = window_stride, .columns = columns};
  }

 private:
  // Gaps between slots, as an engine's allocator leaves them.
  static constexpr index state_stride = shape::state + 24, window_stride = columns * shape::channels + 10;

  // The place as pools of one slot: state and window may lie in two slots, and a window within a longer one.
  [[nodiscard]] kda::saved_state_args<served> at(const place& p) {
    return {.value_heads = shape::HV,
            .key_dim = shape::K,
            .value_dim = shape::V,
            .channels = shape::channels,
            .width = shape::W,
            .states = {.data = state(p.state), .slots = 1},
            .conv_states = {.data = window(p.window) + p.column * shape::channels, .slots = 1}};
  }
  static constexpr std::size_t bytes(index n) { return static_cast<std::size_t>(n); }
  static void poison(void* p, index n) { std::memset(p, 0xff, bytes(n)); }
  static bool is_poisoned(const void* p, index n) {
    const auto* x = static_cast<const unsigned char*>(p);
    return x[0] == 0xff && std::memcmp(x, x + 1, bytes(n - 1)) == 0;
  }
  void check_free(index s) const {
    if (!is_poisoned(state(s), state_stride * 4) || !is_poisoned(window(s), window_stride * 2))
      throw std::runtime_error("slot " + std::to_string(s) + " was written while it was free");
  }
  [[nodiscard]] float* state(index s) { return states_.data() + (s + 1) * state_stride; }
  [[nodiscard]] const float* state(index s) const { return states_.data() + (s + 1) * state_stride; }
  [[nodiscard]] kda::bf16* window(index s) { return windows_.data() + (s + 1) * window_stride; }
  [[nodiscard]] const kda::bf16* window(index s) const { return windows_.data() + (s + 1) * window_stride; }

  index slots_;
  std::vector<float> states_;
  std::vector<kda::bf16> windows_;
  std::vector<std::int32_t> free_;
};

/// States of prompts' beginnings, one slot each, found by stream and length.
class prefix_cache {
 public:
  explicit prefix_cache(slot_pools& slots) : slots_(slots) {}

  /// The slot with the state after `position` tokens of the stream, held for this round; -1: there is none.
  std::int32_t find(std::uint64_t stream, index position, index round) {
    for (entry& e : entries_)
      if (e.stream == stream && e.position == position) return e.last_used = round, e.slot;
    return -1;
  }
  /// A slot that a call has filled; the second of two is given back.
  void add(std::uint64_t stream, index position, std::int32_t slot, index round) {
    if (find(stream, position, round) >= 0)
      slots_.give_back(slot);
    else
      entries_.push_back({stream, position, slot, round});
  }
  /// Gives back the slot that was used longest ago, if there is one that this round does not use.
  bool evict(index round) {
    auto oldest = entries_.end();
    for (auto e = entries_.begin(); e != entries_.end(); ++e)
      if (e->last_used < round && (oldest == entries_.end() || e->last_used < oldest->last_used)) oldest = e;
    if (oldest == entries_.end()) return false;
    drop(*oldest);
    return true;
  }
  void forget(std::uint64_t stream) {
    for (index i = std::ssize(entries_); i-- > 0;)
      if (entries_[static_cast<std::size_t>(i)].stream == stream) drop(entries_[static_cast<std::size_t>(i)]);
  }
  void clear() {
    while (!entries_.empty()) drop(entries_.back());
  }

 private:
  struct entry {
    std::uint64_t stream;
    index position;
    std::int32_t slot;
    index last_used;
  };
  void drop(entry& e) {
    slots_.give_back(e.slot);
    e = entries_.back();
    entries_.pop_back();
  }
  slot_pools& slots_;
  std::vector<entry> entries_;
};

}
