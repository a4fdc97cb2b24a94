// SPDX-License-Identifier: Apache-2.0
// A whole KDA layer around kda's kernels, as GLM-5.3-Flash has it.
//
//   hidden [T, X] -- in --> projected [T, q | k | v | b | f | g]
//   f, g -- f_b, g_b --> logits of decay and output gate [T, Q]      only where the gates are low-rank
//   q | k | v -- conv --> qkv [T, 3 Q]
//   q, k, v, b, f -- prefill or decode --> core [T, Q]
//   core, g -- norm --> normed [T, Q] -- out --> y [T, X]
//
// T tokens, X hidden size, H heads of D channels, Q = H D. Every kernel reads its inputs where the projections left
// them: nothing is copied or transposed on the way.
#pragma once
#include "glm.hpp"
#include "linear.hpp"
#include "stopwatch.hpp"
#include "tensor.hpp"
#include "thread_pool.hpp"

#include <cstdint>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace engine {

struct layer_shape {
  index hidden = 0, heads = 0, head_dim = 0, conv_width = 0;
  index f_rank = 0, g_rank = 0;  ///< of the low-rank gates; 0: full rank
  float lower_bound = 0;         ///< not used by gate::softplus
  float rms_eps = 0;

  [[nodiscard]] index Q() const { return heads * head_dim; }
  // Columns of `projected`.
  [[nodiscard]] index b() const { return 3 * Q(); }
  [[nodiscard]] index f() const { return b() + heads; }
  [[nodiscard]] index g() const { return f() + (f_rank == 0 ? Q() : f_rank); }
  [[nodiscard]] index projected() const { return g() + (g_rank == 0 ? Q() : g_rank); }
};

/// [out, in], as checkpoints hold them. What is float here is float in every model.
template <class T> struct layer_weights {
  matrix<T> in;                       ///< [projected, X]: the rows of q, k, v, b, f and g
  matrix<T> f_b, g_b;                 ///< [Q, rank]; empty if full rank
  matrix<T> out;                      ///< [X, Q]
  matrix<float> conv;                 ///< [3 Q, W]
  std::vector<float> a_log, dt_bias;  ///< [H], [Q]
  std::vector<float> norm;            ///< [D]
};

/// What lies between the stages, for all tokens of a sequence. Kept whole, so that it can be looked at afterwards.
template <class T> struct activations {
  matrix<T> hidden, projected, f, g, qkv, core, normed, y;

  activations(index tokens, const layer_shape& s)
      : hidden(tokens, s.hidden),
        projected(tokens, s.projected()),
        f(s.f_rank == 0 ? 0 : tokens, s.Q()),
        g(s.g_rank == 0 ? 0 : tokens, s.Q()),
        qkv(tokens, 3 * s.Q()),
        core(tokens, s.Q()),
        normed(tokens, s.Q()),
        y(tokens, s.hidden) {}
};

/// Seconds spent, by stage.
struct stage_times {
  double projections = 0, conv = 0, core = 0, norm = 0, out = 0;
};

enum class core { prefill, decode };

