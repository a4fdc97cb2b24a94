// SPDX-License-Identifier: Apache-2.0
// Inputs of a layer of GLM-5.3-Flash's size from one linear congruential generator: the same on every machine, made by
// all threads at once, since each can start anywhere in the sequence.
#pragma once
#include "layer.hpp"

#include <cmath>
#include <cstdint>

namespace engine {

/// s <- 6364136223846793005 s + 1442695040888963407 (mod 2^64); a number is the upper 24 bits of s, in [-1, 1).
class uniform_numbers {
 public:
  explicit uniform_numbers(std::uint64_t seed, std::uint64_t skipped) : s_(seed) {
    // n steps are again s <- a s + c; the steps for powers of two come from squaring.
    for (std::uint64_t a = factor, c = summand; skipped != 0; skipped >>= 1, c *= a + 1, a *= a)
      if (skipped & 1) s_ = a * s_ + c;
  }
  float next() {
    s_ = factor * s_ + summand;
    return static_cast<float>(s_ >> 40) * 0x1p-23f - 1;
  }

 private:
  static constexpr std::uint64_t factor = 6364136223846793005u, summand = 1442695040888963407u;
  std::uint64_t s_;
};

/// Fills one tensor after the other from one sequence of numbers.
class tensor_source {
 public:
  tensor_source(thread_pool& pool, std::uint64_t seed) : pool_(pool), seed_(seed) {}

  /// x[i] = mean + spread * (the next number).
  template <class T> void fill(std::vector<T>& x, float mean, float spread) {
    constexpr index block = 1 << 16;
    const index size = std::ssize(x);
    pool_.for_each((size + block - 1) / block, [&](index task) {
      const index begin = task * block, end = std::min(begin + block, size);
      uniform_numbers numbers(seed_, used_ + static_cast<std::uint64_t>(begin));
      for (T* p = x.data() + begin; p != x.data() + end; ++p) *p = kda::round_to<T>(mean + spread * numbers.next());
    });
    used_ += static_cast<std::uint64_t>(size);
  }
  template <class T> void fill(matrix<T>& m, float mean, float spread) { fill(m.data, mean, spread); }

 private:
  thread_pool& pool_;
  std::uint64_t seed_, used_ = 0;
};

inline constexpr layer_shape glm_shape{.hidden = 4096,
                                       .heads = 64,
                                       .head_dim = 128,
                                       .conv_width = 4,
                                       .f_rank = 128,
                                       .g_rank = 128,
                                       .lower_bound = -5,
                                       .rms_eps = 1e-5f};

/// Hidden states of variance 1, as the norm before the layer leaves them, and weights that keep it so: 1 / in. Decays
/// reach from exp(-0.01) to exp(-2.5) a token.
inline layer_weights<kda::bf16> make_glm_weights(thread_pool& pool, matrix<kda::bf16>& hidden) {
  constexpr layer_shape s = glm_shape;
  layer_weights<kda::bf16> w{.in = {s.projected(), s.hidden},
                             .f_b = {s.Q(), s.f_rank},
                             .g_b = {s.Q(), s.g_rank},
                             .out = {s.hidden, s.Q()},
                             .conv = {3 * s.Q(), s.conv_width},
                             .a_log = std::vector<float>(static_cast<std::size_t>(s.heads)),
                             .dt_bias = std::vector<float>(static_cast<std::size_t>(s.Q())),
                             .norm = std::vector<float>(static_cast<std::size_t>(s.head_dim))};
  const auto unit_variance = [](index in) { return std::sqrt(3.f / static_cast<float>(in)); };
  tensor_source source(pool, 0x5eed1a70);
  source.fill(hidden, 0, unit_variance(1));
  source.fill(w.in, 0, unit_variance(s.hidden));
  source.fill(w.f_b, 0, unit_variance(s.f_rank));
  source.fill(w.g_b, 0, unit_variance(s.g_rank));
  source.fill(w.out, 0, unit_variance(s.Q()));
  source.fill(w.conv, 0, 0.5f);
  source.fill(w.a_log, 0, 0.5f);
  source.fill(w.dt_bias, -3, 3);
  source.fill(w.norm, 1, 0.1f);
  return w;
}

}
