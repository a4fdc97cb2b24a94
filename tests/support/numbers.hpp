// SPDX-License-Identifier: Apache-2.0
// How far a computed number is from the exact one: in units of the last place, and where the result was rounded to 16
// bits; and the vector functions of the current ISA.
#pragma once
#include "delta_rule.hpp"
#include "math_kernels.hpp"

#include <bit>

namespace testing {

/// The vector functions of the current ISA. Not having them is an error, never a skip.
inline const math_table& math() {
  const kda::isa wanted = current_isa();
  if (static_cast<int>(wanted) <= static_cast<int>(kda::best_isa()))
    for (const kda::built_kernels* b = math_kernels_built; b->isa != nullptr; ++b)
      if (std::string(b->isa) == kda::name(wanted)) return *static_cast<const math_table*>(b->table());
  throw std::runtime_error("no vector functions for this ISA");
}

inline float from_bits(std::uint32_t bits) { return std::bit_cast<float>(bits); }
inline std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

inline constexpr float infinity = std::numeric_limits<float>::infinity();
inline constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN();
inline constexpr float largest = std::numeric_limits<float>::max();
inline constexpr float smallest_normal = std::numeric_limits<float>::min();

/// Quiet and signalling NaNs of both signs, with every single payload bit and with all of them.
inline std::vector<float> all_kinds_of_nan() {
  std::vector<float> x;
  for (const std::uint32_t sign : {0u, 0x80000000u}) {
    for (std::uint32_t bit = 1; bit <= 0x400000u; bit <<= 1) x.push_back(from_bits(sign | 0x7f800000u | bit));
    x.push_back(from_bits(sign | 0x7fbfffffu));
    x.push_back(from_bits(sign | 0x7fffffffu));
  }
  return x;
}

/// Distance between neighbouring floats at the exact result.
inline double ulp_at(double exact) {
  const int exponent = static_cast<int>(std::bit_cast<std::uint64_t>(exact) >> 52 & 0x7ff) - 1023;
  return std::bit_cast<double>(static_cast<std::uint64_t>(std::max(exponent, -126) - 23 + 1023) << 52);
}
inline double ulps_between(float got, double exact) {
  return std::abs(static_cast<double>(got) - exact) / ulp_at(exact);
}

template <class T> double largest_of(const std::vector<T>& x) {
  double most = 0;
  for (const T e : x) most = std::max(most, std::abs(static_cast<double>(e)));
  return most;
}

/// Whether `got` lies within `slack` of `exact` or, in 16 bits, is what some number within `slack` of `exact` rounds to.
inline bool is_near(float got, double exact, double slack) {
  return std::abs(static_cast<double>(got) - exact) <= slack;
}
template <class T> bool is_near(T got, double exact, double slack) {
  const auto rounded = [](double x) { return kda::to_float(kda::round_to<T>(static_cast<float>(x))); };
  const float x = kda::to_float(got);
  return rounded(exact - slack) <= x && x <= rounded(exact + slack);
}

/// Elements that are not near the exact ones, with `bound` times the largest exact one as slack.
template <class T> index disagreements(const std::vector<T>& got, const std::vector<double>& exact, double bound) {
  const double slack = bound * largest_of(exact);
  index n = got.size() == exact.size() ? 0 : 1;
  for (std::size_t i = 0; i < std::min(got.size(), exact.size()); ++i) n += is_near(got[i], exact[i], slack) ? 0 : 1;
  return n;
}

}  // namespace testing
