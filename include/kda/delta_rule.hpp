// SPDX-License-Identifier: Apache-2.0
// The delta rule over a packed batch: each task takes one value head of one sequence, or a few in turn, through its
// tokens, from the slot it loads to the slots it stores. Where rows come from and go to is the business of a `Source`:
//
//   source.fill(first, n, tile)      rows of tokens [first, first + n); those of v may stay where they are until emit()
//   source.emit(first, n, out)       takes their outputs, out [n, width]
//   source.upcoming(first, n)        the rows that fill() will read next, for prefill to fetch ahead
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
    token_rows x = make_token_rows<detail::is_per_channel<Spec>>(scratch, tile);
    float* out = scratch.take(chunk_tokens * tile.width);
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
                                                                     to.stride, x, out + i * tile.width);
        from = to;
        if (!checkpoint.done() && checkpoint.tokens() == done + end) {
          if (checkpoint.slot() >= args_.states.first_slot) at(checkpoint.slot()).copy(to);
          checkpoint.advance();
        }
      }
      source.emit(s_.first + done, tile.tokens, out, tile.width);
    }
  }

  /// In chunks on the grid of absolute positions, on states in scratch. A checkpoint within a chunk comes from a copy
  /// of the state and the chunk's first tokens alone, as a prompt that ends there would have it. `heads` neighbouring
  /// heads take turns, chunk by chunk, since a page of a token-major tensor holds rows of several; source_of(h) is the
  /// source of the h-th.
  template <class Sources>
  KDA_INLINE void prefill(const Sources& source_of, std::ptrdiff_t heads, tile& tile, arena scratch) const {
    constexpr bool per_channel = detail::is_per_channel<Spec>;
    const std::ptrdiff_t width = tile.width, floats = tile.key_dim * width;
    chunk_scratch<products_of<Spec>> w = make_chunk_scratch<products_of<Spec>>(scratch, tile);
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

/// One call of prefill or decode.
template <class Spec, mode Mode> class delta_rule_tasks {
 public:
  KDA_INLINE delta_rule_tasks(const delta_rule_args<Spec>& args, const detail::slot_entry* order, const executor& e)
      : args_(args),
        grid_(make_head_grid(args.sequences, order, args.heads.first, heads_in(args.heads, args.v.shape[1]),
                             args.v.shape[2], e, true,
                             Mode == mode::prefill ? turns{most_in_turn, args.q.shape[2]} : turns{most_in_a_row, 0})) {}

  [[nodiscard]] KDA_INLINE std::ptrdiff_t count() const { return grid_.count(); }

  KDA_NOINLINE void operator()(std::ptrdiff_t i, arena scratch) const {
    const head_grid::place at = grid_.at(i);
    const sequence s = sequence_at(args_.sequences, at.sequence, args_.states.first_slot);
    if (s.padding) {
      for (std::ptrdiff_t h = 0; h < at.heads; ++h) write_zeros(args_.out, s, at.head + h, at.column, at.columns);
      return;
    }
    tile tile = make_tile(scratch, args_.q.shape[2], at.columns, Mode, s.tokens);
    const auto source_of = [&](std::ptrdiff_t h) KDA_INLINE_LAMBDA {
      return tensor_source<Spec>{head_prologue<Spec>(args_, at.head + h, at.column), at.columns};
    };
    if constexpr (Mode == mode::decode) {
      for (std::ptrdiff_t h = 0; h < at.heads; ++h)
        head_walk<Spec>(args_, s, at.head + h, at.column, at.columns).decode(source_of(h), tile, scratch);
    } else {
      head_walk<Spec>(args_, s, at.head, at.column, at.columns).prefill(source_of, at.heads, tile, scratch);
    }
  }

 private:
  const delta_rule_args<Spec>& args_;
  const head_grid grid_;
};

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
