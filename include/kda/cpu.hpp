// SPDX-License-Identifier: Apache-2.0
// What this CPU and operating system can run. Baseline code: include it wherever you like.
#pragma once
#include "config.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace kda::inline v0 {

/// Instruction sets, worst first; of one architecture, a later one can run what an earlier one can.
enum class isa { scalar, neon, avx2, avx512, avx512_bf16 };
inline constexpr isa all_isas[] = {isa::scalar, isa::neon, isa::avx2, isa::avx512, isa::avx512_bf16};
inline constexpr isa newest_isa = isa::avx512_bf16;

[[nodiscard]] KDA_INLINE constexpr const char* name(isa i) {
  switch (i) {
    case isa::scalar:
      return "scalar";
    case isa::neon:
      return "neon";
    case isa::avx2:
      return "avx2";
    case isa::avx512:
      return "avx512";
    case isa::avx512_bf16:
      return "avx512_bf16";
  }
  return "unknown";
}

/// Whether this architecture can have an ISA at all.
[[nodiscard]] KDA_INLINE constexpr bool is_of_this_architecture(isa i) {
#if defined(__x86_64__)
  return i != isa::neon;
#elif defined(__aarch64__)
  return i == isa::neon || i == isa::scalar;
#else
  return i == isa::scalar;
#endif
}

/// The best ISA that both the CPU has and the operating system saves on a task switch.
[[nodiscard]] KDA_INLINE isa best_isa() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return isa::scalar;
  constexpr unsigned fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
  if ((c & (fma | osxsave | avx | f16c)) != (fma | osxsave | avx | f16c)) return isa::scalar;
  unsigned saved = 0, upper = 0;
  asm("xgetbv" : "=a"(saved), "=d"(upper) : "c"(0));
  constexpr unsigned ymm = 0x6, zmm = 0xe6;
  if ((saved & ymm) != ymm || __get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return isa::scalar;
  constexpr unsigned avx2 = 1u << 5, f = 1u << 16, dq = 1u << 17, cd = 1u << 28, bw = 1u << 30, vl = 1u << 31;
  constexpr unsigned zmm_flags = f | cd | dq | bw | vl;
  if ((b & avx2) == 0) return isa::scalar;
  if ((saved & zmm) != zmm || (b & zmm_flags) != zmm_flags) return isa::avx2;
  constexpr unsigned avx512_bf16 = 1u << 5;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & avx512_bf16) != 0 ? isa::avx512_bf16 : isa::avx512;
#elif defined(__aarch64__) && !defined(__AARCH64EB__)
  return isa::neon;  // every such CPU has it, and every operating system saves it
#else
  return isa::scalar;
#endif
}

}  // namespace kda::inline v0
