// SPDX-License-Identifier: Apache-2.0
// Simulated requests and their projections. Nothing is stored: what a token feeds into the layer follows from the seed,
// the stream that it belongs to and its place, so a request can be served again at any time, alone or in company.
#pragma once
#include "loop_slots.hpp"
#include "tensor.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace engine {

/// Numbers from one linear congruential generator, the upper bits.
class random_numbers {
 public:
  /// Each (a, b, c, d) has a sequence of its own.
  random_numbers(std::uint64_t a, std::uint64_t b, std::uint64_t c, std::uint64_t d) : s_(a) {
    for (const std::uint64_t x : {b, c, d}) {
      s_ = (s_ ^ x) * 0x9e3779b97f4a7c15u;
      s_ ^= s_ >> 29;
    }
  }
  std::uint32_t next() {
    s_ = s_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<std::uint32_t>(s_ >> 32);
  }
  index below(index n) { return static_cast<index>(next() % static_cast<std::uint32_t>(n)); }
  bool one_in(index n) { return below(n) == 0; }
  float between(float low, float high) { return low + (high - low) * (static_cast<float>(next() >> 8) * 0x1p-24f); }

 private:
  std::uint64_t s_;
};

/// How a request's tokens after the prompt come about.
enum class speculating {
  never,
  keeping,  ///< each drafted token's state in a slot of its own; the next call reads that of the last right one
  rolling,  ///< the same, but all convolution windows in the first slot, one column apart
  frozen,   ///< drafts leave the state alone; a second call commits those that were right
};

struct request {
  index id = 0;
  index prompt = 0, total = 0;  ///< tokens of the prompt; with those that follow
  std::uint64_t group = 0;      ///< of requests whose prompts begin alike,
  index shared = 0;             ///< for so many tokens
  bool cut_on_grid = true;      ///< its prompt is cut at multiples of kda::chunk_tokens alone
  speculating style = speculating::never;

  // What the scheduler knows of it.
  index position = 0;         ///< tokens that its state has seen
  index emitted = 0;          ///< tokens that it has once seen
  std::vector<index> cuts{};  ///< where its prompt was cut, unless on the grid: done again in the same way
  std::int32_t slot = -1;     ///< its own, if it runs
  std::int32_t drafts[most_drafts + 1] = {};  ///< slots of keeping and rolling, if there are some
  bool has_drafts = false;
  index accepted = 0;         ///< above 0: its state is in drafts[accepted - 1], not in slot
  std::vector<char> saved{};  ///< its state while it is out, unless that was dropped

  // Outputs, for the comparison.
  std::vector<float> y{};     ///< [total, HV V]
  std::vector<char> has_y{};  ///< [total] not for what came out of the prefix cache

  /// Where its state is.
  [[nodiscard]] place where() const {
    if (accepted == 0) return {slot, slot, slot_pools::last_window};
    const std::int32_t last = drafts[accepted - 1];
    return style == speculating::rolling ? place{last, drafts[0], accepted - 1}
                                         : place{last, last, slot_pools::last_window};
  }

  /// Whose inputs token t has: streams below 2^32 are groups.
  [[nodiscard]] std::uint64_t stream(index t) const {
    return t < shared ? group : (std::uint64_t{1} << 32) + static_cast<std::uint64_t>(id);
  }
  [[nodiscard]] std::uint64_t own_stream() const { return stream(shared); }
  [[nodiscard]] std::string name() const { return "request " + std::to_string(id); }
};

/// Request number `id`: prompts of 1 to 200 tokens, outputs of 0 to 47. Every other one of 64 neighbours begins as one
/// of their four groups does.
inline request make_request(std::uint64_t seed, index id) {
  random_numbers r(seed, 1, static_cast<std::uint64_t>(id), 0);
  request q{.id = id};
  q.prompt = 1 + (r.one_in(8) ? r.below(4) : r.below(200));
  q.total = q.prompt + (r.one_in(16) ? 0 : r.below(48));
  q.group = static_cast<std::uint64_t>(id / 64 * 4 + r.below(4));
  const index common = random_numbers(seed, 2, q.group, 0).below(200);
  q.shared = r.one_in(2) ? 0 : common < q.prompt ? common : q.prompt;
  q.cut_on_grid = r.below(3) != 0;
  q.style = static_cast<speculating>(r.below(4));
  return q;
}

