// SPDX-License-Identifier: Apache-2.0
// Floating-point environment of a task: round to nearest, denormals flushed to zero (a long decay drives the state
// through them, and some machines then slow down tenfold or more). It is set for each task, on whatever thread that
// runs, and left as it was found.
#pragma once
#include "../config.hpp"

#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

class fp_scope {
 public:
#if defined(__SSE2__)
  KDA_INLINE fp_scope() : saved_(_mm_getcsr()) {
    // 0x8000 flush to zero, 0x0040 denormals are zero, 0x6000 rounding mode, 0x1f80 exceptions masked
    _mm_setcsr((saved_ & ~0x6000u) | 0x8040u | 0x1f80u);
  }
  KDA_INLINE ~fp_scope() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  KDA_INLINE fp_scope() {
    asm volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(control_), "=r"(flags_));
    constexpr std::uint64_t flush_to_zero = std::uint64_t{1} << 24;  // nothing else: to nearest, IEEE halves, no traps
    asm volatile("msr fpcr, %0" ::"r"(flush_to_zero));
  }
  KDA_INLINE ~fp_scope() { asm volatile("msr fpcr, %0\n\tmsr fpsr, %1" ::"r"(control_), "r"(flags_)); }

 private:
  std::uint64_t control_, flags_;
#else
  KDA_INLINE fp_scope() {}
  KDA_INLINE ~fp_scope() {}

 private:
#endif
 public:
  fp_scope(const fp_scope&) = delete;
  fp_scope& operator=(const fp_scope&) = delete;
};

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
