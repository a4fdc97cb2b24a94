// SPDX-License-Identifier: Apache-2.0
// A batch as a serving engine has it: sequences packed one behind the other, each with slots in a pool of states.
#pragma once
#include "config.hpp"
#include "spec.hpp"
#include "view.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>

namespace kda::inline v0 {

/// Integers of either width, as engines store them, or the multiples of a number. Build it with kda::indices() or
/// kda::multiples().
struct index_list {
  const std::int32_t* narrow = nullptr;
  const std::int64_t* wide = nullptr;
  std::ptrdiff_t size = 0;
  std::ptrdiff_t stride = 1;  ///< elements between neighbours: a column of a table is a list
  bool is_multiples = false;  ///< no memory: entry i is i * stride

  [[nodiscard]] KDA_INLINE constexpr std::int64_t operator[](std::ptrdiff_t i) const {
    return narrow != nullptr ? narrow[i * stride] : wide != nullptr ? wide[i * stride] : i * stride;
  }
  [[nodiscard]] KDA_INLINE constexpr bool is_null() const {
    return narrow == nullptr && wide == nullptr && !is_multiples;
  }
};
[[nodiscard]] KDA_INLINE constexpr index_list indices(const std::int32_t* data, std::ptrdiff_t size,
                                                      std::ptrdiff_t stride = 1) {
  return {.narrow = data, .size = size, .stride = stride};
}
[[nodiscard]] KDA_INLINE constexpr index_list indices(const std::int64_t* data, std::ptrdiff_t size,
                                                      std::ptrdiff_t stride = 1) {
  return {.wide = data, .size = size, .stride = stride};
}
template <class Int, std::size_t N> [[nodiscard]] KDA_INLINE constexpr index_list indices(const Int (&array)[N]) {
  return indices(array, static_cast<std::ptrdiff_t>(N));
}
/// 0, step, 2 step, ...: `multiples(T, B + 1)` are the offsets of [B, T, ...] tensors, seen as [B * T, ...].
[[nodiscard]] KDA_INLINE constexpr index_list multiples(std::ptrdiff_t step, std::ptrdiff_t size) {
  return {.size = size, .stride = step, .is_multiples = true};
}

/// Matrix of integers: row i begins `row_stride` elements after row i - 1.
struct index_table {
  index_list first_row{};
  std::ptrdiff_t rows = 0, row_stride = 0;

