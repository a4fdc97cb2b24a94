// SPDX-License-Identifier: Apache-2.0
// The delta rule over a packed batch: each task takes one value head of one sequence through its tokens, from the slot
// it loads to the slots it stores. Where rows come from and where they go is the business of a `Source`:
//
//   source.fill(first, n, tile)      rows of tokens [first, first + n)
//   source.emit(first, n, out)       takes their outputs, out [n, value_stride]
#pragma once
#include "chunked.hpp"
#include "recurrent.hpp"
#include "sequence.hpp"
#include "state_block.hpp"
#include "tasks.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

/// One value head's block of columns in one sequence.
template <class Spec> class head_walk {
  using t = detail::traits<Spec>;
  using T = typename t::state::type;
  using block = state_block<T, t::state::order>;

 public:
  KDA_INLINE head_walk(const delta_rule_args<Spec>& args, const sequence& sequence, std::ptrdiff_t head,
                       std::ptrdiff_t column, std::ptrdiff_t columns)
      : args_(args), s_(sequence), head_(head), column_(column), columns_(columns) {}

  /// Token by token. The state goes from the loaded slot through the tokens to the stored one: only the first token
  /// reads the one and writes the other. Frozen sequences work on a copy.
  template <class Source> KDA_INLINE void decode(const Source& source, tile& tile, arena scratch) const {
    token_rows x = make_token_rows(scratch, tile);
    float* out = scratch.take(chunk_tokens * tile.value_stride);
    if (s_.tokens == 0) {
      if (!s_.frozen && !s_.speculative) keep_or_clear(at(s_.store));
      return;
    }
    block to = s_.frozen ? draft(scratch, tile) : at(slot_after(0));
    block from = to;
    if (s_.has_initial_state)
      from = at(s_.load);
    else
      to.clear();
    checkpoint_walk checkpoint(args_.sequences, s_.index);
    for (std::ptrdiff_t done = 0; done < s_.tokens; done += tile.tokens) {
      const std::ptrdiff_t rest = s_.tokens - done;
      source.fill(s_.first + done, rest < chunk_tokens ? rest : chunk_tokens, tile);
      for (std::ptrdiff_t i = 0, end = 0; i < tile.tokens; i = end) {
        end = s_.speculative && !s_.frozen ? i + 1 : tile.tokens;
        if (!checkpoint.done() && checkpoint.tokens() - done < end)
          end = static_cast<std::ptrdiff_t>(checkpoint.tokens()) - done;
        if (s_.speculative && !s_.frozen) to = at(slot_after(done + i));
        recurrent_run<detail::is_per_channel<Spec>, t::state::order>(tile, i, end, from.data, from.stride, to.data,
                                                                     to.stride, x, out + i * tile.value_stride);
        from = to;
        if (!checkpoint.done() && checkpoint.tokens() == done + end) {
          if (checkpoint.slot() >= args_.states.first_slot) at(checkpoint.slot()).copy(to);
          checkpoint.advance();
        }
      }
      source.emit(s_.first + done, tile.tokens, out, tile.value_stride);
    }
  }

  /// In chunks on the grid of absolute positions, on states in scratch. A checkpoint within a chunk comes from a copy
  /// of the state and the chunk's first tokens alone, as a prompt that ends there would have it. `heads` neighbouring
  /// heads take turns, chunk by chunk, since a page of a token-major tensor holds rows of several; source_of(h) is the
  /// source of the h-th.
  template <class Sources>
  KDA_INLINE void prefill(const Sources& source_of, std::ptrdiff_t heads, tile& tile, arena scratch) const {
    constexpr bool per_channel = detail::is_per_channel<Spec>;
    const std::ptrdiff_t width = tile.value_stride, floats = tile.key_dim * width;
    chunk_scratch w = make_chunk_scratch(scratch, tile);
    float* out = scratch.take(chunk_tokens * width);
    float* states = scratch.take(heads * floats);
    float* copy = scratch.take(floats);
    for (std::ptrdiff_t h = 0; h < heads; ++h) {
      float* s = states + h * floats;
      if (s_.has_initial_state)
        at(s_.load, h).load_to(s, width);
      else
        for (std::ptrdiff_t i = 0; i < floats; ++i) s[i] = 0.f;
    }
    const auto keep = [&](std::int64_t slot, std::ptrdiff_t h, const float* state) KDA_INLINE_LAMBDA {
      if (slot >= args_.states.first_slot) at(slot, h).store_from(state, width);
    };
    checkpoint_walk checkpoint(args_.sequences, s_.index);
    auto until_grid = chunk_tokens - static_cast<std::ptrdiff_t>(s_.position % chunk_tokens);
    for (std::ptrdiff_t done = 0; done < s_.tokens;) {
      const std::ptrdiff_t rest = s_.tokens - done, n = rest < until_grid ? rest : until_grid;
      const std::ptrdiff_t after = rest - n < chunk_tokens ? rest - n : chunk_tokens;
      checkpoint_walk passed = checkpoint;
      for (std::ptrdiff_t h = 0; h < heads; ++h) {
        const auto& source = source_of(h);
        float* s = states + h * floats;
        source.fill(s_.first + done, n, tile);
        tile.upcoming = {};
        for (passed = checkpoint; !passed.done() && passed.tokens() < done + n; passed.advance()) {
          for (std::ptrdiff_t i = 0; i < floats; ++i) copy[i] = s[i];
          tile.tokens = static_cast<std::ptrdiff_t>(passed.tokens()) - done;
          chunk<per_channel>(tile, w, copy, out);
          keep(passed.slot(), h, copy);
        }
        tile.tokens = n;
        if (h + 1 < heads)
          tile.upcoming = source_of(h + 1).upcoming(s_.first + done, n);
        else if (after > 0)
          tile.upcoming = source_of(0).upcoming(s_.first + done + n, after);
        chunk<per_channel>(tile, w, s, out);
        source.emit(s_.first + done, n, out, width);
        if (!passed.done() && passed.tokens() == done + n) {
          keep(passed.slot(), h, s);
          passed.advance();
        }
      }
      checkpoint = passed;
      done += n;
      until_grid = chunk_tokens;
    }
    if (s_.frozen) return;
    for (std::ptrdiff_t h = 0; h < heads; ++h) at(s_.store, h).store_from(states + h * floats, width);
  }

 private:
  [[nodiscard]] KDA_INLINE block at(std::int64_t slot, std::ptrdiff_t h = 0) const {
    return block(args_.states, slot, head_ + h, args_.q.shape[2], args_.v.shape[1], args_.v.shape[2], column_,
                 columns_);
  }
  [[nodiscard]] KDA_INLINE std::int64_t slot_after(std::ptrdiff_t token) const {
    return s_.speculative ? args_.sequences.speculation.slots.at(s_.index, token) : s_.store;
  }
  /// A state in scratch, with the rounding of a stored one.
  [[nodiscard]] KDA_INLINE block draft(arena& scratch, const tile& tile) const {
    return block(reinterpret_cast<T*>(scratch.take(tile.key_dim * columns_)), tile.key_dim, columns_);
  }
  KDA_INLINE void keep_or_clear(const block& to) const {
    if (!s_.has_initial_state)
      to.clear();
    else if (s_.load != s_.store)
      to.copy(at(s_.load));
  }

  const delta_rule_args<Spec>& args_;
  const sequence& s_;
  std::ptrdiff_t head_, column_, columns_;
};

