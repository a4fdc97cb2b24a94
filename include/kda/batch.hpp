// SPDX-License-Identifier: Apache-2.0
// A batch as a serving engine has it: sequences packed one behind the other, each with slots in a pool of states.
#pragma once
#include "config.hpp"
#include "view.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>

namespace kda::inline v0 {

/// Integers of either width, as engines store them. Build it with kda::indices().
struct index_list {
  const std::int32_t* narrow = nullptr;
  const std::int64_t* wide = nullptr;
  std::ptrdiff_t size = 0;

  [[nodiscard]] KDA_INLINE constexpr std::int64_t operator[](std::ptrdiff_t i) const {
    return narrow != nullptr ? narrow[i] : wide[i];
  }
  [[nodiscard]] KDA_INLINE constexpr bool is_null() const { return narrow == nullptr && wide == nullptr; }
};
[[nodiscard]] KDA_INLINE constexpr index_list indices(const std::int32_t* data, std::ptrdiff_t size) {
  return {.narrow = data, .size = size};
}
[[nodiscard]] KDA_INLINE constexpr index_list indices(const std::int64_t* data, std::ptrdiff_t size) {
  return {.wide = data, .size = size};
}

/// N sequences in one packed tensor of T tokens, in any order and of any length, 0 included.
///
/// A sequence whose store slot, or whose load slot when it has an initial state, is below the pool's `first_slot` is
/// padding: no state is touched and its outputs are zeros. Store slots must differ from each other, and a slot that one
/// sequence loads may not be stored by another; a sequence's own two slots may be equal (in place) or not (then the
/// load slot stays as it is).
struct sequences {
  index_list offsets{};      ///< [N + 1], rising (cu_seqlens): sequence n is tokens offsets[n] to offsets[n + 1] - 1
  index_list load_slots{};   ///< [N] slot with the state before the first token
  index_list store_slots{};  ///< [N] slot that gets the state after the last token
  /// [N] false: the sequence is fresh. It starts from zeros and its load slot is not read, whatever it holds.
  view<const bool, 1> has_initial_state{};
  /// [N] position of each sequence's first token in its whole prompt; empty: 0. It anchors the chunk grid of prefill: a
  /// prompt cut at multiples of chunk_tokens gives the bits of one call.
  index_list first_position{};
};

/// Tokens of one chunk of prefill with fp32 products, on every ISA.
inline constexpr std::ptrdiff_t chunk_tokens = 16;

/// Pool of recurrent states: `slots` blocks, `slot_stride` elements apart; in a block [HV, K, V] (layout::key_major) or
/// [HV, V, K] (layout::value_major) without gaps.
template <class T> struct state_pool {
  T* data = nullptr;
  std::ptrdiff_t slots = 0;
  std::ptrdiff_t slot_stride = 0;
  std::int64_t first_slot = 0;  ///< ids below are padding (0: negative ids; 1: vLLM's null block 0 too)
};

/// Pool of convolution states: per slot the last `columns` >= W - 1 raw inputs (before convolution and activation) of
/// each channel, oldest first. Element (slot, column, channel) lies at slot * slot_stride + column * column_stride +
/// channel for conv_state::time_major and at slot * slot_stride + channel * channel_stride + column for
/// conv_state::channel_major.
template <class T> struct conv_pool {
  T* data = nullptr;
  std::ptrdiff_t slots = 0;
  std::ptrdiff_t slot_stride = 0;
  std::ptrdiff_t columns = 0;
  std::ptrdiff_t stride = 0;  ///< column_stride or channel_stride, by layout
  std::int64_t first_slot = 0;
};

/// Upper limits of the calls that a workspace must serve.
struct workspace_limits {
  std::ptrdiff_t sequences = 0;    ///< N
  std::ptrdiff_t concurrency = 1;  ///< of the executor
};

namespace detail {
// One task works on at most this many channels of K and, whatever V is, on this many columns of V.
inline constexpr std::ptrdiff_t max_key_dim = 256, max_value_columns = 256;
inline constexpr std::ptrdiff_t alignment = 64;

[[nodiscard]] KDA_INLINE constexpr std::ptrdiff_t round_up(std::ptrdiff_t n, std::ptrdiff_t to) {
  return (n + to - 1) / to * to;
}

// Slot table of the check: open addressing, at most half full; 16 bytes an entry.
[[nodiscard]] KDA_INLINE constexpr std::ptrdiff_t slot_table_entries(std::ptrdiff_t sequences) {
  std::ptrdiff_t n = 8;
  while (n < 2 * sequences) n *= 2;
  return n;
}
struct slot_entry {
  std::int64_t slot = 0;
  std::int64_t sequence = 0;
};

// Floats that one task needs: the state block, and the tiles of prologue.hpp and chunked.hpp.
inline constexpr std::ptrdiff_t key_tiles = 8, value_tiles = 5;
inline constexpr std::ptrdiff_t task_floats = max_key_dim * max_value_columns + key_tiles * chunk_tokens * max_key_dim +
                                              value_tiles * chunk_tokens * max_value_columns +
                                              4 * chunk_tokens * chunk_tokens + 6 * max_key_dim;
inline constexpr std::ptrdiff_t task_bytes =
    round_up(task_floats * static_cast<std::ptrdiff_t>(sizeof(float)), alignment);
}  // namespace detail

/// Bytes of workspace that serve every kernel within `limits`: they grow with sequences and concurrency, not with
/// tokens, heads or the ISA. Limits that no memory has give the largest number, which no allocator grants.
[[nodiscard]] KDA_INLINE constexpr std::ptrdiff_t workspace_bytes(const workspace_limits& limits) {
  constexpr std::ptrdiff_t most = std::ptrdiff_t{1} << 40;
  if (limits.sequences > most || limits.concurrency > most) return std::numeric_limits<std::ptrdiff_t>::max();
  const std::ptrdiff_t table =
      detail::slot_table_entries(limits.sequences) * static_cast<std::ptrdiff_t>(sizeof(detail::slot_entry));
  const std::ptrdiff_t tasks = limits.concurrency > 1 ? limits.concurrency : 1;
  return 2 * detail::alignment + detail::round_up(table, detail::alignment) + tasks * detail::task_bytes;
}

}  // namespace kda::inline v0