  [[nodiscard]] KDA_INLINE constexpr std::ptrdiff_t columns() const { return first_row.size; }
  [[nodiscard]] KDA_INLINE constexpr std::int64_t at(std::ptrdiff_t row, std::ptrdiff_t column) const {
    const std::ptrdiff_t i = row * row_stride + column;
    return first_row.narrow != nullptr ? first_row.narrow[i] : first_row.wide[i];
  }
};
/// [rows, columns] without gaps, or with rows `row_stride` apart.
template <class Int>
[[nodiscard]] KDA_INLINE constexpr index_table indices_table(const Int* data, std::ptrdiff_t rows,
                                                             std::ptrdiff_t columns, std::ptrdiff_t row_stride = 0) {
  return {.first_row = indices(data, columns), .rows = rows, .row_stride = row_stride == 0 ? columns : row_stride};
}

/// States that a call keeps on its way, for a prefix cache: recurrent state and convolution window after given
/// positions, each in a slot of its own. A position counts from the start of the whole prompt: it is the number of
/// tokens that the state has seen. Where checkpoints are taken never changes another bit.
struct checkpoints {
  /// [N + 1] rising: sequence n's entries are begin[n] to begin[n + 1] - 1; left out: no checkpoint
  index_list begin{};
  index_list slots{};  ///< [M] where they go; an entry below the pool's first_slot is skipped
  /// [M] rising within a sequence, above its first_position and at most first_position + its tokens; or left out:
  index_list positions{};
  /// every `interval` tokens: sequence n has one entry for each multiple in that range, in order.
  std::int64_t interval = 0;
};

/// Speculative decoding that keeps the state after each token: the next call goes on from whichever was accepted.
/// Sequence n reads slot slots[n, num_accepted[n] - 1] and writes the state after its token j to slots[n, j], which may
/// be the slot that it read. num_accepted[n] = 0: it reads load_slots[n] instead. num_accepted[n] < 0: the sequence is
/// not speculative and uses load_slots[n] and store_slots[n].
struct speculation {
  index_table slots{};        ///< [N, at least the longest speculative sequence]; left out: no speculation
  index_list num_accepted{};  ///< [N]
  /// Convolution states: false: a window in each slot, as the recurrent states. true: all windows of a sequence in
  /// slots[n, 0], one column apart: the window after token j is columns j to j + W - 2, which needs
  /// columns >= W - 2 + tokens (vLLM).
  bool rolling_windows = false;
};

/// N sequences in one packed tensor of T tokens, in any order and of any length, 0 included.
///
/// A sequence whose store slot, or whose load slot when it has an initial state, is below the pool's `first_slot` is
/// padding: no state is touched and its outputs are zeros. Slots that are written (stores, checkpoints, speculation)
/// must differ from each other, and a slot that one sequence loads may not be written by another; what a sequence loads
/// and what it stores may be one slot (in place) or two (then the load slot stays as it is).
struct sequences {
  index_list offsets{};  ///< [N + 1], rising (cu_seqlens): sequence n is tokens offsets[n] to offsets[n + 1] - 1
  /// [N] only the first lengths[n] tokens of each sequence: the others are neither read nor written. Left out: all.
  /// Padded batches, and the commit of accepted tokens.
  index_list lengths{};
  index_list load_slots{};   ///< [N] slot with the state before the first token; left out: store_slots
  index_list store_slots{};  ///< [N] slot that gets the state after the last token
  /// [N] false: the sequence is fresh. It starts from zeros and its load slot is not read, whatever it holds.
  view<const bool, 1> has_initial_state{};
  /// [N] true: outputs only. States are read and nothing is stored (store slots are not looked at): a draft that may be
  /// thrown away, to be committed later by a call with `lengths`. Left out: all are stored.
  view<const bool, 1> frozen{};
  /// [N] position of each sequence's first token in its whole prompt; left out: 0. It anchors the chunk grid of prefill
  /// (a prompt cut at multiples of chunk_tokens gives the bits of one call) and checkpoints.
  index_list first_position{};
  kda::checkpoints checkpoints{};
  kda::speculation speculation{};
};

/// Tokens of one chunk of prefill with fp32 products, on every ISA.
inline constexpr std::ptrdiff_t chunk_tokens = 16;

/// Pool of recurrent states: `slots` blocks, `slot_stride` elements apart (0: without gaps); in a block [HV, K, V]
/// (layout::key_major) or [HV, V, K] (layout::value_major) without gaps.
template <class T> struct state_pool {
  T* data = nullptr;
  std::ptrdiff_t slots = 0;
  std::ptrdiff_t slot_stride = 0;
  std::int64_t first_slot = 0;  ///< ids below are padding (0: negative ids; 1: vLLM's null block 0 too)
};

/// Pool of convolution states: per slot the last `columns` >= W - 1 raw inputs (before convolution and activation) of
/// each channel, oldest first. Element (slot, column, channel) lies at slot * slot_stride + column * column_stride +
/// channel for conv_state::time_major and at slot * slot_stride + channel * channel_stride + column for
/// conv_state::channel_major. Zeros stand for W - 1 columns and no gaps.
template <class T> struct conv_pool {
  T* data = nullptr;
  std::ptrdiff_t slots = 0;
  std::ptrdiff_t slot_stride = 0;
  std::ptrdiff_t columns = 0;
  std::ptrdiff_t stride = 0;  ///< column_stride or channel_stride, by layout
  std::int64_t first_slot = 0;
};

/// a b and a + b of extents and strides, which may be whatever a caller claims: held at the largest number, never
/// wrapped.
KDA_INLINE constexpr std::ptrdiff_t times(std::ptrdiff_t a, std::ptrdiff_t b) {
  std::ptrdiff_t c = 0;
  return __builtin_mul_overflow(a, b, &c) ? std::numeric_limits<std::ptrdiff_t>::max() : c;
}
KDA_INLINE constexpr std::ptrdiff_t plus(std::ptrdiff_t a, std::ptrdiff_t b) {
  std::ptrdiff_t c = 0;
  return __builtin_add_overflow(a, b, &c) ? std::numeric_limits<std::ptrdiff_t>::max() : c;
}

/// Elements from one slot to the next.
template <class T> KDA_INLINE constexpr std::ptrdiff_t slot_stride(const state_pool<T>& p, std::ptrdiff_t elements) {
  return p.slot_stride == 0 ? elements : p.slot_stride;
}
/// A pool whose zeros have been replaced by what they stand for.
template <conv_state Order, class T>
KDA_INLINE constexpr conv_pool<T> spelt_out(conv_pool<T> p, std::ptrdiff_t channels, std::ptrdiff_t taps) {
  constexpr bool channel_major = Order == conv_state::channel_major;
  if (p.columns == 0) p.columns = taps - 1;
  if (p.stride == 0) p.stride = channel_major ? p.columns : channels;
  if (p.slot_stride == 0) p.slot_stride = times(channel_major ? channels : p.columns, p.stride);
  return p;
}

/// Upper limits of the calls that a workspace must serve.
struct workspace_limits {
  std::ptrdiff_t sequences = 0;    ///< N
  std::ptrdiff_t kept_states = 0;  ///< checkpoints, and entries of the table of speculation
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
[[nodiscard]] KDA_INLINE constexpr std::ptrdiff_t slot_table_entries(std::ptrdiff_t slots) {
  std::ptrdiff_t n = 8;
  while (n < 2 * slots) n *= 2;
  return n;
}
struct slot_entry {
  std::int64_t slot = 0;
  std::int64_t sequence = 0;
};

// Floats that one task needs: the state block and the copy of it that a checkpoint off the grid needs, the tiles of
// prologue.hpp and chunked.hpp, S and u as pairs of bf16, the convolution's outputs in step.hpp.
inline constexpr std::ptrdiff_t key_tiles = 13, value_tiles = 7;
inline constexpr std::ptrdiff_t task_floats = 2 * max_key_dim * max_value_columns +
                                              key_tiles * chunk_tokens * max_key_dim +
                                              value_tiles * chunk_tokens * max_value_columns + 16 * max_key_dim +
                                              40 * chunk_tokens * chunk_tokens + 6 * max_key_dim;
// Scratch of one runner: its share of task_queue, then the task at hand.
inline constexpr std::ptrdiff_t task_bytes =
    alignment + round_up(task_floats * static_cast<std::ptrdiff_t>(sizeof(float)), alignment);
}  // namespace detail

/// Bytes of workspace that serve every kernel within `limits`: they grow with sequences and concurrency, not with
/// tokens, heads or the ISA. Limits that no memory has give the largest number, which no allocator grants.
[[nodiscard]] KDA_INLINE constexpr std::ptrdiff_t workspace_bytes(const workspace_limits& limits) {
  constexpr std::ptrdiff_t most = std::ptrdiff_t{1} << 40;
  if (limits.sequences > most || limits.kept_states > most || limits.concurrency > most)
    return std::numeric_limits<std::ptrdiff_t>::max();
  const std::ptrdiff_t table = detail::slot_table_entries(limits.sequences + limits.kept_states) *
                               static_cast<std::ptrdiff_t>(sizeof(detail::slot_entry));
  const std::ptrdiff_t tasks = limits.concurrency > 1 ? limits.concurrency : 1;
  return 2 * detail::alignment + detail::round_up(table, detail::alignment) + tasks * detail::task_bytes;
}

}  // namespace kda::inline v0
