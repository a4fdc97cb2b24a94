// SPDX-License-Identifier: Apache-2.0
// Every question that is asked of a call before it writes anything. The first answer that is no is the call's status.
#pragma once
#include "args.hpp"
#include "executor.hpp"
#include "sequence.hpp"
#include "status.hpp"

#include <limits>

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

/// Whether so many elements fit into an address space.
template <class T> KDA_INLINE bool addressable(std::ptrdiff_t elements) {
  return times(elements, static_cast<std::ptrdiff_t>(sizeof(T))) < std::numeric_limits<std::ptrdiff_t>::max();
}

/// What two of three arguments say; the third is then the one at fault.
KDA_INLINE std::ptrdiff_t majority(std::ptrdiff_t a, std::ptrdiff_t b, std::ptrdiff_t c) { return a == b ? a : c; }

/// Bytes that a tensor reaches over: `row` bytes every `period` bytes, from `begin` to `begin + bytes`.
struct region {
  const char* begin = nullptr;
  std::ptrdiff_t bytes = 0, row = 0, period = 0;
};

/// Of a view that checker::tensor() has found good.
template <class T, std::size_t Rank> KDA_NOINLINE region region_of(const view<T, Rank>& v) {
  for (const std::ptrdiff_t extent : v.shape)
    if (extent == 0) return {};
  std::ptrdiff_t row = 1;
  for (std::size_t i = 1; i < Rank; ++i) row += (v.shape[i] - 1) * v.stride[i];
  constexpr auto size = static_cast<std::ptrdiff_t>(sizeof(T));
  return {reinterpret_cast<const char*>(v.data), (row + (v.shape[0] - 1) * v.stride[0]) * size, row * size,
          (v.shape[0] > 1 ? v.stride[0] : row) * size};
}
/// Of memory in one piece.
KDA_INLINE region region_of(const void* data, std::ptrdiff_t bytes) {
  return {static_cast<const char*>(data), bytes, bytes, bytes};
}
KDA_INLINE region region_of(const index_list& l) {
  if (l.size == 0 || l.is_multiples) return {};
  const std::ptrdiff_t entries = (l.size - 1) * l.stride + 1;
  return l.narrow != nullptr ? region_of(l.narrow, entries * 4) : region_of(l.wide, entries * 8);
}
KDA_INLINE region region_of(const index_table& t) {
  if (t.rows == 0 || t.columns() == 0) return {};
  const std::ptrdiff_t entries = (t.rows - 1) * t.row_stride + t.columns();
  return t.first_row.narrow != nullptr ? region_of(t.first_row.narrow, entries * 4)
                                       : region_of(t.first_row.wide, entries * 8);
}
/// Of a pool: a slot's elements, once every slot stride.
template <class T>
KDA_INLINE region region_of_slots(const T* data, std::ptrdiff_t slots, std::ptrdiff_t slot_stride,
                                  std::ptrdiff_t elements) {
  return slots == 0 ? region{}
                    : region_of(view<const T, 2>{.data = data, .shape = {slots, elements}, .stride = {slot_stride, 1}});
}

/// Of convolution windows: one slot's channel range of wider rows keeps the rows' period, several slots are taken whole.
template <conv_state Order, class T>
KDA_INLINE region region_of_windows(const conv_pool<T>& p, std::ptrdiff_t channels, std::ptrdiff_t elements) {
  if (p.slots != 1) return region_of_slots(p.data, p.slots, p.slot_stride, elements);
  const bool channel_major = Order == conv_state::channel_major;
  return region_of(
      view<const T, 2>{.data = p.data,
                       .shape = {channel_major ? channels : p.columns, channel_major ? p.columns : channels},
                       .stride = {p.stride, 1}});
}

/// Column blocks of one matrix lie between each other's rows and share nothing; whatever else meets is taken to
/// overlap.
KDA_NOINLINE inline bool overlap(const region& a, const region& b) {
  if (a.bytes == 0 || b.bytes == 0) return false;
  const auto first = reinterpret_cast<std::uintptr_t>(a.begin), second = reinterpret_cast<std::uintptr_t>(b.begin);
  if (first <= second ? second - first >= static_cast<std::uintptr_t>(a.bytes)
                      : first - second >= static_cast<std::uintptr_t>(b.bytes))
    return false;
  if (a.period != b.period || a.row > a.period || b.row > b.period) return true;
  const auto period = static_cast<std::uintptr_t>(a.period);
  const std::uintptr_t ahead =
      first <= second ? (second - first) % period : (period - (first - second) % period) % period;
  return ahead < static_cast<std::uintptr_t>(a.row) || ahead + static_cast<std::uintptr_t>(b.row) > period;
}