/// Rows in the tensors of delta_rule_args.
template <class Spec> struct tensor_source {
  head_prologue<Spec> prologue;
  std::ptrdiff_t columns;

  KDA_INLINE void fill(std::ptrdiff_t first, std::ptrdiff_t n, tile& tile) const { prologue.fill(first, n, tile); }
  [[nodiscard]] KDA_INLINE upcoming_rows upcoming(std::ptrdiff_t first, std::ptrdiff_t n) const {
    return prologue.rows_of(first, n, columns);
  }
  KDA_INLINE void emit(std::ptrdiff_t first, std::ptrdiff_t n, const float* out, std::ptrdiff_t stride) const {
    const auto& y = prologue.args.out;
    if (y.data == nullptr) return;
    for (std::ptrdiff_t i = 0; i < n; ++i)
      store_row(y.at(first + i, prologue.head, prologue.first_column), out + i * stride, columns);
  }
};

/// Zeros for a padding sequence: columns [column, column + n) of one head.
template <class T>
KDA_NOINLINE void write_zeros(const view<T, 3>& out, const sequence& s, std::ptrdiff_t head, std::ptrdiff_t column,
                              std::ptrdiff_t n) {
  if (out.data == nullptr) return;
  for (std::ptrdiff_t token = s.first; token < s.first + s.tokens; ++token)
    for (std::ptrdiff_t j = 0; j < n; ++j) *out.at(token, head, column + j) = T{};
}

