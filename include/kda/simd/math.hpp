// SPDX-License-Identifier: Apache-2.0
// Elementary functions on a vector. Bounds are in units of the last place of the exact result, over the whole range
// stated; tests/math.cpp measures them. Every function returns a NaN for a NaN and saturates cleanly at both
// infinities.
//
//   2^n e^r with n = round(x / ln 2), |r| <= ln 2 / 2, e^r = 1 + r + r^2 P(r); P is the minimax polynomial of degree 5
//   for the relative error of e^r - 1 (2.4e-10). log1p(u) = 2 atanh(s), s = u / (u + 2), atanh(s) = s (1 + s^2 Q(s^2)),
//   Q of degree 4.
#pragma once
#include "vec.hpp"

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

inline constexpr float largest_float = 3.40282347e38f;

struct exponential_parts {
  vec scale;  // 2^n
  vec tail;   // e^r - 1
};
// x from -87 to 88.7. The scale is returned halved if Halved, since 2^128 is not a float.
template <bool Halved> KDA_INLINE exponential_parts split_exponential(vec x) {
  constexpr float to_integer = 12582912.f + (Halved ? 126.f : 127.f);  // 1.5 * 2^23: the sum's low bits are n + bias
  const vec shifted = fma(x, broadcast(1.44269504f), broadcast(to_integer));
  const vec n = shifted - broadcast(to_integer);
  vec r = fnma(n, broadcast(0.693115234375f), x);
  r = fnma(n, broadcast(3.19461848e-5f), r);
  vec p = broadcast(0.00019845886f);
  p = fma(p, r, broadcast(0.00139407197f));
  p = fma(p, r, broadcast(0.00833338965f));
  p = fma(p, r, broadcast(0.0416663587f));
  p = fma(p, r, broadcast(0.166666657f));
  p = fma(p, r, broadcast(0.5f));
  return {shift_left_23(shifted), fma(r * r, p, r)};
}

/// e^x: within 1 ulp for x >= -86.6; exactly 1 at 0, exactly 0 below -86.6 (results under 2^-124.9 are flushed) and
/// exactly the largest float from its logarithm on.
KDA_INLINE vec exp(vec x) {
  const auto [half_scale, tail] = split_exponential<true>(clamp(x, -86.6f, 88.7228394f));
  const vec y = (tail + broadcast(1.f)) * half_scale;
  const vec z = min(broadcast(largest_float), y + y);
  return select(less(x, broadcast(-86.6f)), broadcast(0.f), z);
}

/// e^x for x <= 0: within 1 ulp; exactly 1 at 0, exactly 0 from -87.7 down (denormal results are flushed).
KDA_INLINE vec exp_nonpositive(vec x) {
  const auto [scale, tail] = split_exponential<false>(max(broadcast(-88.02f), x));  // there the scale is 0
  return (tail + broadcast(1.f)) * scale;  // no product of a tail with a scale that is nearly denormal
}

/// e^x - 1 for x <= 0: within 0.9 ulp; exactly -1 at minus infinity.
KDA_INLINE vec expm1_nonpositive(vec x) {
  const auto [scale, tail] = split_exponential<false>(max(broadcast(-86.6f), x));
  return fma(scale, tail, scale - broadcast(1.f));
}

/// a / (1 + e^x), |a| <= 1e38 / 2.2: at most 1.5 ulp more than the rounding of x and a bring; a at minus infinity, and
/// a / 2.2e38 from 88.3 on, which is flushed to 0 for |a| < 2.5.
KDA_INLINE vec over_one_plus_exp(vec a, vec x) {
  const auto [scale, tail] = split_exponential<false>(clamp(x, -87.f, 88.3f));
  return flushed(a / (broadcast(1.f) + fma(scale, tail, scale)));
}

/// 1 / (1 + e^-x): within 2.5 ulp for x >= -87.336; 0 below (denormals are flushed), 1 at infinity.
KDA_INLINE vec sigmoid(vec x) { return over_one_plus_exp(broadcast(1.f), broadcast(0.f) - x); }

/// log1p(u) / u for u in [0, 1]: within 2 ulp, 1 at 0.
KDA_INLINE vec log1p_ratio(vec u) {
  const vec d = broadcast(1.f) / (u + broadcast(2.f));
  const vec s = u * d, z = s * s;
  vec q = broadcast(0.121504672f);
  q = fma(q, z, broadcast(0.107138291f));
  q = fma(q, z, broadcast(0.143084422f));
  q = fma(q, z, broadcast(0.199994385f));
  q = fma(q, z, broadcast(0.333333373f));
  return fma(z * q, d + d, d + d);
}

/// x sigmoid(x): within 2.9 ulp for x >= -87.336, unless the result is denormal; 0 below, minus infinity included.
KDA_INLINE vec silu(vec x) { return max(broadcast(-largest_float), x) * sigmoid(x); }

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