/// Something that a call writes, and the argument it belongs to.
struct written {
  region where;
  const char* name;
};

/// Elements of a view do not lie on top of each other, and the last of them has an address.
template <class T, std::size_t Rank> KDA_INLINE bool distinct(const view<T, Rank>& v) {
  bool seen[Rank] = {};
  std::ptrdiff_t reach = 1;
  for (std::size_t n = 0; n < Rank; ++n) {
    std::size_t least = Rank;
    for (std::size_t i = 0; i < Rank; ++i)
      if (!seen[i] && (least == Rank || v.stride[i] < v.stride[least])) least = i;
    seen[least] = true;
    if (v.shape[least] <= 1) continue;
    if (v.stride[least] < reach) return false;
    reach = plus(reach, times(v.shape[least] - 1, v.stride[least]));
  }
  return addressable<T>(reach);
}

// By their bits: a comparison would take a denormal for 0 where the caller flushes them, and trap where it unmasks
// exceptions.
KDA_INLINE bool is_finite(float x) { return (__builtin_bit_cast(std::uint32_t, x) & 0x7f800000u) != 0x7f800000u; }
KDA_INLINE bool is_zero(float x) { return __builtin_bit_cast(std::uint32_t, x) << 1 == 0; }

/// Collects the first refusal; the order of calls is the order of the questions.
class checker {
 public:
  [[nodiscard]] KDA_INLINE status result() const { return status_; }

  KDA_INLINE void require(bool holds, error e, const char* argument) {
    if (!holds && status_.what == error::none) status_ = {e, argument};
  }

  /// Shape as expected, data where there are elements, strides that keep them apart. `free_channel`: the last stride
  /// may be any (beta, weights); otherwise channels lie side by side.
  template <class T, std::size_t Rank>
  KDA_NOINLINE void tensor(const view<T, Rank>& v, const std::ptrdiff_t (&shape)[Rank], const char* name,
                           bool free_channel = false) {
    bool same = true, empty = false, negative = false;
    for (std::size_t i = 0; i < Rank; ++i) {
      same = same && v.shape[i] == shape[i] && shape[i] >= 0;
      empty = empty || v.shape[i] == 0;
      negative = negative || v.stride[i] < 0;
    }
    require(same, error::wrong_shape, name);
    if (empty || !same) return;
    require(v.data != nullptr, error::null_pointer, name);
    const bool adjacent = free_channel || v.stride[Rank - 1] == 1 || v.shape[Rank - 1] == 1;
    require(!negative && adjacent && distinct(v), error::wrong_stride, name);
  }

  /// A vector that may be left out.
  KDA_NOINLINE void optional(const view<const float, 1>& v, std::ptrdiff_t size, const char* name) {
    if (v.data == nullptr && v.shape[0] == 0) return;
    tensor(v, {size}, name);
  }

  /// Parameters of a gate law for HV heads and `bias` entries of dt_bias.
  KDA_NOINLINE void gate_params(const bounded_gate_params& p, std::ptrdiff_t heads, std::ptrdiff_t bias) {
    require(is_finite(p.lower_bound.value) && p.lower_bound.value < 0, error::wrong_value, "gate_params.lower_bound");
    if (p.a_log.data != nullptr || p.a_log.shape[0] != 0) a_log(p.a_log, heads);
    optional(p.dt_bias, bias, "gate_params.dt_bias");
  }
  KDA_NOINLINE void gate_params(const softplus_gate_params& p, std::ptrdiff_t heads, std::ptrdiff_t bias) {
    a_log(p.a_log, heads);
    optional(p.dt_bias, bias, "gate_params.dt_bias");
  }
  KDA_INLINE void gate_params(const no_gate_params&, std::ptrdiff_t, std::ptrdiff_t) {}

  /// What a call writes, against one input.
  template <std::size_t N> KDA_INLINE void apart(const written (&outputs)[N], const region& input) {
    for (const written& w : outputs) require(!overlap(w.where, input), error::overlap, w.name);
  }
  template <std::size_t N, class Params>
  KDA_INLINE void gate_params_apart(const written (&outputs)[N], const Params& p) {
    if constexpr (requires { p.a_log; }) {
      apart(outputs, region_of(p.a_log));
      apart(outputs, region_of(p.dt_bias));
    }
  }
  template <std::size_t N> KDA_INLINE void batch_apart(const written (&outputs)[N], const sequences& s) {
    const index_list* const lists[] = {&s.offsets,
                                       &s.lengths,
                                       &s.load_slots,
                                       &s.store_slots,
                                       &s.first_position,
                                       &s.checkpoints.begin,
                                       &s.checkpoints.slots,
                                       &s.checkpoints.positions,
                                       &s.speculation.num_accepted};
    for (const index_list* l : lists) apart(outputs, region_of(*l));
    apart(outputs, region_of(s.has_initial_state));
    apart(outputs, region_of(s.frozen));
    apart(outputs, region_of(s.speculation.slots));
  }
  /// What a call writes, against each other; the later one in the list is at fault, scratch above all.
  template <std::size_t N> KDA_INLINE void apart(const written (&outputs)[N]) {
    for (std::size_t i = 0; i < N; ++i)
      for (std::size_t j = i + 1; j < N; ++j)
        require(!overlap(outputs[i].where, outputs[j].where), error::overlap, outputs[j].name);
  }