/// One layer with the state of one sequence. T: bf16 or float, as in Spec.
template <class T, class Spec> class layer {
 public:
  std::vector<float> state;  ///< after the last call: [H, D, D], in the spec's layout
  matrix<T> conv_state;      ///< after the last call: [W - 1, 3 Q], oldest first

  layer(const kda::table<Spec>& kernels, thread_pool& pool, const layer_shape& shape, const layer_weights<T>& weights)
      : state(static_cast<std::size_t>(shape.Q() * shape.head_dim)),
        conv_state(shape.conv_width - 1, 3 * shape.Q()),
        kernels_(kernels),
        pool_(pool),
        shape_(shape),
        weights_(weights),
        scratch_(static_cast<std::size_t>(kda::workspace_bytes({.sequences = 1, .concurrency = pool.size()}))) {}

  /// Tokens [first, first + n) of the sequence: from a.hidden to a.y, by way of everything in between.
  void forward(activations<T>& a, index first, index n, core c, stage_times& times) {
    const layer_shape& s = shape_;
    const index H = s.heads, D = s.head_dim, Q = s.Q();
    const kda::workspace workspace{scratch_.data(), std::ssize(scratch_)};
    const kda::executor executor = pool_.executor();

    const auto block = [&](matrix<T>& m, index column, index width) { return m.block(first, n, column, width); };
    const auto heads = [&](matrix<T>& m, index column) {
      return kda::packed(m.at(first, column), n, H, D).token_stride(m.columns);
    };
    const auto f = s.f_rank == 0 ? heads(a.projected, s.f()) : heads(a.f, 0);
    const auto g = s.g_rank == 0 ? heads(a.projected, s.g()) : heads(a.g, 0);

    // A batch of one sequence, which keeps its states in slot 0.
    const std::int64_t offsets[] = {0, n}, slot[] = {0}, position[] = {first};
    const bool has_initial_state[] = {first > 0};
    const kda::sequences sequences{.offsets = kda::indices(offsets, 2),
                                   .load_slots = kda::indices(slot, 1),
                                   .store_slots = kda::indices(slot, 1),
                                   .has_initial_state = kda::packed(has_initial_state, 1),
                                   .first_position = kda::indices(position, 1)};

    stopwatch clock;
    linear<T>(pool_, block(a.hidden, 0, s.hidden), weights_.in, block(a.projected, 0, s.projected()));
    if (s.f_rank != 0) linear<T>(pool_, block(a.projected, s.f(), s.f_rank), weights_.f_b, block(a.f, 0, Q));
    if (s.g_rank != 0) linear<T>(pool_, block(a.projected, s.g(), s.g_rank), weights_.g_b, block(a.g, 0, Q));
    times.projections += clock.lap();

    require("conv", kernels_.conv({.x = block(a.projected, 0, 3 * Q),
                                   .weight = kda::packed(weights_.conv.at(0), 3 * Q, s.conv_width),
                                   .y = block(a.qkv, 0, 3 * Q),
                                   .sequences = sequences,
                                   .states = {.data = conv_state.at(0),
                                              .slots = 1,
                                              .slot_stride = 3 * Q * (s.conv_width - 1),
                                              .columns = s.conv_width - 1,
                                              .stride = 3 * Q}},
                                  workspace, executor));
    times.conv += clock.lap();

    const auto delta_rule = c == core::prefill ? kernels_.prefill : kernels_.decode;
    require("delta rule", delta_rule({.q = heads(a.qkv, 0),
                                      .k = heads(a.qkv, Q),
                                      .v = heads(a.qkv, 2 * Q),
                                      .gate = f,
                                      .beta = block(a.projected, s.b(), H),
                                      .out = heads(a.core, 0),
                                      .gate_params = gate_params(),
                                      .sequences = sequences,
                                      .states = {.data = state.data(), .slots = 1, .slot_stride = Q * D}},
                                     workspace, executor));
    times.core += clock.lap();

    require(
        "norm",
        kernels_.norm(
            {.x = heads(a.core, 0), .gate = g, .weight = all(weights_.norm), .eps = s.rms_eps, .y = heads(a.normed, 0)},
            workspace, executor));
    times.norm += clock.lap();

    linear<T>(pool_, block(a.normed, 0, Q), weights_.out, block(a.y, 0, s.hidden));
    times.out += clock.lap();
  }

 private:
  [[nodiscard]] auto gate_params() const {
    using params = decltype(kda::delta_rule_args<Spec>::gate_params);
    if constexpr (std::is_same_v<params, kda::bounded_gate_params>)
      return params{.lower_bound = shape_.lower_bound, .a_log = all(weights_.a_log), .dt_bias = all(weights_.dt_bias)};
    else
      return params{.a_log = all(weights_.a_log), .dt_bias = all(weights_.dt_bias)};
  }

  static void require(const char* call, const kda::status& s) {
    if (!s) throw std::runtime_error(std::string(call) + ": " + s.argument + " " + kda::message(s.what));
  }

  const kda::table<Spec>& kernels_;
  thread_pool& pool_;
  layer_shape shape_;
  const layer_weights<T>& weights_;
  std::vector<std::byte> scratch_;
};

}