/// The value heads that a call works on.
KDA_INLINE std::ptrdiff_t heads_in(const head_range& r, std::ptrdiff_t all) {
  return r.count == 0 ? all - r.first : r.count;
}

/// One call of prefill or decode: task i is (sequence, value head or a few, block of value columns).
template <class Spec, mode Mode> class delta_rule_tasks {
 public:
  KDA_INLINE explicit delta_rule_tasks(const delta_rule_args<Spec>& args, std::ptrdiff_t concurrency)
      : args_(args),
        heads_(heads_in(args.heads, args.v.shape[1])),
        blocks_((args.v.shape[2] + detail::max_value_columns - 1) / detail::max_value_columns) {
    if constexpr (Mode == mode::prefill) {
      // heads in turn: as many as leave each runner four tasks, and as their states fit into a task's scratch
      const std::ptrdiff_t V =
          args.v.shape[2] < detail::max_value_columns ? args.v.shape[2] : detail::max_value_columns;
      const std::ptrdiff_t state = args.q.shape[2] * detail::round_up(V, 16);
      while (in_turn_ < 8 && 2 * in_turn_ * state <= detail::max_key_dim * detail::max_value_columns &&
             batch() * ((heads_ + 2 * in_turn_ - 1) / (2 * in_turn_)) * blocks_ >=
                 (concurrency > 1 ? 4 * concurrency : 1))
        in_turn_ *= 2;
    }
    groups_ = (heads_ + in_turn_ - 1) / in_turn_;
  }

  [[nodiscard]] KDA_INLINE std::ptrdiff_t count() const { return batch() * groups_ * blocks_; }

  KDA_NOINLINE void operator()(std::ptrdiff_t i, arena scratch) const {
    const sequence s = sequence_at(args_.sequences, i / (groups_ * blocks_), args_.states.first_slot);
    const std::ptrdiff_t first_head = i / blocks_ % groups_ * in_turn_, left = heads_ - first_head;
    const std::ptrdiff_t head = args_.heads.first + first_head, heads = left < in_turn_ ? left : in_turn_;
    const std::ptrdiff_t column = i % blocks_ * detail::max_value_columns, rest = args_.v.shape[2] - column;
    const std::ptrdiff_t columns = rest < detail::max_value_columns ? rest : detail::max_value_columns;
    if (s.padding) {
      for (std::ptrdiff_t h = 0; h < heads; ++h) write_zeros(args_.out, s, head + h, column, columns);
      return;
    }
    tile tile = make_tile(scratch, args_.q.shape[2], columns);
    const head_walk<Spec> walk(args_, s, head, column, columns);
    const auto source_of = [&](std::ptrdiff_t h) KDA_INLINE_LAMBDA {
      return tensor_source<Spec>{head_prologue<Spec>(args_, head + h, column), columns};
    };
    if constexpr (Mode == mode::decode)
      walk.decode(source_of(0), tile, scratch);
    else
      walk.prefill(source_of, heads, tile, scratch);
  }

 private:
  [[nodiscard]] KDA_INLINE std::ptrdiff_t batch() const { return args_.sequences.has_initial_state.shape[0]; }

  const delta_rule_args<Spec>& args_;
  std::ptrdiff_t heads_, blocks_, in_turn_ = 1, groups_ = 0;
};

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