  /// At least workspace_bytes(), whatever the executor claims.
  KDA_NOINLINE void workspace_for(const workspace& w, const executor& e, std::ptrdiff_t sequences,
                                  std::ptrdiff_t kept_states) {
    require(w.data != nullptr, error::null_pointer, "workspace");
    const workspace_limits limits{.sequences = sequences, .kept_states = kept_states, .concurrency = e.concurrency};
    require(w.bytes >= workspace_bytes(limits), error::workspace_too_small, "workspace");
  }

  /// Lists of the batch; tokens: T of the tensors. Returns N, or 0 after a refusal.
  KDA_NOINLINE std::ptrdiff_t batch(const sequences& s, std::ptrdiff_t tokens) {
    const bool others = !s.speculation.num_accepted.is_null() || s.frozen.data != nullptr;  // than store_slots
    const std::ptrdiff_t n = majority(s.store_slots.size, plus(s.offsets.size, -1), s.has_initial_state.shape[0]);
    require(n >= 0, error::wrong_shape, "sequences.store_slots");
    list(s.offsets, plus(n, 1), "sequences.offsets", n == 0);
    list(s.lengths, n, "sequences.lengths", true);
    list(s.load_slots, n, "sequences.load_slots", true);
    list(s.store_slots, n, "sequences.store_slots", others);
    tensor(s.has_initial_state, {n}, "sequences.has_initial_state");
    if (s.frozen.data != nullptr || s.frozen.shape[0] != 0) tensor(s.frozen, {n}, "sequences.frozen");
    list(s.first_position, n, "sequences.first_position", true);
    table(s.speculation.slots, n, "sequences.speculation.slots");
    list(s.speculation.num_accepted, n, "sequences.speculation.num_accepted", s.speculation.slots.rows == 0);
    list(s.checkpoints.begin, plus(n, 1), "sequences.checkpoints.begin", s.checkpoints.slots.size == 0);
    require(s.checkpoints.slots.size >= 0, error::wrong_shape, "sequences.checkpoints.slots");
    list(s.checkpoints.slots, s.checkpoints.slots.size, "sequences.checkpoints.slots");
    list(s.checkpoints.positions, s.checkpoints.slots.size, "sequences.checkpoints.positions",
         s.checkpoints.interval != 0);
    require(s.checkpoints.interval >= 0 && (s.checkpoints.interval == 0 || s.checkpoints.positions.size == 0),
            error::wrong_value, "sequences.checkpoints.interval");
    if (status_.what != error::none) return 0;
    std::int64_t last = 0;
    bool rising = true;
    for (std::ptrdiff_t i = 0; i < s.offsets.size; ++i) {
      rising = rising && s.offsets[i] >= last;
      last = s.offsets[i];
    }
    require(rising && last <= tokens, error::wrong_offsets, "sequences.offsets");
    for (std::ptrdiff_t i = 0; i < s.first_position.size; ++i)
      require(s.first_position[i] >= 0, error::wrong_value, "sequences.first_position");
    for (std::ptrdiff_t i = 0; i < s.lengths.size; ++i)
      require(s.lengths[i] >= 0 && s.lengths[i] <= s.offsets[i + 1] - s.offsets[i], error::wrong_value,
              "sequences.lengths");
    if (status_.what != error::none) return 0;
    if (others)
      for (std::ptrdiff_t i = 0; i < n; ++i) speculative_sequence(s, i);
    if (s.checkpoints.begin.size != 0) checkpoints_of(s, n);
    return status_.what == error::none ? n : 0;
  }

  /// Names of a pool's members, as the call spells them.
  struct pool_names {
    const char *data, *slots, *slot_stride, *first_slot, *columns, *stride;
  };
  static constexpr pool_names states{"states.data",       "states.slots",   "states.slot_stride",
                                     "states.first_slot", "states.columns", "states.stride"};
  static constexpr pool_names conv_states{"conv_states.data",       "conv_states.slots",   "conv_states.slot_stride",
                                          "conv_states.first_slot", "conv_states.columns", "conv_states.stride"};

