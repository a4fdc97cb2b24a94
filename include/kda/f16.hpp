// SPDX-License-Identifier: Apache-2.0
// IEEE binary16, for tensors. Conversion from float rounds to nearest, ties to even, and overflows to infinity; denormal
// halves are numbers like any other; a NaN becomes quiet and stays a NaN. Written so that flushed denormals and rounding
// modes do not matter: the bits are those of the processor's own conversions within an fp_scope.
#pragma once
#include "bf16.hpp"

#include <concepts>

namespace kda::inline v0 {

/// Storage of one half; the bits are those of every other implementation (torch.float16, _Float16).
struct f16 {
  std::uint16_t bits = 0;
};

[[nodiscard]] KDA_INLINE constexpr float to_float(f16 x) {
  const std::uint32_t sign = (x.bits & 0x8000u) << 16, magnitude = x.bits & 0x7fffu;
  std::uint32_t wide = (magnitude << 13) + 0x38000000u;  // the exponent's bias is 127, not 15
  if (magnitude > 0x7c00u)
    wide = 0x7fc00000u | magnitude << 13;
  else if (magnitude == 0x7c00u)
    wide = 0x7f800000u;
  else if (magnitude < 0x400u)  // a multiple of 2^-24: as a float, normal or 0
    wide = __builtin_bit_cast(std::uint32_t, static_cast<float>(magnitude) * 0x1p-24f);
  return __builtin_bit_cast(float, sign | wide);
}

[[nodiscard]] KDA_INLINE constexpr f16 to_f16(float x) {
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  const std::uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00u | (magnitude >> 13 & 0x1ffu);
  } else if (magnitude >= 0x47800000u) {  // 2^16; from 65520 on, rounding carries into infinity by itself
    half = 0x7c00u;
  } else if (magnitude >= 0x38800000u) {  // 2^-14, the smallest normal half
    half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
  } else if (magnitude >= 0x33000000u) {  // 2^-25, half the smallest half: units of 2^-24
    const std::uint32_t significand = (magnitude & 0x7fffffu) | 0x800000u, shift = 126u - (magnitude >> 23);
    half = (significand + (1u << (shift - 1)) - 1u + (significand >> shift & 1u)) >> shift;
  }
  return {static_cast<std::uint16_t>(sign | half)};
}

template <> [[nodiscard]] KDA_INLINE constexpr f16 round_to<f16>(float x) { return to_f16(x); }

/// Numbers of 16 bits: one way through memory, two conversions.
template <class T>
concept word16 = std::same_as<T, bf16> || std::same_as<T, f16>;

}  // namespace kda::inline v0