/// Parameters of the layer.
struct loop_weights {
  std::vector<float> conv, conv_bias, a_log, dt_bias, norm;

  explicit loop_weights(std::uint64_t seed) {
    random_numbers r(seed, 0, 0, 0);
    const auto fill = [&](std::vector<float>& x, index n, float low, float high) {
      for (index i = 0; i < n; ++i) x.push_back(r.between(low, high));
    };
    fill(conv, shape::channels * shape::W, -1, 1);
    fill(conv_bias, shape::channels, -0.2f, 0.2f);
    fill(a_log, shape::HV, -1, 1);
    fill(dt_bias, shape::HV * shape::K, -6, 0);
    fill(norm, shape::V, 0.5f, 1.5f);
  }
};

/// What the projections in front of the layer give for T tokens, and what comes out of it. As in an engine they are
/// column blocks of a wide matrix.
class token_rows {
 public:
  explicit token_rows(index tokens)
      : projected_(tokens, row), gates_(tokens, shape::outputs), y_(tokens, shape::outputs) {}

  [[nodiscard]] index capacity() const { return y_.rows; }
  [[nodiscard]] const float* y(index i) const { return y_.at(i); }

  /// Token t of a stream becomes row i; variant above 0: a draft that turns out wrong.
  void fill(index i, std::uint64_t seed, std::uint64_t stream, index t, std::uint64_t variant = 0) {
    random_numbers r(seed, 3 + variant, stream, static_cast<std::uint64_t>(t));
    kda::bf16* x = projected_.at(i);
    for (index c = 0; c < gate; ++c) x[c] = kda::to_bf16(r.between(-1.5f, 1.5f));
    for (index c = gate; c < row; ++c) x[c] = kda::to_bf16(r.between(-4, 4));
    for (index c = 0; c < shape::outputs; ++c) *gates_.at(i, c) = r.between(-3, 3);
  }
  /// Row i holds nothing that a call may look at.
  void poison(index i) {
    for (index c = 0; c < row; ++c) *projected_.at(i, c) = {0xffff};
    for (index c = 0; c < shape::outputs; ++c) *gates_.at(i, c) = __builtin_nanf("");
  }
  void poison_y(index tokens) {
    for (index i = 0; i < tokens * shape::outputs; ++i) y_.data[static_cast<std::size_t>(i)] = __builtin_nanf("");
  }

  /// Of a call over the first T rows; the batch is still to be put in.
  [[nodiscard]] kda::step_args<served> arguments(index T, const loop_weights& w, slot_pools& pools) {
    using namespace shape;
    const auto columns = [&](index first, index heads, index width) {
      return kda::packed(projected_.at(0, first), T, heads, width).token_stride(row);
    };
    return {.q = columns(0, H, K),
            .k = columns(H * K, H, K),
            .v = columns(2 * H * K, HV, V),
            .conv_weight = kda::packed(w.conv.data(), channels, W),
            .conv_bias = all(w.conv_bias),
            .gate = columns(gate, HV, K),
            .beta = projected_.block(0, T, beta, HV),
            .output_gate = kda::packed(gates_.at(0), T, HV, V),
            .norm_weight = all(w.norm),
            .norm_eps = 1e-5f,
            .y = kda::packed(y_.at(0), T, HV, V),
            .gate_params = {.lower_bound = -5, .a_log = all(w.a_log), .dt_bias = all(w.dt_bias)},
            .states = pools.states(),
            .conv_states = pools.windows()};
  }

 private:
  static constexpr index gate = shape::channels, beta = gate + shape::HV * shape::K, row = beta + shape::HV;
  matrix<kda::bf16> projected_;  // q | k | v | gate | beta
  matrix<float> gates_, y_;
};

}