  /// Pool whose slots hold `elements` each, `slot_stride` apart.
  template <class T>
  KDA_NOINLINE void pool(const T* data, std::ptrdiff_t slots, std::ptrdiff_t slot_stride, std::int64_t first_slot,
                         std::ptrdiff_t elements, const pool_names& names) {
    require(slots >= 0, error::wrong_shape, names.slots);
    require(slots <= 0 || data != nullptr, error::null_pointer, names.data);
    require(slots <= 1 || (slot_stride >= elements && addressable<T>(plus(times(slots - 1, slot_stride), elements))),
            error::wrong_stride, names.slot_stride);
    require(first_slot >= 0, error::wrong_value, names.first_slot);
  }

  /// Convolution pool of C channels for W taps, its zeros spelt out. Returns the elements of a slot.
  template <conv_state Order, class T>
  KDA_NOINLINE std::ptrdiff_t pool(const conv_pool<T>& p, std::ptrdiff_t C, std::ptrdiff_t W, const sequences& s,
                                   std::ptrdiff_t n, const pool_names& names) {
    constexpr bool channel_major = Order == conv_state::channel_major;
    require(p.columns >= plus(W, -1), error::wrong_shape, names.columns);
    if (status_.what != error::none) return 0;
    const std::ptrdiff_t rows = channel_major ? C : p.columns, row = channel_major ? p.columns : C;
    const std::ptrdiff_t elements = plus(times(rows - 1, p.stride), row);
    require(p.stride >= row && addressable<T>(elements), error::wrong_stride, names.stride);
    pool(p.data, p.slots, p.slot_stride, p.first_slot, elements, names);
    if (status_.what == error::none && s.speculation.rolling_windows)
      for (std::ptrdiff_t i = 0; i < n; ++i) {
        if (!is_speculative(s, i)) continue;
        const auto accepted = static_cast<std::ptrdiff_t>(s.speculation.num_accepted[i]);
        const std::ptrdiff_t tokens = is_frozen(s, i) ? 0 : tokens_of(s, i);
        require(W - 2 + accepted <= p.columns && W - 2 + tokens <= p.columns, error::wrong_shape, names.columns);
      }
    return elements;
  }

  /// Slots within the pool, none written twice, none loaded by one sequence and written by another; linear in N and the
  /// kept states. `table` has slot_table_entries(N + kept states) entries.
  void slots(const sequences& s, std::ptrdiff_t n, std::int64_t first_slot, std::ptrdiff_t count,
             detail::slot_entry* table);

