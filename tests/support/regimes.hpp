// SPDX-License-Identifier: Apache-2.0
// The regimes that other implementations of the delta rule got wrong, as problems for any spec whose gate and beta are
// given. The tests hold each of them to its bound, and numerics.cpp prints how close it comes.
#pragma once
#include "delta_rule.hpp"

#include <functional>

namespace testing {

// ---- edits of a problem ---------------------------------------------------------------------------------------------

/// Log decay g(t, hv, d); per head d is always 0, and without decay there is nothing to edit.
template <class Spec> problem with_decay(problem p, const std::function<double(index t, index h, index d)>& g) {
  static_assert(!has_law<Spec>, "the gate holds log decays only where it is given");
  const index width = kda::detail::is_per_channel<Spec> ? p.g.K : 1;
  for (std::size_t i = 0; i < p.gate.size(); ++i) {
    const auto at = static_cast<index>(i);
    p.gate[i] = static_cast<float>(g(at / width / p.g.HV, at / width % p.g.HV, at % width));
  }
  return p;
}

/// beta(t, hv).
inline problem with_beta(problem p, const std::function<double(index t, index h)>& beta) {
  for (std::size_t i = 0; i < p.beta.size(); ++i)
    p.beta[i] = static_cast<float>(beta(static_cast<index>(i) / p.g.HV, static_cast<index>(i) % p.g.HV));
  return p;
}

/// Unit keys along key(t, h, d).
inline problem with_keys(problem p, const std::function<double(index t, index h, index d)>& key) {
  std::vector<double> k(p.k.size());
  for (std::size_t i = 0; i < k.size(); ++i) {
    const auto at = static_cast<index>(i);
    k[i] = key(at / p.g.K / p.g.H, at / p.g.K % p.g.H, at % p.g.K);
  }
  k = kda::reference::l2norm_rows(k, p.g.T * p.g.H, p.g.K, 0, 1);
  std::transform(k.begin(), k.end(), p.k.begin(), [](double x) { return static_cast<float>(x); });
  return p;
}

/// A size for this CPU, or for the emulator, which runs a thirtieth of the instructions.
inline index sized(index real, index when_emulated) { return emulated() ? when_emulated : real; }

// ---- regimes --------------------------------------------------------------------------------------------------------

/// A family of problems and the bound that each of them must meet, in prefill and in decode.
struct regime {
  const char* name;
  double bound;
  std::vector<problem> problems;
};

/// alpha = 0.99992: as bf16, which has nothing between 0.996 and 1, it would never forget.
inline const double log_of_slow_alpha = std::log(0.99992);

inline constexpr double minus_infinity = -std::numeric_limits<double>::infinity();

template <class Spec> regime ordinary() {
  regime r{"ordinary: -2 < g < 0, 0 < beta < 1", ordinary_bound, {}};
  for (const geometry g : {geometry{37, 2, 4, 24, 40}, geometry{64, 1, 1, 128, 128}, geometry{5, 3, 3, 1, 1},
                           geometry{sized(400, 50), 1, 2, 64, 32}})
    r.problems.push_back(ordinary_problem<Spec>(g, 1));
  return r;
}

/// Every token forgets nearly all: exp(-sum g) overflows, running sums of g lose their last places.
template <class Spec> regime strong_decay() {
  regime r{"strong decay: g = -5, ln 1e-12, -1e4, -inf, or in turn with 0", hard_bound, {}};
  const index width = sized(128, 32);
  const problem p = ordinary_problem<Spec>({sized(64, 40), 1, 2, width, width}, 2);
  for (const double g : {-5., std::log(1e-12), -1e4, minus_infinity})
    r.problems.push_back(with_decay<Spec>(p, [=](index, index, index) { return g; }));
  r.problems.push_back(with_decay<Spec>(p, [](index t, index, index) { return t % 2 == 0 ? 0. : -5.; }));
  r.problems.push_back(with_decay<Spec>(p, [](index t, index, index d) { return (t + d) % 3 == 0 ? -20. : 0.; }));
  r.problems.push_back(
      with_decay<Spec>(p, [](index, index h, index d) { return d == 0 && h == 0 ? minus_infinity : 0.; }));
  return r;
}

/// One token with alpha = 0 anywhere in a chunk: a difference of running sums would be inf - inf from there on.
template <class Spec> regime total_decay_once() {
  regime r{"one token with alpha = 0, at every place of a chunk", hard_bound, {}};
  const problem p = ordinary_problem<Spec>({2 * kda::chunk_tokens + 3, 1, 2, 16, 24}, 3);
  for (index token = 0; token < p.g.T; token += sized(1, 5))
    r.problems.push_back(with_decay<Spec>(p, [=](index t, index h, index d) {
      return t == token && (h == 0 || d % 3 == 0) ? minus_infinity : -0.01 * static_cast<double>(d + 1);
    }));
  return r;
}

/// Decays of e^-0.01 to e^-20 a token. Anchored exponents go wrong here without a single NaN.
template <class Spec> regime middling_decay() {
  regime r{"middling decay: constant g, or g from 0 to it, -0.01 to -20", hard_bound, {}};
  const index width = sized(32, 16);
  const problem p = ordinary_problem<Spec>({sized(256, 48), 1, 1, width, width}, 4);
  for (const double g : {-.01, -.1, -.5, -1., -2., -2.5, -3., -4., -5., -8., -20.}) {
    r.problems.push_back(with_decay<Spec>(p, [=](index, index, index) { return g; }));
    random_numbers random(5);
    r.problems.push_back(with_decay<Spec>(p, [&](index, index, index) { return g * random.uniform(); }));
  }
  return r;
}

/// Nothing is forgotten: what decay hides elsewhere shows here.
template <class Spec> regime no_decay() {
  regime r{"no decay: g = 0, beta 0.5 or 1", hard_bound, {}};
  for (const index T : {index{63}, index{64}, index{65}, index{200}, index{1000}})
    for (const double beta : {0.5, 1.}) {
      problem p = ordinary_problem<Spec>({std::min(T, sized(T, 100)), 1, 1, sized(32, 16), 48}, 6);
      p = with_decay<Spec>(std::move(p), [](index, index, index) { return 0.; });
      r.problems.push_back(with_beta(std::move(p), [=](index, index) { return beta; }));
    }
  return r;
}

/// g = 0 but for one token, which sits at an edge of the chunk grid or at the end.
template <class Spec> regime one_decaying_token() {
  regime r{"one token with g = -3, at the edges of chunks", hard_bound, {}};
  constexpr index C = kda::chunk_tokens, T = 3 * C + 5;
  const problem p = ordinary_problem<Spec>({T, 1, 1, sized(32, 8), 24}, 7);
  for (const index token : {index{0}, C - 2, C - 1, C, 2 * C - 1, 3 * C - 1, 3 * C, T - 1})
    r.problems.push_back(with_decay<Spec>(p, [=](index t, index, index) { return t == token ? -3. : 0.; }));
  return r;
}

/// A large state of which little is left: what replaces it may not carry the rounding of what was there.
template <class Spec> regime forgotten_state() {
  regime r{"a state 10 to 1e8 times as large as what replaces it, g = -0.5 to -inf", hard_bound, {}};
  for (const double scale : {10., 1e2, 1e4, 1e8})
    for (const double g : {-0.5, -2., -5., -20., -1e4, minus_infinity})
      for (const index T : {index{1}, kda::chunk_tokens, sized(4, 1) * kda::chunk_tokens + 1}) {
        problem p = ordinary_problem<Spec>({T, 1, 1, sized(16, 5), sized(24, 7)}, 13);
        for (float& s : p.state) s *= static_cast<float>(scale);
        r.problems.push_back(with_decay<Spec>(std::move(p), [=](index, index, index) { return g; }));
      }
  return r;
}

/// Thousands of tokens that forget and learn next to nothing: errors of the decay itself add up.
template <class Spec> regime slow_decay(index T = sized(4096, 1024)) {
  regime r{"slow decay: alpha = 0.99992, or exp(-2^-10) to exp(-2^-16), beta near 0", hard_bound, {}};
  const problem p = ordinary_problem<Spec>({T, 1, 1, sized(16, 8), sized(24, 4)}, 8);
  for (const double beta : {0., 1e-4, 1e-2}) {
    const problem q = with_beta(p, [=](index, index) { return beta; });
    r.problems.push_back(with_decay<Spec>(q, [](index, index, index) { return log_of_slow_alpha; }));
    r.problems.push_back(
        with_decay<Spec>(q, [](index, index, index d) { return -std::exp2(-10. - static_cast<double>(d % 7)); }));
  }
  return r;
}

/// Decays below the last places of a float, and nothing learnt that would shake them up: each token rounds the same
/// way. No state that is stored as fp32 per token escapes it; half a last place a token is the bound.
template <class Spec> regime vanishing_decay(index T = sized(4096, 1024)) {
  regime r{"vanishing decay: alpha = exp(-2^-18) to exp(-2^-26), beta = 0", static_cast<double>(T) * 0x1p-24, {}};
  problem p =
      with_beta(ordinary_problem<Spec>({T, 1, 1, sized(16, 8), sized(24, 4)}, 8), [](index, index) { return 0.; });
  for (double exponent = -18; exponent >= -26; exponent -= emulated() ? 4 : 1)
    r.problems.push_back(with_decay<Spec>(p, [=](index, index, index) { return -std::exp2(exponent); }));
  return r;
}

// T tokens with g = 0, one beta, and one key for all, but for `noise`.
template <class Spec> problem one_key(index T, double beta, double noise) {
  random_numbers random(9);
  problem p = ordinary_problem<Spec>({T, 1, 1, 32, 24}, 10);
  p = with_decay<Spec>(std::move(p), [](index, index, index) { return 0.; });
  p = with_beta(std::move(p), [=](index, index) { return beta; });
  return with_keys(std::move(p), [&](index, index, index d) {
    return std::cos(static_cast<double>(d)) + noise * static_cast<double>(random.normal());
  });
}

/// One key again and again, exactly or nearly: the in-chunk triangle is full, and inverses by powers blow up.
template <class Spec> regime repeated_keys() {
  regime r{"repeated keys: g = 0, beta 0.9, 1, 1.9", hard_bound, {}};
  for (const double noise : {0., 1e-3})
    for (const double beta : {0.9, 1., 1.9})
      for (const index T : {index{16}, sized(64, 32), sized(512, 64)})
        r.problems.push_back(one_key<Spec>(T, beta, noise));
  return r;
}

/// The same with beta = 2, a reflection: a relative error of |k|^2 is not damped but multiplied by T. The bound is that
/// condition number times a few last places.
template <class Spec> regime reflecting_keys(index T = 512) {
  regime r{"repeated keys that reflect: g = 0, beta = 2", static_cast<double>(T) * 0x1p-22, {}};
  for (const double noise : {0., 1e-3}) r.problems.push_back(one_key<Spec>(T, 2, noise));
  return r;
}

/// beta over all of [0, 2], where I - beta k k^T also reflects.
template <class Spec> regime negative_eigenvalues() {
  regime r{"beta in [0, 2], g = 0, T = 1000", hard_bound, {}};
  random_numbers random(11);
  problem p = ordinary_problem<Spec>({sized(1000, 150), 1, 1, 32, 24}, 12);
  p = with_decay<Spec>(std::move(p), [](index, index, index) { return 0.; });
  r.problems.push_back(with_beta(std::move(p), [&](index, index) { return 2 * random.uniform(); }));
  return r;
}

/// Bounds of products of bf16, whose factors are off by up to 2^-9, in outputs and states. The larger one: where one key
/// comes again and again each token's error meets the next ones', and what is left of a large state is off by 2^-9 of it.
inline constexpr double products_bound = 0x1p-6, hard_products_bound = 0x1p-4;

/// The regimes that products of bf16 are held to, in prefill.
template <class Spec> std::vector<regime> products_regimes() {
  std::vector<regime> regimes = {
      ordinary<Spec>(), strong_decay<Spec>(),       total_decay_once<Spec>(), middling_decay<Spec>(),
      no_decay<Spec>(), one_decaying_token<Spec>(), slow_decay<Spec>(),       negative_eigenvalues<Spec>()};
  for (regime& r : regimes) r.bound = products_bound;
  for (const regime& r : {forgotten_state<Spec>(), repeated_keys<Spec>()})
    regimes.push_back({r.name, hard_products_bound, r.problems});
  return regimes;
}

/// Relative error of outputs before their last rounding: the distance to what rounds to them.
inline double error_before_rounding(const std::vector<float>& got, const std::vector<double>& want) {
  return relative_error(got, want);
}
template <class T> double error_before_rounding(const std::vector<T>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double worst = 0, most = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto value = [](std::uint16_t bits) { return static_cast<double>(kda::to_float(T{bits})); };
    const double x = value(got[i].bits);
    if (!std::isfinite(x)) return std::numeric_limits<double>::infinity();
    const std::uint16_t away = static_cast<std::uint16_t>(got[i].bits + 1),
                        back = static_cast<std::uint16_t>(got[i].bits - 1);
    const double neighbour = value(std::abs(want[i]) > std::abs(x) ? away : back);
    const double half_step = (got[i].bits & 0x7fffu) == 0 ? 0 : std::abs(neighbour - x) / 2;
    worst = std::max(worst, std::abs(want[i] - x) - half_step);
    most = std::max(most, std::abs(want[i]));
  }
  return most > 0 ? worst / most : worst;
}

/// The worst errors of several problems, in each core.
struct worst_errors {
  errors decode{0, 0}, prefill{0, 0};

  template <class Spec> void take(const problem& p, const exact& e, const kda::table<Spec>& table) {
    for (const core c : {core::decode, core::prefill}) {
      const outcome<Spec> o = run<Spec>(p, {c}, {}, table);
      errors& worst = c == core::decode ? decode : prefill;
      worst.out = std::max(worst.out, error_before_rounding(o.out, e.out));
      worst.state = std::max(worst.state, relative_error(o.state, e.state));
    }
  }
};

template <class Spec> worst_errors worst_of(const regime& r) {
  worst_errors worst;
  for (const problem& p : r.problems) worst.take<Spec>(p, reference_of<Spec>(p), kernels_of<Spec>());
  return worst;
}

}  // namespace testing
