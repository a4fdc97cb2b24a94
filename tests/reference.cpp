// SPDX-License-Identifier: Apache-2.0
// The double-precision reference against values worked out by hand, against itself in another form, and refusals.

#include "kda/reference.hpp"

#include "support/kda_catch.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <stdexcept>
#include <string>

namespace {

using namespace kda::reference;

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN();

/// max|got - want| / max|want|; infinite for different lengths and for a NaN on either side.
double worst(input got, input want) {
  if (got.size() != want.size()) return infinity;
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double e = std::abs(got[i] - want[i]);
    error = e >= 0 ? std::max(error, e) : infinity;
    size = std::max(size, std::abs(want[i]));
  }
  return error == 0 ? 0 : error / size;
}

values slice(input x, extent first, extent count) { return {x.data() + first, x.data() + first + count}; }

values concat(std::initializer_list<values> parts) {
  values all;
  for (const values& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

values map(input x, double (*f)(double)) {
  values y(x.begin(), x.end());
  for (double& e : y) e = f(e);
  return y;
}

/// Uniform values in [low, high), the same on every machine.
class generator {
 public:
  explicit generator(std::uint64_t seed) : state_(seed) {}
  values operator()(extent n, double low = -1, double high = 1) {
    values x(static_cast<std::size_t>(n));
    for (double& e : x) {
      state_ = state_ * 6364136223846793005u + 1442695040888963407u;
      e = low + (high - low) * static_cast<double>(state_ >> 40) / 16777216.0;
    }
    return x;
  }

 private:
  std::uint64_t state_;
};

delta_shape shape_of(extent T, extent H, extent HV, extent K, extent V, decay_kind decay,
                     head_map_kind head_map = head_map_kind::interleaved) {
  return {T, H, HV, K, V, decay, head_map};
}

/// A delta rule call with its arguments, so that the forms can be compared and the sequence cut.
struct problem {
  delta_shape shape;
  values q, k, v, g, beta, state;
  double scale;

  extent decay_width() const {
    switch (shape.decay) {
      case decay_kind::per_channel:
        return shape.value_heads * shape.key_dim;
      case decay_kind::per_head:
        return shape.value_heads;
      case decay_kind::none:
        return 0;
    }
    return -1;
  }

  /// The tokens [first, first + count), with the state as it is.
  problem tokens(extent first, extent count) const {
    const auto cut = [&](const values& x, extent width) { return slice(x, first * width, count * width); };
    problem part = *this;
    part.shape.tokens = count;
    part.q = cut(q, shape.key_heads * shape.key_dim);
    part.k = cut(k, shape.key_heads * shape.key_dim);
    part.v = cut(v, shape.value_heads * shape.value_dim);
    part.g = cut(g, decay_width());
    part.beta = cut(beta, shape.value_heads);
    return part;
  }

  values run_recurrent() { return recurrent(q, k, v, g, beta, state, shape, scale); }
  values run_chunked(extent chunk) { return chunked(q, k, v, g, beta, state, shape, scale, chunk); }
  values run_recurrent_prenorm() { return recurrent_prenorm(q, k, v, g, beta, state, shape, scale); }
  values run_chunked_prenorm(extent chunk) { return chunked_prenorm(q, k, v, g, beta, state, shape, scale, chunk); }
};

problem random_problem(const delta_shape& shape, std::uint64_t seed) {
  generator random(seed);
  const extent T = shape.tokens, H = shape.key_heads, HV = shape.value_heads, K = shape.key_dim, V = shape.value_dim;
  problem p{.shape = shape,
            .q = random(T * H * K),
            .k = random(T * H * K),
            .v = random(T * HV * V),
            .g = {},
            .beta = random(T * HV, 0, 2),
            .state = random(HV * K * V),
            .scale = 1 / std::sqrt(static_cast<double>(K))};
  p.g = random(T * p.decay_width(), -1.5, 0);
  return p;
}

}  // namespace

// ---------------------------------------------------------------------------------------------------------------------
// Activations, projection, norms

TEST_CASE("sigmoid and softplus are exact at zero, saturate without overflow and keep tiny results", "[reference]") {
  CHECK(sigmoid(0.0) == 0.5);
  CHECK(sigmoid(1e4) == 1);
  CHECK(sigmoid(-1e4) == 0);
  CHECK(sigmoid(-infinity) == 0);
  CHECK(sigmoid(infinity) == 1);
  CHECK(std::isnan(sigmoid(not_a_number)));
  CHECK(sigmoid(std::log(3.0)) == Approx(0.75).epsilon(1e-15));
  CHECK(sigmoid(-700.0) == Approx(std::exp(-700.0)).epsilon(1e-14));
  CHECK(softplus(0) == Approx(0.69314718055994530942).epsilon(1e-15));
  CHECK(softplus(std::log(3.0)) == Approx(1.3862943611198906188).epsilon(1e-15));
  CHECK(softplus(1e4) == 1e4);
  CHECK(softplus(-700) == Approx(std::exp(-700.0)).epsilon(1e-14));
  CHECK(std::isnan(softplus(not_a_number)));
}

TEST_CASE("beta is the sigmoid of its logits, doubled on request", "[reference]") {
  const values logits{0, std::log(3.0), -infinity, infinity};
  CHECK(worst(sigmoid(logits, 1), values{0.5, 0.75, 0, 1}) < 1e-15);
  CHECK(worst(sigmoid(logits, 2), values{1, 1.5, 0, 2}) < 1e-15);
}

TEST_CASE("silu multiplies by the sigmoid and none changes nothing", "[reference]") {
  const double z = std::log(3.0);
  CHECK(activate(activation_kind::silu, z) == Approx(0.75 * z).epsilon(1e-15));
  CHECK(activate(activation_kind::sigmoid, z) == Approx(0.75).epsilon(1e-15));
  CHECK(activate(activation_kind::none, z) == z);
}

TEST_CASE("linear takes its weight as [out, in]", "[reference]") {
  CHECK(linear(values{1, 2, 3, 4, 5, 6}, values{1, 0, -1, 2, 1, 0}, 2, 3, 2) == values{-2, 4, -2, 13});
  CHECK(linear({}, values{1, 2}, 0, 2, 1).empty());
}

TEST_CASE("the l2 norm adds its eps to the sum, inside the root", "[reference]") {
  const double scale = 0.25;
  const std::array<std::array<double, 2>, 6> table{{{1, 0.49999993750001171875},
                                                    {0.1, 0.49999375011718505907},
                                                    {0.01, 0.49937616943892233491},
                                                    {1e-3, 0.44721359549995793928},
                                                    {1e-4, 0.098058067569092007594},
                                                    {0, 0}}};  // amplitude a, a / sqrt(4 a^2 + 1e-6)
  for (const auto& [amplitude, want] : table) {
    CAPTURE(amplitude);
    const values y = l2norm_rows(values{amplitude, -amplitude, amplitude, amplitude}, 1, 4, 1e-6, scale);
    CHECK(worst(y, values{scale * want, -scale * want, scale * want, scale * want}) < 1e-15);
  }
  CHECK(l2norm_rows(values{3, 4, 0, 2}, 2, 2, 0, 1) == values{0.6, 0.8, 0, 1});
}

TEST_CASE("the gated RMS norm takes the mean, adds eps inside the root and gates after the weight", "[reference]") {
  const values x{3, -1, 0, 2};                             // mean of squares 5 and 2
  const values gate{std::log(3.0), 0, 0, -std::log(3.0)};  // sigmoid 3/4, 1/2, 1/2, 1/4
  const values weight{2, 10};
  const values sigmoid_want{3.0 / 3 * 2 * 0.75, -1.0 / 3 * 10 * 0.5, 0, 2.0 / std::sqrt(6.0) * 10 * 0.25};
  CHECK(worst(rms_norm_gated(x, gate, weight, 2, 2, 4, activation_kind::sigmoid), sigmoid_want) < 1e-15);
  const values silu_want{sigmoid_want[0] * std::log(3.0), 0, 0, -sigmoid_want[3] * std::log(3.0)};
  CHECK(worst(rms_norm_gated(x, gate, weight, 2, 2, 4, activation_kind::silu), silu_want) < 1e-15);
}

// ---------------------------------------------------------------------------------------------------------------------
// Gates

TEST_CASE("the gate laws follow their formulas over the whole table of arguments", "[reference]") {
  for (const double x : {-100., -20., -5., -1., 0., 1., 5., 20., 100.})
    for (const double a : {-4., 0., 2.77, 5.})
      for (const double bias : {-3., 0., 0.5}) {
        CAPTURE(x, a, bias);
        const long double rate = std::exp(static_cast<long double>(a));
        const long double z = static_cast<long double>(x) + static_cast<long double>(bias);
        const auto bounded_want = static_cast<double>(-5 / (1 + std::exp(-rate * z)));
        const auto softplus_want = static_cast<double>(-rate * std::log1p(std::exp(z)));
        CHECK(bounded_gate(values{x}, values{a}, values{bias}, -5, 1, 1, 1)[0] ==
              Approx(bounded_want).epsilon(1e-12).margin(1e-300));
        CHECK(unbounded_gate(values{x}, values{a}, values{bias}, 1, 1, 1)[0] == Approx(softplus_want).epsilon(1e-12));
        CHECK(unbounded_gdn_gate(values{x}, values{a}, values{bias}, 1, 1)[0] == Approx(softplus_want).epsilon(1e-12));
      }
}

TEST_CASE("the bound scales the sigmoid and does not clip", "[reference]") {
  CHECK(bounded_gate(values{0}, values{0}, {}, -5, 1, 1, 1) == values{-2.5});
  CHECK(bounded_gate(values{0}, values{0}, {}, -3, 1, 1, 1) == values{-1.5});
  CHECK(bounded_gate(values{std::log(3.0) / 2}, values{std::log(2.0)}, {}, -4, 1, 1, 1)[0] ==
        Approx(-3).epsilon(1e-15));
  CHECK(unbounded_gate(values{0}, values{std::log(3.0)}, {}, 1, 1, 1)[0] == Approx(-3 * std::log(2.0)).epsilon(1e-15));
}

TEST_CASE("A_log is per head, dt_bias per channel, and both may be absent where the law allows", "[reference]") {
  const values x{0, 0, 0, 0, 0, 0};  // [1, 2, 3]
  const values a_log{0, std::log(2.0)};
  const values dt_bias{0, 1, 2, 3, 4, 5};
  const values bounded = bounded_gate(x, a_log, dt_bias, -1, 1, 2, 3);
  const values unbounded = unbounded_gate(x, a_log, dt_bias, 1, 2, 3);
  for (std::size_t i = 0; i < 6; ++i) {
    CAPTURE(i);
    const double rate = i < 3 ? 1 : 2;
    CHECK(bounded[i] == Approx(-1 / (1 + std::exp(-rate * dt_bias[i]))).epsilon(1e-14));
    CHECK(unbounded[i] == Approx(-rate * std::log(1 + std::exp(dt_bias[i]))).epsilon(1e-14));
  }
  CHECK(bounded_gate(dt_bias, a_log, {}, -1, 1, 2, 3) == bounded);
  CHECK(bounded_gate(x, values{0, std::log(2.0), 0, 0}, dt_bias, -1, 1, 2, 3) == bounded);
  CHECK(bounded_gate(x, {}, dt_bias, -1, 1, 2, 3) == bounded_gate(x, values{0, 0}, dt_bias, -1, 1, 2, 3));
  CHECK(unbounded_gdn_gate(values{0, 0}, a_log, values{0, 3}, 1, 2) == values{unbounded[0], unbounded[3]});
}

TEST_CASE("every gate argument saturates to a decay in [0, 1], and a NaN stays where it is", "[reference]") {
  for (const double x : {-infinity, -1e4, -200., 0., 200., 1e4, infinity})
    for (const double bias : {-infinity, -1., 0., 1., infinity})
      for (const double a : {-infinity, -100., 0., 100., 1e4, infinity}) {
        CAPTURE(x, bias, a);
        const double bounded = bounded_gate(values{x}, values{a}, values{bias}, -5, 1, 1, 1)[0];
        CHECK((bounded >= -5 && bounded <= 0));
        const double unbounded = unbounded_gate(values{x}, values{a}, values{bias}, 1, 1, 1)[0];
        CHECK(unbounded <= 0);
      }
  CHECK(bounded_gate(values{-200}, values{100}, {}, -5, 1, 1, 1)[0] == 0);
  CHECK(bounded_gate(values{200}, values{100}, {}, -5, 1, 1, 1)[0] == -5);
  CHECK(bounded_gate(values{infinity}, values{-infinity}, {}, -5, 1, 1, 1)[0] == -2.5);
  CHECK(bounded_gate(values{infinity}, values{0}, values{-infinity}, -5, 1, 1, 1)[0] == -2.5);
  CHECK(unbounded_gate(values{-200}, values{100}, {}, 1, 1, 1)[0] ==
        Approx(-static_cast<double>(std::numeric_limits<float>::max()) * std::exp(-200.0)).epsilon(1e-12));
  CHECK(unbounded_gate(values{-infinity}, values{infinity}, {}, 1, 1, 1)[0] == 0);
  CHECK(std::exp(unbounded_gate(values{infinity}, values{0}, {}, 1, 1, 1)[0]) == 0);

  for (const values& g : {bounded_gate(values{not_a_number, 1, not_a_number, 1}, values{0, 0}, {}, -5, 2, 2, 1),
                          unbounded_gate(values{not_a_number, 1, not_a_number, 1}, values{0, 0}, {}, 2, 2, 1)}) {
    CHECK(std::isnan(g[0]));
    CHECK(g[1] < 0);
    CHECK(std::isnan(g[2]));
    CHECK(g[3] < 0);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Short convolution

TEST_CASE("the convolution gives the current token the last tap and returns the last raw inputs", "[reference]") {
  const values weight{1, 10, 100, 2, 20, 200};  // [2, 3]
  values state{1, -1, 2, -2};                   // tokens -2 and -1
  const values y = short_conv(values{3, -3, 4, -4}, weight, {}, state, 2, 2, 3, activation_kind::none);
  CHECK(y == values{321, -642, 432, -864});
  CHECK(state == values{3, -3, 4, -4});

  values fresh(4, 0.0);
  CHECK(short_conv(values{3, -3}, weight, values{0.5, 0.25}, fresh, 1, 2, 3, activation_kind::none) ==
        values{300.5, -599.75});
  CHECK(fresh == values{0, 0, 3, -3});
  CHECK(short_conv({}, weight, {}, fresh, 0, 2, 3, activation_kind::none).empty());
  CHECK(fresh == values{0, 0, 3, -3});

  values none;
  CHECK(worst(short_conv(values{std::log(3.0)}, values{1}, {}, none, 1, 1, 1, activation_kind::silu),
              values{0.75 * std::log(3.0)}) < 1e-15);
}

TEST_CASE("a convolution cut anywhere equals the whole, calls shorter than its window included", "[reference]") {
  const extent T = 7, C = 3;
  for (const extent W : {1, 2, 3, 4}) {
    generator random(1);
    const values x = random(T * C), weight = random(C * W), bias = random(C), state = random((W - 1) * C);
    values whole_state = state;
    const values whole = short_conv(x, weight, bias, whole_state, T, C, W, activation_kind::silu);
    for (extent first = 0; first <= T; ++first)
      for (extent second = first; second <= T; ++second) {
        CAPTURE(W, first, second);
        values part_state = state;
        values y;
        for (const auto& [from, to] : {std::array{extent{0}, first}, {first, second}, {second, T}}) {
          const values part = short_conv(slice(x, from * C, (to - from) * C), weight, bias, part_state, to - from, C, W,
                                         activation_kind::silu);
          y.insert(y.end(), part.begin(), part.end());
        }
        CHECK(y == whole);
        CHECK(part_state == whole_state);
      }
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// The delta rule

TEST_CASE("two tokens of width one: the decay comes before the error and the output after the update", "[reference]") {
  const delta_shape shape = shape_of(2, 1, 1, 1, 1, decay_kind::per_head);
  const values one{1, 1}, v{1, 2}, g{std::log(0.5), std::log(0.25)};
  const auto [beta, o_want] =
      GENERATE(table<double, std::array<double, 2>>({{1.0, {1, 2}}, {0.5, {0.5, 1.0625}}, {2.0, {2, 3.5}}}));
  const double scale = GENERATE(1.0, 0.375);
  const extent chunk = GENERATE(1, 2, 3);
  CAPTURE(beta, scale, chunk);

  values state{0};
  const values o = recurrent_prenorm(one, one, v, g, values{beta, beta}, state, shape, scale);
  CHECK(worst(o, values{scale * o_want[0], scale * o_want[1]}) < 1e-15);
  CHECK(worst(state, values{o_want[1]}) < 1e-15);

  state = {0};
  const values o_chunked = chunked_prenorm(one, one, v, g, values{beta, beta}, state, shape, scale, chunk);
  CHECK(worst(o_chunked, values{scale * o_want[0], scale * o_want[1]}) < 1e-15);
  CHECK(worst(state, values{o_want[1]}) < 1e-15);
}

TEST_CASE("one token on a 2 x 3 state: the decay scales key rows", "[reference]") {
  const delta_shape shape = shape_of(1, 1, 1, 2, 3, decay_kind::per_channel);
  const values initial{1, 2, 3, 4, 5, 6};  // rows decay to (0.5, 1, 1.5) and (1, 1.25, 1.5)
  const values q{3, -1}, k{1, 2}, v{1, 1, 1}, g{std::log(0.5), std::log(0.25)}, beta{0.5};
  const values o_want{-0.5, 1, 2.5};  // deltas -0.75, -1.25, -1.75; scale 2
  const values state_want{-0.25, -0.25, -0.25, -0.5, -1.25, -2};

  values state = initial;
  CHECK(worst(recurrent_prenorm(q, k, v, g, beta, state, shape, 2), o_want) < 1e-15);
  CHECK(worst(state, state_want) < 1e-15);
  state = initial;
  CHECK(worst(chunked_prenorm(q, k, v, g, beta, state, shape, 2, 4), o_want) < 1e-15);
  CHECK(worst(state, state_want) < 1e-15);
}

TEST_CASE("three tokens of width one: the forward substitution has every product of earlier rows", "[reference]") {
  const delta_shape shape = shape_of(3, 1, 1, 1, 1, decay_kind::none);
  // S: 0.5, then 0.5 + 2 (0 - 2 * 0.5) * 0.5 = -0.5, then -0.5 - (4 - 0.5) * 1 * 0.5 = -2.25, all from S = 0.
  const values q{1, 2, 3}, k{1, 2, -1}, v{1, 0, 4}, beta{0.5, 0.5, 0.5};
  const extent chunk = GENERATE(1, 2, 3);
  values state{0};
  CHECK(worst(recurrent_prenorm(q, k, v, {}, beta, state, shape, 1), values{0.5, -1, -6.75}) < 1e-15);
  CHECK(worst(state, values{-2.25}) < 1e-15);
  state = {0};
  CHECK(worst(chunked_prenorm(q, k, v, {}, beta, state, shape, 1, chunk), values{0.5, -1, -6.75}) < 1e-15);
  CHECK(worst(state, values{-2.25}) < 1e-15);
}

TEST_CASE("chunked equals recurrent for every chunk size, length, decay, head map and shape", "[reference]") {
  const extent tokens = GENERATE(0, 1, 2, 5, 16, 17, 33);
  const auto decay = GENERATE(decay_kind::per_channel, decay_kind::per_head, decay_kind::none);
  const auto [key_heads, value_heads] = GENERATE(table<extent, extent>({{1, 1}, {2, 6}}));
  const auto head_map = GENERATE(head_map_kind::interleaved, head_map_kind::tiled);
  const auto [key_dim, value_dim] = GENERATE(table<extent, extent>({{5, 3}, {3, 7}, {1, 1}}));
  const problem initial =
      random_problem(shape_of(tokens, key_heads, value_heads, key_dim, value_dim, decay, head_map), 2);
  problem one = initial;
  const values o = one.run_recurrent();
  for (const extent chunk : {1, 2, 3, 4, 16, 32, 64}) {
    CAPTURE(tokens, int(decay), key_heads, value_heads, int(head_map), key_dim, value_dim, chunk);
    problem other = initial;
    CHECK(worst(other.run_chunked(chunk), o) < 1e-13);
    CHECK(worst(other.state, one.state) < 1e-13);
  }
}

TEST_CASE("chunked equals recurrent in the hard regimes of decay", "[reference]") {
  const double hard = GENERATE(0.0, -0.01, -3.0, -5.0, -27.6, -1e4, -infinity);
  const auto decay = GENERATE(decay_kind::per_channel, decay_kind::per_head);
  const extent every = GENERATE(1, 2, 7);  // the others decay a little
  CAPTURE(hard, int(decay), every);
  problem initial = random_problem(shape_of(40, 1, 2, 6, 4, decay), 3);
  for (std::size_t i = 0; i < initial.g.size(); i += static_cast<std::size_t>(every)) initial.g[i] = hard;
  problem one = initial;
  const values o = one.run_recurrent();
  for (const extent chunk : {1, 4, 16, 64}) {
    CAPTURE(chunk);
    problem other = initial;
    CHECK(worst(other.run_chunked(chunk), o) < 1e-13);
    CHECK(worst(other.state, one.state) < 1e-13);
  }
}

TEST_CASE("equal keys with beta up to two neither grow nor part the two forms", "[reference]") {
  const double beta = GENERATE(0.9, 1.0, 1.9, 2.0);
  problem initial = random_problem(shape_of(64, 1, 1, 4, 3, decay_kind::none), 4);
  for (std::size_t i = 4; i < initial.k.size(); ++i) initial.k[i] = initial.k[i - 4];
  for (double& b : initial.beta) b = beta;
  problem one = initial;
  const values o = one.run_recurrent();
  problem other = initial;
  CHECK(worst(other.run_chunked(64), o) < 1e-12);
  CHECK(worst(other.state, one.state) < 1e-12);
  for (const double s : one.state) CHECK(std::abs(s) < 150);
}

TEST_CASE("a sequence cut anywhere continues from its state", "[reference]") {
  const auto decay = GENERATE(decay_kind::per_channel, decay_kind::per_head, decay_kind::none);
  const problem initial = random_problem(shape_of(11, 2, 4, 5, 3, decay, head_map_kind::tiled), 5);
  problem whole = initial;
  const values o = whole.run_recurrent();
  for (extent cut = 0; cut <= 11; ++cut) {
    CAPTURE(int(decay), cut);
    problem first = initial.tokens(0, cut), second = initial.tokens(cut, 11 - cut);
    const values o_first = first.run_recurrent();
    second.state = first.state;
    CHECK(concat({o_first, second.run_recurrent()}) == o);
    CHECK(second.state == whole.state);

    first = initial.tokens(0, cut), second = initial.tokens(cut, 11 - cut);
    const values o_first_chunked = first.run_chunked(4);
    second.state = first.state;
    CHECK(worst(concat({o_first_chunked, second.run_chunked(4)}), o) < 1e-13);
    CHECK(worst(second.state, whole.state) < 1e-13);
  }
}

TEST_CASE("only the decays after a token act on what it stored", "[reference]") {
  const extent T = 12;
  const extent decayed = GENERATE(0, 3, 4, 5, 11);
  for (const extent stored : {0, 3, 4, 8, 11}) {
    CAPTURE(decayed, stored);
    problem p = random_problem(shape_of(T, 1, 1, 1, 1, decay_kind::per_head), 6);
    p.k = p.q = p.v = p.beta = p.g = values(T, 0.0);
    p.state = {0};
    p.k[static_cast<std::size_t>(stored)] = p.v[static_cast<std::size_t>(stored)] = 1;
    p.beta[static_cast<std::size_t>(stored)] = 1;
    p.g[static_cast<std::size_t>(decayed)] = -3;
    const double want = stored < decayed ? std::exp(-3.0) : 1;
    problem one = p, other = p;
    one.run_recurrent_prenorm();
    other.run_chunked_prenorm(4);
    CHECK(one.state[0] == Approx(want).epsilon(1e-15));
    CHECK(other.state[0] == Approx(want).epsilon(1e-15));
  }
}

TEST_CASE("each key channel has its own decay", "[reference]") {
  problem p = random_problem(shape_of(9, 1, 2, 3, 2, decay_kind::per_channel), 7);
  for (double& k : p.k) k = 0;  // nothing is stored, so the state only decays
  const values initial = p.state;
  for (const bool chunk : {false, true}) {
    problem run = p;
    chunk ? run.run_chunked(4) : run.run_recurrent();
    for (std::size_t h = 0; h < 2; ++h)
      for (std::size_t d = 0; d < 3; ++d) {
        double sum = 0;
        for (std::size_t t = 0; t < 9; ++t) sum += p.g[(t * 2 + h) * 3 + d];
        for (std::size_t c = 0; c < 2; ++c) {
          CAPTURE(chunk, h, d, c);
          CHECK(run.state[(h * 3 + d) * 2 + c] == Approx(std::exp(sum) * initial[(h * 3 + d) * 2 + c]).epsilon(1e-13));
        }
      }
  }
}

TEST_CASE("equal decays over the channels are one decay per head, and zero decays are none", "[reference]") {
  problem channel = random_problem(shape_of(10, 1, 3, 4, 2, decay_kind::per_channel), 8);
  const bool zero = GENERATE(false, true);
  problem head = channel;
  head.shape.decay = decay_kind::per_head;
  head.g = generator(9)(30, -2, 0);
  if (zero) head.g = values(30, 0.0);
  for (std::size_t i = 0; i < channel.g.size(); ++i) channel.g[i] = head.g[i / 4];
  problem none = channel;
  none.shape.decay = decay_kind::none;
  none.g = {};
  const values o = channel.run_recurrent();
  CHECK(head.run_recurrent() == o);
  CHECK(head.state == channel.state);
  CHECK((none.run_recurrent() == o) == zero);
  CHECK((none.state == channel.state) == zero);
}

TEST_CASE("a log decay of minus infinity forgets everything before it, state included", "[reference]") {
  problem p = random_problem(shape_of(10, 1, 1, 3, 2, decay_kind::per_channel), 10);
  for (std::size_t d = 0; d < 3; ++d) p.g[6 * 3 + d] = -infinity;
  problem rest = p.tokens(6, 4);
  rest.state = values(6, 0.0);
  const values o_rest = rest.run_recurrent();
  for (const extent chunk : {0, 1, 4, 16}) {
    CAPTURE(chunk);
    problem run = p;
    const values o = chunk == 0 ? run.run_recurrent() : run.run_chunked(chunk);
    CHECK(worst(slice(o, 6 * 2, 4 * 2), o_rest) < 1e-14);
    CHECK(worst(run.state, rest.state) < 1e-14);
  }
}

TEST_CASE("value heads share query and key heads by either map", "[reference]") {
  const auto [map_kind, heads] = GENERATE(table<head_map_kind, std::array<extent, 6>>(
      {{head_map_kind::interleaved, {0, 0, 0, 1, 1, 1}}, {head_map_kind::tiled, {0, 1, 0, 1, 0, 1}}}));
  const extent T = 5, K = 4;
  problem shared = random_problem(shape_of(T, 2, 6, K, 3, decay_kind::per_channel, map_kind), 11);
  problem repeated = shared;
  repeated.shape.key_heads = 6;
  repeated.q = repeated.k = {};
  for (extent t = 0; t < T; ++t)
    for (const extent h : heads) {
      repeated.q = concat({repeated.q, slice(shared.q, (t * 2 + h) * K, K)});
      repeated.k = concat({repeated.k, slice(shared.k, (t * 2 + h) * K, K)});
    }
  problem chunked_too = shared;
  const values o = repeated.run_recurrent();
  CHECK(shared.run_recurrent() == o);
  CHECK(shared.state == repeated.state);
  CHECK(worst(chunked_too.run_chunked(2), o) < 1e-13);
}

TEST_CASE("recurrent and chunked normalise q and k once, v never; prenorm takes them as they come", "[reference]") {
  const problem initial = random_problem(shape_of(6, 2, 2, 4, 3, decay_kind::per_channel), 12);
  problem normalised = initial;
  normalised.q = l2norm_rows(initial.q, 12, 4, 1e-6, 1);
  normalised.k = l2norm_rows(initial.k, 12, 4, 1e-6, 1);
  problem scaled = normalised;
  scaled.q = l2norm_rows(initial.q, 12, 4, 1e-6, initial.scale);
  scaled.scale = 1;

  problem raw = initial, raw_chunked = initial, twice = normalised, unnormalised = initial;
  problem prenorm = normalised, prenorm_chunked = normalised;
  const values o = raw.run_recurrent();
  CHECK(prenorm.run_recurrent_prenorm() == o);
  CHECK(prenorm.state == raw.state);
  CHECK(worst(scaled.run_recurrent_prenorm(), o) < 1e-14);
  CHECK(prenorm_chunked.run_chunked_prenorm(4) == raw_chunked.run_chunked(4));
  CHECK(prenorm_chunked.state == raw_chunked.state);
  CHECK(worst(twice.run_recurrent(), o) > 1e-8);
  CHECK(worst(unnormalised.run_recurrent_prenorm(), o) > 1e-2);

  problem doubled = initial, plain = initial;
  doubled.state = plain.state = values(initial.state.size(), 0.0);
  for (double& v : doubled.v) v *= 2;
  values twice_o = plain.run_recurrent();
  for (double& x : twice_o) x *= 2;
  CHECK(doubled.run_recurrent() == twice_o);
}

TEST_CASE("a zero key only decays the state", "[reference]") {
  problem p = random_problem(shape_of(1, 1, 1, 3, 2, decay_kind::per_head), 13);
  p.k = values(3, 0.0);
  p.g = {std::log(0.5)};
  const values before = p.state;
  p.run_recurrent();
  CHECK(worst(p.state, map(before, [](double s) { return s / 2; })) < 1e-15);
}

TEST_CASE("zero tokens at the end change nothing, and no output sees a later token", "[reference]") {
  const extent H = 2, K = 4, V = 3;
  const problem initial = random_problem(shape_of(6, H, H, K, V, decay_kind::per_channel), 14);
  const auto padded = [&](double with) {
    problem p = initial;
    p.shape.tokens = 8;
    for (values* x : {&p.q, &p.k, &p.v, &p.g, &p.beta}) x->resize(x->size() / 6 * 8, with);
    return p;
  };
  for (const extent chunk : {0, 3, 4, 8}) {
    CAPTURE(chunk);
    const auto run = [&](problem& p) { return chunk == 0 ? p.run_recurrent() : p.run_chunked(chunk); };
    problem plain = initial, inert = padded(0), poisoned = padded(not_a_number);
    const values o = run(plain);
    CHECK(slice(run(inert), 0, 6 * H * V) == o);
    CHECK(worst(inert.state, plain.state) < 1e-15);
    CHECK(slice(run(poisoned), 0, 6 * H * V) == o);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// Whole layers

namespace {

/// A layer with weights of its own: low-rank gates for KDA, full-rank ones for GDN.
struct layer {
  layer_dims dims;
  values qkv_proj, conv_weight, f_a, f_b, f, a_log, dt_bias, b_proj, g_a, g_b, g, norm_weight, o_proj;

  layer(const layer_dims& given, std::uint64_t seed) : dims(given) {
    generator random(seed);
    const bool kda = dims.decay == decay_kind::per_channel;
    const extent rank = 2, D = kda ? dims.key_dim : 1;
    qkv_proj = random(channels() * dims.hidden);
    conv_weight = random(channels() * dims.conv_width);
    (kda ? f_a : f) = random((kda ? rank : dims.value_heads) * dims.hidden);
    if (kda) f_b = random(dims.value_heads * D * rank);
    a_log = random(dims.value_heads);
    dt_bias = random(dims.value_heads * D);
    b_proj = random(dims.value_heads * dims.hidden);
    (kda ? g_a : g) = random((kda ? rank : values_width()) * dims.hidden);
    if (kda) g_b = random(values_width() * rank);
    norm_weight = random(dims.value_dim, 0.5, 1.5);
    o_proj = random(dims.hidden * values_width());
  }

  extent keys_width() const { return dims.key_heads * dims.key_dim; }
  extent values_width() const { return dims.value_heads * dims.value_dim; }
  extent channels() const { return 2 * keys_width() + values_width(); }
  values fresh_state() const { return values(static_cast<std::size_t>(values_width() * dims.key_dim)); }
  values fresh_conv_state() const { return values(static_cast<std::size_t>((dims.conv_width - 1) * channels())); }

  layer_weights weights() const {
    return {.qkv_proj = qkv_proj,
            .conv_weight = conv_weight,
            .f_a = f_a,
            .f_b = f_b,
            .f = f,
            .a_log = a_log,
            .dt_bias = dt_bias,
            .b_proj = b_proj,
            .g_a = g_a,
            .g_b = g_b,
            .g = g,
            .norm_weight = norm_weight,
            .o_proj = o_proj};
  }
};

const layer_dims kda_dims{.hidden = 6,
                          .key_heads = 2,
                          .value_heads = 2,
                          .key_dim = 4,
                          .value_dim = 4,
                          .decay = decay_kind::per_channel,
                          .head_map = head_map_kind::interleaved,
                          .scale = 0.5,
                          .gate = gate_kind::bounded,
                          .lower_bound = -5,
                          .conv_width = 4,
                          .conv_activation = activation_kind::silu,
                          .norm_activation = activation_kind::sigmoid,
                          .rms_eps = 1e-5};

const layer_dims gdn_dims{.hidden = 6,
                          .key_heads = 2,
                          .value_heads = 4,
                          .key_dim = 4,
                          .value_dim = 3,
                          .decay = decay_kind::per_head,
                          .head_map = head_map_kind::interleaved,
                          .scale = 0.5,
                          .gate = gate_kind::softplus,
                          .conv_width = 4,
                          .conv_activation = activation_kind::silu,
                          .norm_activation = activation_kind::silu,
                          .rms_eps = 1e-6};

struct layer_run {
  values y, conv_state, state;
};

layer_run run(const layer& l, const layer_weights& weights, input hidden_states, std::initializer_list<extent> splits,
              extent chunk) {
  layer_run result{{}, l.fresh_conv_state(), l.fresh_state()};
  extent first = 0;
  for (const extent count : splits) {
    result.y = concat({result.y, reference_layer(slice(hidden_states, first * l.dims.hidden, count * l.dims.hidden),
                                                 result.conv_state, result.state, weights, l.dims, count, chunk)});
    first += count;
  }
  return result;
}

void check_equal(const layer_run& got, const layer_run& want) {
  CHECK(worst(got.y, want.y) < 1e-13);
  CHECK(worst(got.conv_state, want.conv_state) < 1e-13);
  CHECK(worst(got.state, want.state) < 1e-13);
}

}  // namespace

TEST_CASE("a layer of width one gives the value worked out by hand", "[reference]") {
  const layer_dims dims{.hidden = 1,
                        .key_heads = 1,
                        .value_heads = 1,
                        .key_dim = 1,
                        .value_dim = 1,
                        .decay = decay_kind::per_channel,
                        .head_map = head_map_kind::interleaved,
                        .scale = 1,
                        .gate = gate_kind::bounded,
                        .lower_bound = -4 * std::log(2.0),
                        .conv_width = 2,
                        .conv_activation = activation_kind::none,
                        .norm_activation = activation_kind::sigmoid,
                        .rms_eps = 15};
  const double log3 = std::log(3.0);
  const values q_proj{1e6}, k_proj{-1e6}, v_proj{4}, conv{0, 1, 0, 1, 1, 1}, f{log3 / 2}, a_log{std::log(2.0)}, zero{0},
      b_proj{log3}, g{-log3}, norm_weight{10}, o_proj{3};
  const layer_weights weights{.q_proj = q_proj,
                              .k_proj = k_proj,
                              .v_proj = v_proj,
                              .conv_weight = conv,
                              .f = f,
                              .a_log = a_log,
                              .dt_bias = zero,
                              .b_proj = b_proj,
                              .g = g,
                              .norm_weight = norm_weight,
                              .o_proj = o_proj};
  values conv_state{9, 9, 4}, state{8};
  // q = 1, k = -1, v = 4 + 4 = 8; g = -4 log 2 * 3/4, so S decays to 1; beta = 3/4; delta = 3/4 (8 + 1) = 27/4;
  // S = 1 - 27/4 = -23/4 = o; y = 3 * 10 * o / sqrt(o^2 + 15) / 4.
  const double o = -23.0 / 4;
  const values y = reference_layer(values{1}, conv_state, state, weights, dims, 1, token_by_token);
  CHECK(worst(y, values{7.5 * o / std::sqrt(o * o + 15)}) < 1e-12);
  CHECK(worst(state, values{o}) < 1e-12);
  CHECK(conv_state == values{1e6, -1e6, 4});
}

TEST_CASE("a layer cut anywhere, chunked or token by token, equals the whole", "[reference]") {
  const layer l(GENERATE(kda_dims, gdn_dims), 20);
  const values hidden_states = generator(21)(6 * l.dims.hidden);
  const layer_run whole = run(l, l.weights(), hidden_states, {6}, token_by_token);
  for (const extent chunk : {token_by_token, extent{2}, extent{4}, extent{64}}) {
    CAPTURE(chunk);
    check_equal(run(l, l.weights(), hidden_states, {6}, chunk), whole);
    check_equal(run(l, l.weights(), hidden_states, {4, 1, 1}, chunk), whole);
    check_equal(run(l, l.weights(), hidden_states, {1, 0, 2, 3}, chunk), whole);
  }
}

TEST_CASE("low-rank gates equal full-rank ones with the product of their weights", "[reference]") {
  const layer l(kda_dims, 22);
  const values hidden_states = generator(23)(5 * l.dims.hidden);
  const auto product = [](const values& b, const values& a, extent out, extent rank, extent in) {
    values transposed;
    for (extent i = 0; i < in; ++i)
      for (extent r = 0; r < rank; ++r) transposed.push_back(a[static_cast<std::size_t>(r * in + i)]);
    return linear(b, transposed, out, rank, in);
  };
  const values f = product(l.f_b, l.f_a, 8, 2, 6), g = product(l.g_b, l.g_a, 8, 2, 6);
  layer_weights full = l.weights();
  full.f_a = full.f_b = full.g_a = full.g_b = {};
  full.f = f;
  full.g = g;
  const layer_run want = run(l, l.weights(), hidden_states, {5}, token_by_token);
  check_equal(run(l, full, hidden_states, {5}, token_by_token), want);
  full.g = f;
  CHECK(worst(run(l, full, hidden_states, {5}, token_by_token).y, want.y) > 1e-3);
}

TEST_CASE("projections may come stacked or apart, and under the names of KDA or GDN", "[reference]") {
  const layer l(gdn_dims, 24);
  const extent X = l.dims.hidden, Q = l.keys_width(), R = l.values_width();
  const values hidden_states = generator(25)(5 * X);
  const values q_proj = slice(l.qkv_proj, 0, Q * X), k_proj = slice(l.qkv_proj, Q * X, Q * X),
               v_proj = slice(l.qkv_proj, 2 * Q * X, R * X);
  layer_weights other = l.weights();
  other.q_proj = q_proj;
  other.k_proj = k_proj;
  other.v_proj = v_proj;
  other.qkv_proj = {};
  other.a_proj = l.f;
  other.z_proj = l.g;
  other.f = other.g = {};
  check_equal(run(l, other, hidden_states, {5}, token_by_token),
              run(l, l.weights(), hidden_states, {5}, token_by_token));
}

TEST_CASE("a layer is its operations in order, from either of its entries", "[reference]") {
  const layer l(GENERATE(kda_dims, gdn_dims), 26);
  const layer_dims& d = l.dims;
  const extent T = 6, X = d.hidden, Q = l.keys_width(), R = l.values_width(), C = l.channels();
  const bool kda = d.decay == decay_kind::per_channel;
  const values hidden_states = generator(27)(T * X);

  values conv_state = l.fresh_conv_state();
  values q_state = slice(conv_state, 0, 3 * Q), k_state = q_state, v_state = slice(conv_state, 0, 3 * R);
  const auto conv = [&](extent first, extent width, values& state) {
    return short_conv(linear(hidden_states, slice(l.qkv_proj, first * X, width * X), T, X, width),
                      slice(l.conv_weight, first * 4, width * 4), {}, state, T, width, 4, d.conv_activation);
  };
  const values q = conv(0, Q, q_state), k = conv(Q, Q, k_state), v = conv(2 * Q, R, v_state);
  const values g =
      kda ? bounded_gate(linear(linear(hidden_states, l.f_a, T, X, 2), l.f_b, T, 2, Q), l.a_log, l.dt_bias, -5, T, 2, 4)
          : unbounded_gdn_gate(linear(hidden_states, l.f, T, X, 4), l.a_log, l.dt_bias, T, 4);
  const values beta = sigmoid(linear(hidden_states, l.b_proj, T, X, d.value_heads), 1);
  const values gate =
      kda ? linear(linear(hidden_states, l.g_a, T, X, 2), l.g_b, T, 2, R) : linear(hidden_states, l.g, T, X, R);
  values state = l.fresh_state();
  const values o =
      recurrent(q, k, v, g, beta, state,
                shape_of(T, d.key_heads, d.value_heads, d.key_dim, d.value_dim, d.decay, d.head_map), d.scale);
  const values y =
      linear(rms_norm_gated(o, gate, l.norm_weight, T * d.value_heads, d.value_dim, d.rms_eps, d.norm_activation),
             l.o_proj, T, R, X);

  values layer_state = l.fresh_state();
  CHECK(worst(reference_layer(q, k, v, hidden_states, layer_state, l.weights(), d, T, token_by_token), y) < 1e-14);
  CHECK(worst(layer_state, state) < 1e-14);

  layer_state = l.fresh_state();
  CHECK(worst(reference_layer(hidden_states, conv_state, layer_state, l.weights(), d, T, token_by_token), y) < 1e-14);
  CHECK(worst(layer_state, state) < 1e-14);
  for (extent w = 0; w < 3; ++w)
    CHECK(slice(conv_state, w * C, C) ==
          concat({slice(q_state, w * Q, Q), slice(k_state, w * Q, Q), slice(v_state, w * R, R)}));
}

// ---------------------------------------------------------------------------------------------------------------------
// Refusals

#ifdef __cpp_exceptions

namespace {

template <class Call> std::string refusal(Call call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

TEST_CASE("a wrong size or value is refused by name before anything is written", "[reference]") {
  const values one{1}, two{1, 2};

  CHECK(refusal([&] { linear(two, one, 1, 1, 1); }) == "kda::reference: x holds 2 values, not 1 x 1");
  CHECK(refusal([&] { linear(one, two, 1, 1, 1); }) == "kda::reference: weight holds 2 values, not 1 x 1");
  CHECK(refusal([&] { linear(one, one, -1, -1, 1); }) == "kda::reference: x has a negative extent in its shape");
  CHECK(refusal([&] { l2norm_rows(one, 1, 1, -1e-6, 1); }) == "kda::reference: eps is negative");
  CHECK(refusal([&] { l2norm_rows(one, 1, 1, not_a_number, 1); }) == "kda::reference: eps is negative");
  CHECK(refusal([&] { l2norm_rows(one, 1, 1, 1e-6, 1); }) == "accepted");
  CHECK(refusal([&] { rms_norm_gated(one, two, one, 1, 1, 0, activation_kind::silu); }) ==
        "kda::reference: gate holds 2 values, not 1 x 1");
  CHECK(refusal([&] { rms_norm_gated(one, one, two, 1, 1, 0, activation_kind::silu); }) ==
        "kda::reference: weight holds 2 values, not 1");
  CHECK(refusal([&] { rms_norm_gated(one, one, one, 1, 1, -1, activation_kind::silu); }) ==
        "kda::reference: eps is negative");

  for (const double bound : {0., 1., -infinity, infinity, not_a_number})
    CHECK(refusal([&] { bounded_gate(one, one, one, bound, 1, 1, 1); }) ==
          "kda::reference: lower_bound is not a finite number below zero");
  CHECK(refusal([&] { bounded_gate(two, one, two, -5, 1, 2, 1); }) ==
        "kda::reference: a_log has fewer values than there are heads");
  CHECK(refusal([&] { bounded_gate(two, one, one, -5, 1, 1, 2); }) ==
        "kda::reference: dt_bias holds 1 values, not 1 x 2");
  CHECK(refusal([&] { unbounded_gate(one, {}, one, 1, 1, 1); }) ==
        "kda::reference: a_log is empty, which only the bounded gate allows");

  values conv_state{7};
  const auto conv = [&](input x, input weight, input bias, extent width) {
    return refusal([&] { short_conv(x, weight, bias, conv_state, 1, 1, width, activation_kind::none); });
  };
  CHECK(conv(one, two, {}, 0) == "kda::reference: width is below one");
  CHECK(conv(two, two, {}, 2) == "kda::reference: x holds 2 values, not 1 x 1");
  CHECK(conv(one, one, {}, 2) == "kda::reference: weight holds 1 values, not 1 x 2");
  CHECK(conv(one, two, two, 2) == "kda::reference: bias holds 2 values, not 1");
  CHECK(conv(one, values{1, 2, 3}, {}, 3) == "kda::reference: state holds 1 values, not 2 x 1");
  CHECK(conv_state == values{7});
  CHECK(conv(one, two, {}, 2) == "accepted");
}

TEST_CASE("the delta rule refuses every argument of the wrong size and writes nothing", "[reference]") {
  const problem good = random_problem(shape_of(3, 2, 4, 5, 6, decay_kind::per_channel), 30);
  const auto check_refused = [&](void (*spoil)(problem&), const char* sentence) {
    problem p = good;
    spoil(p);
    const values before = p.state;
    const std::string want = std::string("kda::reference: ") + sentence;
    CHECK(refusal([&] { p.run_recurrent(); }) == want);
    CHECK(refusal([&] { p.run_recurrent_prenorm(); }) == want);
    CHECK(refusal([&] { p.run_chunked(2); }) == want);
    CHECK(refusal([&] { p.run_chunked_prenorm(2); }) == want);
    CHECK(p.state == before);
  };
  check_refused([](problem& p) { p.q.pop_back(); }, "q holds 29 values, not 3 x 2 x 5");
  check_refused([](problem& p) { p.k.push_back(0); }, "k holds 31 values, not 3 x 2 x 5");
  check_refused([](problem& p) { p.v.pop_back(); }, "v holds 71 values, not 3 x 4 x 6");
  check_refused([](problem& p) { p.g.pop_back(); }, "g holds 59 values, not 3 x 4 x 5");
  check_refused([](problem& p) { p.shape.decay = decay_kind::per_head; }, "g holds 60 values, not 3 x 4");
  check_refused([](problem& p) { p.shape.decay = decay_kind::none; }, "g holds 60 values, not 0");
  check_refused([](problem& p) { p.beta.pop_back(); }, "beta holds 11 values, not 3 x 4");
  check_refused([](problem& p) { p.state.pop_back(); }, "state holds 119 values, not 4 x 5 x 6");
  check_refused([](problem& p) { p.shape.key_heads = 0; }, "key_heads is below one");
  check_refused([](problem& p) { p.shape.key_heads = 3; }, "value_heads is not a multiple of key_heads");
  check_refused([](problem& p) { p.shape.value_heads = 0; }, "value_heads is not a multiple of key_heads");
  check_refused([](problem& p) { p.shape.key_dim = 0; }, "key_dim is below one");
  check_refused([](problem& p) { p.shape.value_dim = -1; }, "value_dim is below one");
  check_refused([](problem& p) { p.shape.tokens = -1; }, "q has a negative extent in its shape");

  problem p = good;
  CHECK(refusal([&] { p.run_chunked(0); }) == "kda::reference: chunk_size is below one");
  CHECK(p.state == good.state);
}

TEST_CASE("a layer refuses ambiguous, missing and wrong weights by name and writes nothing", "[reference]") {
  const layer l(kda_dims, 31);
  const values hidden_states = generator(32)(2 * l.dims.hidden);
  const values spare(5);
  const auto check_refused = [&](auto spoil, const char* sentence) {
    layer_weights weights = l.weights();
    layer_dims dims = l.dims;
    spoil(weights, dims);
    values conv_state = generator(33)(3 * l.channels()), state = generator(34)(2 * 4 * 4);
    const values conv_before = conv_state, before = state;
    CHECK(refusal([&] { reference_layer(hidden_states, conv_state, state, weights, dims, 2, 2); }) ==
          std::string("kda::reference: ") + sentence);
    CHECK(conv_state == conv_before);
    CHECK(state == before);
  };
  using w = layer_weights;
  using d = layer_dims;
  const char* qkv = "give exactly one of qkv_proj, and q_proj with k_proj and v_proj";
  const char* f = "give exactly one of f_a with f_b, f, a_proj";
  const char* g = "give exactly one of g_a with g_b, g, z_proj";
  check_refused([&](w& x, d&) { x.q_proj = spare; }, qkv);
  check_refused([&](w& x, d&) { x.qkv_proj = {}; }, qkv);
  check_refused([&](w& x, d&) { x.qkv_proj = {}, x.k_proj = spare; }, "q_proj holds 0 values, not 8 x 6");
  check_refused([&](w& x, d&) { x.qkv_proj = spare; }, "qkv_proj holds 5 values, not 24 x 6");
  check_refused([&](w& x, d&) { x.conv_weight = spare; }, "conv_weight holds 5 values, not 24 x 4");
  check_refused([&](w& x, d&) { x.f = spare; }, f);
  check_refused([&](w& x, d&) { x.a_proj = spare; }, f);
  check_refused([&](w& x, d&) { x.f_a = x.f_b = {}; }, f);
  check_refused([&](w& x, d&) { x.f_b = {}; }, "f_b holds 0 values, not 8 x 2");
  check_refused([&](w& x, d&) { x.f_a = spare; }, "f_a holds 5 values, not 1 x 6");
  check_refused([&](w& x, d&) { x.f_a = x.f_b = {}, x.a_proj = spare; }, "a_proj holds 5 values, not 8 x 6");
  check_refused([&](w& x, d&) { x.z_proj = spare; }, g);
  check_refused([&](w& x, d&) { x.g_a = x.g_b = {}, x.g = spare; }, "g holds 5 values, not 8 x 6");
  check_refused([&](w& x, d&) { x.g_a = {}; }, "g_a holds 0 values, not 1 x 6");
  check_refused([&](w& x, d&) { x.a_log = x.a_log.first(1); }, "a_log has fewer values than there are heads");
  check_refused([&](w& x, d&) { x.dt_bias = {}; }, "dt_bias holds 0 values, not 2 x 4");
  check_refused([&](w& x, d&) { x.b_proj = {}; }, "b_proj holds 0 values, not 2 x 6");
  check_refused([&](w& x, d&) { x.norm_weight = spare; }, "norm_weight holds 5 values, not 4");
  check_refused([&](w& x, d&) { x.o_proj = spare; }, "o_proj holds 5 values, not 6 x 8");
  check_refused([&](w&, d& x) { x.hidden = 0; }, "hidden_states holds 12 values, not 2 x 0");
  check_refused([&](w&, d& x) { x.hidden = 5; }, "hidden_states holds 12 values, not 2 x 5");
  check_refused([&](w&, d& x) { x.conv_width = 3; }, "conv_weight holds 96 values, not 24 x 3");
  check_refused([&](w&, d& x) { x.decay = decay_kind::none; }, "decay is none, and a layer has a gate");
  check_refused([&](w&, d& x) { x.lower_bound = 0; }, "lower_bound is not a finite number below zero");
  check_refused([&](w&, d& x) { x.gate = gate_kind::softplus; }, "lower_bound is given to the softplus gate");
  check_refused([&](w&, d& x) { x.rms_eps = -1; }, "rms_eps is negative");

  values conv_state = l.fresh_conv_state(), state = l.fresh_state();
  CHECK(refusal([&] { reference_layer(hidden_states, conv_state, state, l.weights(), l.dims, 2, -1); }) ==
        "kda::reference: chunk_size is below one");
}

#endif