 private:
  KDA_NOINLINE void a_log(const view<const float, 1>& v, std::ptrdiff_t heads) {
    require(v.shape[0] >= heads, error::wrong_shape, "gate_params.a_log");
    tensor(v, {v.shape[0]}, "gate_params.a_log");
  }
  KDA_NOINLINE void list(const index_list& l, std::ptrdiff_t size, const char* name, bool may_be_empty = false) {
    if (may_be_empty && l.size == 0) return;
    require(l.size == size, error::wrong_shape, name);
    require(l.size == 0 || !l.is_null(), error::null_pointer, name);
    require(l.size <= 1 || (l.stride >= (l.is_multiples ? 0 : 1) && addressable<std::int64_t>(times(l.size, l.stride))),
            error::wrong_stride, name);
  }
  KDA_NOINLINE void table(const index_table& t, std::ptrdiff_t rows, const char* name) {
    if (t.rows == 0 && t.columns() == 0) return;
    require(t.rows == rows && t.columns() >= 0, error::wrong_shape, name);
    require(t.rows == 0 || t.columns() == 0 || (!t.first_row.is_null() && !t.first_row.is_multiples),
            error::null_pointer, name);
    require(t.first_row.stride == 1 && (t.rows <= 1 || t.row_stride >= t.columns()) &&
                addressable<std::int64_t>(plus(times(t.rows > 1 ? t.rows - 1 : 0, t.row_stride), t.columns())),
            error::wrong_stride, name);
  }
  /// Sequence n of a batch with frozen or speculative ones.
  KDA_NOINLINE void speculative_sequence(const sequences& s, std::ptrdiff_t n) {
    const bool speculative = is_speculative(s, n), frozen = is_frozen(s, n);
    const std::int64_t accepted = speculative ? s.speculation.num_accepted[n] : 0;
    require(accepted <= s.speculation.slots.columns(), error::wrong_value, "sequences.speculation.num_accepted");
    require(!speculative || frozen || tokens_of(s, n) <= s.speculation.slots.columns(), error::wrong_shape,
            "sequences.speculation.slots");
    require(speculative || frozen || s.store_slots.size != 0, error::wrong_shape, "sequences.store_slots");
    require(!s.has_initial_state.data[n] || accepted > 0 || s.load_slots.size != 0 || s.store_slots.size != 0,
            error::wrong_shape, "sequences.load_slots");
  }
  /// Checkpoints lie within their sequence's tokens, as many as the interval asks for.
  KDA_NOINLINE void checkpoints_of(const sequences& s, std::ptrdiff_t n) {
    const checkpoints& k = s.checkpoints;
    std::int64_t last = 0;
    bool rising = true;
    for (std::ptrdiff_t i = 0; i <= n; ++i) {
      rising = rising && k.begin[i] >= last;
      last = k.begin[i];
    }
    require(rising && last <= k.slots.size, error::wrong_offsets, "sequences.checkpoints.begin");
    if (status_.what != error::none) return;
    for (std::ptrdiff_t i = 0; i < n; ++i) {
      const std::int64_t entries = k.begin[i + 1] - k.begin[i], start = position_of(s, i), tokens = tokens_of(s, i);
      require(entries == 0 || !is_frozen(s, i), error::wrong_value, "sequences.checkpoints.begin");
      require(start <= std::numeric_limits<std::int64_t>::max() - tokens, error::wrong_value,
              "sequences.first_position");
      if (status_.what != error::none) return;
      if (k.interval > 0) {
        require(is_frozen(s, i) || entries == (start + tokens) / k.interval - start / k.interval, error::wrong_shape,
                "sequences.checkpoints.begin");
        continue;
      }
      std::int64_t before = start;
      for (std::int64_t j = k.begin[i]; j < k.begin[i + 1]; ++j) {
        const std::int64_t position = k.positions[static_cast<std::ptrdiff_t>(j)];
        require(position > before && position <= start + tokens, error::wrong_value, "sequences.checkpoints.positions");
        before = position;
      }
    }
  }

  status status_;
};

KDA_NOINLINE inline void checker::slots(const sequences& s, std::ptrdiff_t n, std::int64_t first_slot,
                                        std::ptrdiff_t count, detail::slot_entry* table) {
  const std::ptrdiff_t entries = detail::slot_table_entries(n + kept_states(s));
  for (std::ptrdiff_t i = 0; i < entries; ++i) table[i] = {.slot = -1, .sequence = -1};
  const auto place_of = [&](std::int64_t slot) -> detail::slot_entry& {  // its entry, or the free one where it would go
    auto at = static_cast<std::ptrdiff_t>((static_cast<std::uint64_t>(slot) * 0x9e3779b97f4a7c15u >> 20) &
                                          static_cast<std::uint64_t>(entries - 1));
    while (table[at].sequence >= 0 && table[at].slot != slot) at = (at + 1) & (entries - 1);
    return table[at];
  };
  const auto write = [&](std::int64_t slot, std::ptrdiff_t sequence, const char* name) {
    require(slot >= first_slot && slot < count, error::slot_out_of_range, name);
    detail::slot_entry& entry = place_of(slot);
    require(entry.sequence < 0, error::slot_conflict, name);
    entry = {.slot = slot, .sequence = sequence};
  };
  const auto load_name = [&](std::ptrdiff_t i) {
    if (is_speculative(s, i) && s.speculation.num_accepted[i] > 0) return "sequences.speculation.slots";
    return s.load_slots.size != 0 ? "sequences.load_slots" : "sequences.store_slots";
  };
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    const sequence q = sequence_at(s, i, first_slot);
    if (q.padding) continue;
    if (!q.frozen) {
      for (checkpoint_walk k(s, i); !k.done(); k.advance())
        if (k.slot() >= first_slot) write(k.slot(), i, "sequences.checkpoints.slots");
      if (!q.speculative) write(q.store, i, "sequences.store_slots");
      for (std::ptrdiff_t j = 0; q.speculative && j < q.tokens; ++j)
        write(s.speculation.slots.at(i, j), i, "sequences.speculation.slots");
    }
    require(!q.has_initial_state || (q.load < count && q.load_window < count), error::slot_out_of_range, load_name(i));
  }
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    const sequence q = sequence_at(s, i, first_slot);
    if (q.padding || !q.has_initial_state) continue;
    const std::int64_t loads[] = {q.load, q.load_window};
    for (const std::int64_t slot : loads) {
      const detail::slot_entry& entry = place_of(slot);
      require(entry.sequence < 0 || entry.sequence == i, error::slot_conflict, load_name(i));
    }
  }
}

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
