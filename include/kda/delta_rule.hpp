// SPDX-License-Identifier: Apache-2.0
// The delta rule over a packed batch: each task takes one value head of one sequence through its tokens.
#pragma once
#include "chunked.hpp"
#include "recurrent.hpp"
#include "state_block.hpp"
#include "tasks.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

enum class core { recurrent, chunked };

/// One call of prefill or decode: task i is (sequence, value head, block of value columns).
template <class Spec, core Core> class delta_rule_tasks {
  using t = detail::traits<Spec>;
  using block = state_block<typename t::state::type, t::state::order>;

 public:
  KDA_INLINE explicit delta_rule_tasks(const delta_rule_args<Spec>& args)
      : args_(args),
        heads_(args.v.shape[1]),
        value_dim_(args.v.shape[2]),
        blocks_((value_dim_ + detail::max_value_columns - 1) / detail::max_value_columns) {}

  [[nodiscard]] KDA_INLINE std::ptrdiff_t count() const { return args_.sequences.store_slots.size * heads_ * blocks_; }

  KDA_NOINLINE void operator()(std::ptrdiff_t i, arena scratch) const {
    const std::ptrdiff_t n = i / (heads_ * blocks_), head = i / blocks_ % heads_;
    const std::ptrdiff_t column = i % blocks_ * detail::max_value_columns;
    const std::ptrdiff_t rest = value_dim_ - column;
    const std::ptrdiff_t columns = rest < detail::max_value_columns ? rest : detail::max_value_columns;
    const sequences& s = args_.sequences;
    const auto first = static_cast<std::ptrdiff_t>(s.offsets[n]), last = static_cast<std::ptrdiff_t>(s.offsets[n + 1]);
    if (is_padding(s, n, args_.states.first_slot)) {
      for (std::ptrdiff_t token = first; token < last; ++token) write_zeros(token, head, column, columns);
      return;
    }
    const std::ptrdiff_t K = args_.q.shape[2];
    const block from(args_.states, s.has_initial_state.data[n] ? s.load_slots[n] : s.store_slots[n], head, K,
                     value_dim_, column, columns);
    const block to(args_.states, s.store_slots[n], head, K, value_dim_, column, columns);
    tile tile = make_tile(scratch, K, columns);
    const head_prologue<Spec> prologue(args_, head, column);
    if constexpr (Core == core::recurrent)
      decode(prologue, first, last, s.has_initial_state.data[n], from, to, tile, scratch);
    else
      prefill(prologue, first, last, s.first_position.size == 0 ? 0 : s.first_position[n], s.has_initial_state.data[n],
              from, to, tile, scratch);
  }

 private:
  KDA_INLINE void decode(const head_prologue<Spec>& prologue, std::ptrdiff_t first, std::ptrdiff_t last, bool has_state,
                         const block& from, const block& to, tile& tile, arena scratch) const {
    block before = from;
    if (!has_state)
      to.clear(), before = to;
    else if (first == last && from.data != to.data)
      to.copy(from);
    token_rows x = make_token_rows(scratch, tile);
    float* out = scratch.take(chunk_tokens * tile.value_stride);
    for (std::ptrdiff_t token = first; token < last; token += chunk_tokens) {
      prologue.fill(token, last - token < chunk_tokens ? last - token : chunk_tokens, tile);
      recurrent_run<detail::is_per_channel<Spec>, t::state::order>(tile, 0, tile.tokens, before.data, before.stride,
                                                                   to.data, to.stride, x, out);
      before = to;
      for (std::ptrdiff_t i = 0; i < tile.tokens; ++i)
        store_row(args_.out.at(token + i, prologue.head, prologue.first_column), out + i * tile.value_stride,
                  tile.columns);
    }
  }

  KDA_INLINE void prefill(const head_prologue<Spec>& prologue, std::ptrdiff_t first, std::ptrdiff_t last,
                          std::int64_t position, bool has_state, const block& from, const block& to, tile& tile,
                          arena scratch) const {
    chunk_scratch w = make_chunk_scratch(scratch, tile);
    float* out = scratch.take(chunk_tokens * tile.value_stride);
    float* s = scratch.take(tile.key_dim * tile.value_stride);
    if (has_state)
      from.load_to(s, tile.value_stride);
    else
      for (std::ptrdiff_t i = 0; i < tile.key_dim * tile.value_stride; ++i) s[i] = 0.f;
    auto until_grid = chunk_tokens - static_cast<std::ptrdiff_t>(position % chunk_tokens);
    for (std::ptrdiff_t token = first; token < last;) {
      const std::ptrdiff_t n = last - token < until_grid ? last - token : until_grid;
      prologue.fill(token, n, tile);
      chunk<detail::is_per_channel<Spec>>(tile, w, s, out);
      for (std::ptrdiff_t i = 0; i < n; ++i)
        store_row(args_.out.at(token + i, prologue.head, prologue.first_column), out + i * tile.value_stride,
                  tile.columns);
      token += n;
      until_grid = chunk_tokens;
    }
    to.store_from(s, tile.value_stride);
  }

  KDA_INLINE void write_zeros(std::ptrdiff_t token, std::ptrdiff_t head, std::ptrdiff_t column,
                              std::ptrdiff_t columns) const {
    auto* out = args_.out.at(token, head, column);
    for (std::ptrdiff_t j = 0; j < columns; ++j) out[j] = {};
  }

  const delta_rule_args<Spec>& args_;
  std::ptrdiff_t heads_, value_dim_, blocks_;
};

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
