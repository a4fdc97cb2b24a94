// SPDX-License-Identifier: Apache-2.0
// bfloat16: the upper half of a float. Conversion from float rounds to nearest, ties to even; a NaN stays a NaN.
#pragma once
#include "config.hpp"

#include <cstdint>

namespace kda::inline v0 {

/// Storage of one bfloat16 number; the bits are those of every other implementation (torch.bfloat16, __bf16).
struct bf16 {
  std::uint16_t bits = 0;
};

[[nodiscard]] KDA_INLINE constexpr float to_float(float x) { return x; }
[[nodiscard]] KDA_INLINE constexpr float to_float(bf16 x) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(x.bits) << 16);
}

[[nodiscard]] KDA_INLINE constexpr bf16 to_bf16(float x) {
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>(bits >> 16 | 0x40u)};  // NaN, made quiet
  return {static_cast<std::uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16)};
}

/// `x` rounded to the nearest number of type T: float, bf16 or, from f16.hpp, f16.
template <class T> T round_to(float x) = delete;
template <> [[nodiscard]] KDA_INLINE constexpr float round_to<float>(float x) { return x; }
template <> [[nodiscard]] KDA_INLINE constexpr bf16 round_to<bf16>(float x) { return to_bf16(x); }

}  // namespace kda::inline v0
