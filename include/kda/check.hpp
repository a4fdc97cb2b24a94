// SPDX-License-Identifier: Apache-2.0
// Every question that is asked of a call before it writes anything. The first answer that is no is the call's status.
#pragma once
#include "args.hpp"
#include "executor.hpp"
#include "status.hpp"

#include <limits>

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

/// a b and a + b of extents and strides, which may be whatever a caller claims: held at the largest number, never
/// wrapped.
KDA_INLINE std::ptrdiff_t times(std::ptrdiff_t a, std::ptrdiff_t b) {
  std::ptrdiff_t c = 0;
  return __builtin_mul_overflow(a, b, &c) ? std::numeric_limits<std::ptrdiff_t>::max() : c;
}
KDA_INLINE std::ptrdiff_t plus(std::ptrdiff_t a, std::ptrdiff_t b) {
  std::ptrdiff_t c = 0;
  return __builtin_add_overflow(a, b, &c) ? std::numeric_limits<std::ptrdiff_t>::max() : c;
}
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
  return l.narrow != nullptr ? region_of(l.narrow, l.size * 4) : region_of(l.wide, l.size * 8);
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

/// What a call writes; `name` is the argument that `out` belongs to.
struct written {
  region out;
  const char* name;
  region states;
  region scratch;
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

  /// Everything that a call writes, against one input.
  KDA_NOINLINE void apart(const written& w, const region& input) {
    require(!overlap(w.out, input), error::overlap, w.name);
    require(!overlap(w.states, input), error::overlap, "states.data");
    require(!overlap(w.scratch, input), error::overlap, "workspace");
  }
  template <class Params> KDA_INLINE void gate_params_apart(const written& w, const Params& p) {
    if constexpr (requires { p.a_log; }) {
      apart(w, region_of(p.a_log));
      apart(w, region_of(p.dt_bias));
    }
  }
  KDA_NOINLINE void batch_apart(const written& w, const sequences& s) {
    apart(w, region_of(s.offsets));
    apart(w, region_of(s.load_slots));
    apart(w, region_of(s.store_slots));
    apart(w, region_of(s.has_initial_state));
    apart(w, region_of(s.first_position));
  }
  /// Everything that a call writes, against each other.
  KDA_NOINLINE void apart(const written& w) {
    require(!overlap(w.out, w.states), error::overlap, w.name);
    require(!overlap(w.out, w.scratch) && !overlap(w.states, w.scratch), error::overlap, "workspace");
  }

  /// At least workspace_bytes(), whatever the executor claims.
  KDA_NOINLINE void workspace_for(const workspace& w, const executor& e, std::ptrdiff_t sequences) {
    require(w.data != nullptr, error::null_pointer, "workspace");
    const std::ptrdiff_t one = workspace_bytes({.sequences = sequences, .concurrency = 1});
    require(w.bytes >= one && (e.concurrency <= 1 || e.concurrency - 1 <= (w.bytes - one) / detail::task_bytes),
            error::workspace_too_small, "workspace");
  }

  /// Lists of the batch; tokens: T of the tensors. Returns N, or 0 after a refusal.
  KDA_NOINLINE std::ptrdiff_t batch(const sequences& s, std::ptrdiff_t tokens) {
    const std::ptrdiff_t n = majority(s.load_slots.size, s.store_slots.size, s.has_initial_state.shape[0]);
    require(n >= 0, error::wrong_shape, "sequences.store_slots");
    list(s.offsets, plus(n, 1), "sequences.offsets", n == 0);
    list(s.load_slots, n, "sequences.load_slots");
    list(s.store_slots, n, "sequences.store_slots");
    tensor(s.has_initial_state, {n}, "sequences.has_initial_state");
    list(s.first_position, n, "sequences.first_position", true);
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
    return status_.what == error::none ? n : 0;
  }

  /// Pool whose slots hold `elements` each.
  template <class Pool> KDA_NOINLINE void pool(const Pool& p, std::ptrdiff_t elements) {
    using T = std::remove_pointer_t<decltype(p.data)>;
    require(p.slots >= 0, error::wrong_shape, "states.slots");
    require(p.slots <= 0 || p.data != nullptr, error::null_pointer, "states.data");
    require(p.slots <= 1 ||
                (p.slot_stride >= elements && addressable<T>(plus(times(p.slots - 1, p.slot_stride), elements))),
            error::wrong_stride, "states.slot_stride");
    require(p.first_slot >= 0, error::wrong_value, "states.first_slot");
  }

  /// Slots within the pool, none stored twice, none loaded by one sequence and stored by another; linear in N. `table`
  /// has slot_table_entries(N) entries.
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
  }

  status status_;
};

/// Padding: see kda::sequences.
KDA_INLINE bool is_padding(const sequences& s, std::ptrdiff_t n, std::int64_t first_slot) {
  return s.store_slots[n] < first_slot || (s.has_initial_state.data[n] && s.load_slots[n] < first_slot);
}

KDA_NOINLINE inline void checker::slots(const sequences& s, std::ptrdiff_t n, std::int64_t first_slot,
                                        std::ptrdiff_t count, detail::slot_entry* table) {
  const std::ptrdiff_t entries = detail::slot_table_entries(n);
  for (std::ptrdiff_t i = 0; i < entries; ++i) table[i] = {.slot = -1, .sequence = -1};
  const auto place_of = [&](std::int64_t slot) -> detail::slot_entry& {  // its entry, or the free one where it would go
    auto at = static_cast<std::ptrdiff_t>((static_cast<std::uint64_t>(slot) * 0x9e3779b97f4a7c15u >> 20) &
                                          static_cast<std::uint64_t>(entries - 1));
    while (table[at].sequence >= 0 && table[at].slot != slot) at = (at + 1) & (entries - 1);
    return table[at];
  };
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    if (is_padding(s, i, first_slot)) continue;
    const std::int64_t slot = s.store_slots[i];
    require(slot < count, error::slot_out_of_range, "sequences.store_slots");
    require(!s.has_initial_state.data[i] || s.load_slots[i] < count, error::slot_out_of_range, "sequences.load_slots");
    detail::slot_entry& entry = place_of(slot);
    require(entry.sequence < 0, error::slot_conflict, "sequences.store_slots");
    entry = {.slot = slot, .sequence = i};
  }
  for (std::ptrdiff_t i = 0; i < n; ++i) {
    if (is_padding(s, i, first_slot) || !s.has_initial_state.data[i]) continue;
    const detail::slot_entry& entry = place_of(s.load_slots[i]);
    require(entry.sequence < 0 || entry.sequence == i, error::slot_conflict, "sequences.load_slots");
  }
}

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
