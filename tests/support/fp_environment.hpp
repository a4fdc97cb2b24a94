// SPDX-License-Identifier: Apache-2.0
// The floating-point environment of a thread as one number: rounding, flushing of denormals, traps and flags. What a
// caller may have set, and what a call must leave as it was.
#pragma once
#include <cstdint>

#if defined(__SSE2__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#include <cfenv>
#endif

namespace testing {

#if defined(__SSE2__)
using fp_environment = unsigned;  // MXCSR
inline fp_environment current_fp_environment() { return _mm_getcsr(); }
inline void set_fp_environment(fp_environment e) { _mm_setcsr(e); }

namespace mxcsr {
inline constexpr fp_environment all_masked = 0x1f80, flush_to_zero = 0x8000, denormals_are_zero = 0x0040, down = 0x2000,
                                up = 0x4000, towards_zero = 0x6000, inexact_flag = 0x0020, underflow_flag = 0x0010;
}
inline constexpr fp_environment odd_fp_environments[] = {
    mxcsr::all_masked,
    mxcsr::all_masked | mxcsr::up,
    mxcsr::all_masked | mxcsr::down,
    mxcsr::all_masked | mxcsr::towards_zero,
    mxcsr::all_masked | mxcsr::flush_to_zero,
    mxcsr::all_masked | mxcsr::denormals_are_zero | mxcsr::flush_to_zero | mxcsr::up,
    mxcsr::all_masked | mxcsr::inexact_flag | mxcsr::underflow_flag,
    0 /* every exception would trap */};
#elif defined(__aarch64__)
using fp_environment = std::uint64_t;  // FPCR, above FPSR
inline fp_environment current_fp_environment() {
  std::uint64_t control = 0, flags = 0;
  asm volatile("mrs %0, fpcr\n\tmrs %1, fpsr" : "=r"(control), "=r"(flags));
  return control << 32 | flags;
}
inline void set_fp_environment(fp_environment e) {
  asm volatile("msr fpcr, %0\n\tmsr fpsr, %1" ::"r"(e >> 32), "r"(e & 0xffffffffu));
}

namespace fpcr {
inline constexpr fp_environment up = fp_environment{1} << 54, down = fp_environment{2} << 54,
                                towards_zero = fp_environment{3} << 54, flush_to_zero = fp_environment{1} << 56,
                                default_nan = fp_environment{1} << 57, alternative_half = fp_environment{1} << 58;
}
namespace fpsr {
inline constexpr fp_environment underflow_flag = 1u << 3, inexact_flag = 1u << 4;
}
inline constexpr fp_environment odd_fp_environments[] = {0,
                                                         fpcr::up,
                                                         fpcr::down,
                                                         fpcr::towards_zero,
                                                         fpcr::flush_to_zero,
                                                         fpcr::flush_to_zero | fpcr::up,
                                                         fpcr::default_nan,
                                                         fpcr::alternative_half,
                                                         fpsr::underflow_flag | fpsr::inexact_flag};
#else
using fp_environment = int;  // the rounding mode is all that C++ knows
inline fp_environment current_fp_environment() { return std::fegetround(); }
inline void set_fp_environment(fp_environment e) { std::fesetround(e); }
inline constexpr fp_environment odd_fp_environments[] = {FE_TONEAREST, FE_DOWNWARD, FE_TOWARDZERO};
#endif

/// Sets the environment and puts it back.
class fp_environment_scope {
 public:
  explicit fp_environment_scope(fp_environment e) : saved_(current_fp_environment()) { set_fp_environment(e); }
  ~fp_environment_scope() { set_fp_environment(saved_); }
  fp_environment_scope(const fp_environment_scope&) = delete;
  fp_environment_scope& operator=(const fp_environment_scope&) = delete;

 private:
  fp_environment saved_;
};

}  // namespace testing
