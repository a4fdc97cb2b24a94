// SPDX-License-Identifier: Apache-2.0
// What this translation unit is compiled for. Exactly one ISA: the one that KDA_TARGET_<ISA> names (kda_add_kernels()
// does that), or else the best that the compiler's flags allow. Its name is a namespace around everything whose machine
// code depends on the flags, so that no two translation units ever share such a function.
#pragma once
#include "version.hpp"

#if defined(__FAST_MATH__)
#error "kda needs IEEE arithmetic (NaN, infinities, rounding as written): compile this file without -ffast-math"
#endif

// Feature macros are function-like: a misspelt one does not compile, where a misspelt #ifdef would be silently false.
#if defined(__aarch64__) && defined(__ARM_NEON) && !defined(__AARCH64EB__)
#define KDA_FLAGS_ALLOW_NEON() 1
#else
#define KDA_FLAGS_ALLOW_NEON() 0
#endif
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define KDA_FLAGS_ALLOW_AVX2() 1
#else
#define KDA_FLAGS_ALLOW_AVX2() 0
#endif
#if KDA_FLAGS_ALLOW_AVX2() && defined(__AVX512F__) && defined(__AVX512CD__) && defined(__AVX512BW__) && \
    defined(__AVX512DQ__) && defined(__AVX512VL__)
#define KDA_FLAGS_ALLOW_AVX512() 1
#else
#define KDA_FLAGS_ALLOW_AVX512() 0
#endif
#if KDA_FLAGS_ALLOW_AVX512() && defined(__AVX512BF16__)
#define KDA_FLAGS_ALLOW_AVX512_BF16() 1
#else
#define KDA_FLAGS_ALLOW_AVX512_BF16() 0
#endif

#if defined(KDA_TARGET_SCALAR) + defined(KDA_TARGET_NEON) + defined(KDA_TARGET_AVX2) + defined(KDA_TARGET_AVX512) + \
        defined(KDA_TARGET_AVX512_BF16) >                                                                           \
    1
#error "kda: two KDA_TARGET_<ISA> macros are defined; one translation unit is compiled for one ISA"
#endif
// NEON needs no flag; unasked, it is taken only where xsimd is.
#if KDA_FLAGS_ALLOW_NEON() && __has_include(<xsimd/xsimd.hpp>)
#define KDA_FINDS_NEON() 1
#else
#define KDA_FINDS_NEON() 0
#endif
// Worst first, in the order of kda::isa.
#if defined(KDA_TARGET_SCALAR)
#define KDA_ISA_RANK() 0
#elif defined(KDA_TARGET_NEON)
#if !KDA_FLAGS_ALLOW_NEON()
#error "kda: KDA_TARGET_NEON needs AArch64 with NEON, little-endian"
#endif
#define KDA_ISA_RANK() 1
#elif defined(KDA_TARGET_AVX2)
#if !KDA_FLAGS_ALLOW_AVX2()
#error "kda: KDA_TARGET_AVX2 needs the flags -mavx2 -mfma -mf16c"
#endif
#define KDA_ISA_RANK() 2
#elif defined(KDA_TARGET_AVX512)
#if !KDA_FLAGS_ALLOW_AVX512()
#error \
    "kda: KDA_TARGET_AVX512 needs the flags -mavx2 -mfma -mf16c -mavx512f -mavx512cd -mavx512bw -mavx512dq -mavx512vl"
#endif
#define KDA_ISA_RANK() 3
#elif defined(KDA_TARGET_AVX512_BF16)
#if !KDA_FLAGS_ALLOW_AVX512_BF16()
#error "kda: KDA_TARGET_AVX512_BF16 needs the flags of KDA_TARGET_AVX512 and -mavx512bf16"
#endif
#define KDA_ISA_RANK() 4
#else
#define KDA_ISA_RANK()               \
  (KDA_FLAGS_ALLOW_AVX512_BF16() ? 4 \
   : KDA_FLAGS_ALLOW_AVX512()    ? 3 \
   : KDA_FLAGS_ALLOW_AVX2()      ? 2 \
   : KDA_FINDS_NEON()            ? 1 \
                                 : 0)
#endif
// KDA_ISA_IS_AVX512: the vectors are AVX-512's; with AVX512-BF16 there are instructions for pairs of bf16 besides.
#define KDA_ISA_IS_AVX512_BF16() (KDA_ISA_RANK() == 4)
#define KDA_ISA_IS_AVX512() (KDA_ISA_RANK() >= 3)
#define KDA_ISA_IS_AVX2() (KDA_ISA_RANK() == 2)
#define KDA_ISA_IS_NEON() (KDA_ISA_RANK() == 1)
#define KDA_ISA_IS_SCALAR() (KDA_ISA_RANK() == 0)

#if KDA_ISA_IS_AVX512_BF16()
#define KDA_ISA avx512_bf16
#elif KDA_ISA_IS_AVX512()
#define KDA_ISA avx512
#elif KDA_ISA_IS_AVX2()
#define KDA_ISA avx2
#elif KDA_ISA_IS_NEON()
#define KDA_ISA neon
#else
#define KDA_ISA scalar
#endif

// KDA_FORCE_1X1_BLOCKING compiles every register-blocked loop with one row and one vector: the tests hold its bits
// against the real blocking's. It is another namespace, so both fit into one program.
#if defined(KDA_FORCE_1X1_BLOCKING)
#define KDA_NAMESPACE_OF(isa) isa_##isa##_1x1
#else
#define KDA_NAMESPACE_OF(isa) isa_##isa
#endif
#define KDA_EXPAND_NAMESPACE(isa) KDA_NAMESPACE_OF(isa)
#define KDA_ISA_NAMESPACE KDA_EXPAND_NAMESPACE(KDA_ISA)

#define KDA_STRING_OF(x) #x
#define KDA_STRING(x) KDA_STRING_OF(x)
#define KDA_JOIN_OF(a, b) a##_##b
#define KDA_JOIN(a, b) KDA_JOIN_OF(a, b)

// Inlined at every -O, -O0 included: no copy that was compiled for one ISA is left for the linker to hand to another.
#define KDA_INLINE [[gnu::always_inline]] inline
#define KDA_INLINE_LAMBDA __attribute__((always_inline))  // after a lambda's parameters
#define KDA_NOINLINE [[gnu::noinline]]

// Loops over an accumulator array are unrolled by hand-set counts: gcc 12 keeps the array in memory otherwise.
#if defined(__clang__)
#define KDA_UNROLL _Pragma("clang loop unroll(full)")
#define KDA_NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define KDA_UNROLL _Pragma("GCC unroll 16")
#define KDA_NO_UNROLL _Pragma("GCC unroll 1")
#endif
