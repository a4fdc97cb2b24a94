// SPDX-License-Identifier: Apache-2.0
// NEON of AArch64: 4 lanes, 32 registers, masks are vectors.
#pragma once
#include "xsimd_vec.hpp"

#if KDA_ISA_IS_NEON()
namespace kda::inline v0::inline KDA_ISA_NAMESPACE {

KDA_INLINE vec fma(vec a, vec b, vec c) { return {vec::batch(vfmaq_f32(c.x, a.x, b.x))}; }
KDA_INLINE vec fnma(vec a, vec b, vec c) { return {vec::batch(vfmsq_f32(c.x, a.x, b.x))}; }
KDA_INLINE vec max(vec a, vec b) { return {vec::batch(vmaxq_f32(a.x, b.x))}; }
KDA_INLINE vec min(vec a, vec b) { return {vec::batch(vminq_f32(a.x, b.x))}; }
KDA_INLINE vec shift_left_23(vec a) {
  return {vec::batch(vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_f32(a.x), 23)))};
}
KDA_INLINE vec flushed(vec a) { return a; }
KDA_INLINE vec pinned(vec a) {
  float32x4_t x = a.x;
  asm("" : "+w"(x));
  return {vec::batch(x)};
}
KDA_INLINE vec add_where(mask m, vec a, vec b) {
  return {vec::batch(vaddq_f32(a.x, vreinterpretq_f32_u32(vandq_u32(m, vreinterpretq_u32_f32(b.x)))))};
}
template <word16 T> KDA_INLINE vec widen(uint16x4_t words) {
  if constexpr (std::same_as<T, f16>) return {vec::batch(vcvt_f32_f16(vreinterpret_f16_u16(words)))};
  return {vec::batch(vreinterpretq_f32_u32(vshll_n_u16(words, 16)))};
}
// A number rounded to bf16, in the upper half of each lane; the lower half is rubbish.
KDA_INLINE uint32x4_t rounded_words(vec a) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a.x);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  return vaddq_u32(vaddq_u32(bits, vdupq_n_u32(0x7fff)), odd);
}
template <word16 T> KDA_INLINE uint16x4_t narrow(vec a) {  // as round_to<T>() has it, denormals and NaN included
  if constexpr (std::same_as<T, f16>) return vreinterpret_u16_f16(vcvt_f16_f32(a.x));
  const uint32x4_t number = vceqq_f32(a.x, a.x), quiet = vorrq_u32(vreinterpretq_u32_f32(a.x), vdupq_n_u32(0x400000));
  return vshrn_n_u32(vbslq_u32(number, rounded_words(a), quiet), 16);
}
template <word16 T> KDA_INLINE vec load(const T* p) {
  return widen<T>(vld1_u16(reinterpret_cast<const std::uint16_t*>(p)));
}
template <word16 T> KDA_INLINE void store(T* p, vec a) { vst1_u16(reinterpret_cast<std::uint16_t*>(p), narrow<T>(a)); }
KDA_INLINE vec interleave_low(vec a, vec b) { return {vec::batch(vzip1q_f32(a.x, b.x))}; }
KDA_INLINE vec interleave_high(vec a, vec b) { return {vec::batch(vzip2q_f32(a.x, b.x))}; }
KDA_INLINE vec low_pairs(vec a, vec b) { return {vec::batch(vcombine_f32(vget_low_f32(a.x), vget_low_f32(b.x)))}; }
KDA_INLINE vec high_pairs(vec a, vec b) { return {vec::batch(vcombine_f32(vget_high_f32(a.x), vget_high_f32(b.x)))}; }

KDA_INLINE vec merge_sums(const vec (&x)[1]) { return x[0]; }
KDA_INLINE void transpose_quarters(vec (&)[1]) {}
KDA_INLINE void store_sum_of_quarters(float* to, vec a) { store(to, a); }

// ---- pairs
KDA_INLINE void load_pair(const bf16* p, pair& x) {
  const uint32x4_t words = vreinterpretq_u32_u16(vld1q_u16(reinterpret_cast<const std::uint16_t*>(p)));
  x[0] = {vec::batch(vreinterpretq_f32_u32(vshlq_n_u32(words, 16)))};
  x[1] = {vec::batch(vreinterpretq_f32_u32(vandq_u32(words, vdupq_n_u32(0xffff0000u))))};
}
KDA_INLINE void store_pair(bf16* p, const pair& x) {
  const uint32x4_t words = vsriq_n_u32(rounded_words(x[1]), rounded_words(x[0]), 16);
  vst1q_u16(reinterpret_cast<std::uint16_t*>(p), vreinterpretq_u16_u32(words));
}
KDA_INLINE void to_even_odd(pair& x) {
  const float32x4_t even = vuzp1q_f32(x[0].x, x[1].x), odd = vuzp2q_f32(x[0].x, x[1].x);
  x[0] = {vec::batch(even)}, x[1] = {vec::batch(odd)};
}
KDA_INLINE void from_even_odd(pair& x) {
  const float32x4_t low = vzip1q_f32(x[0].x, x[1].x), high = vzip2q_f32(x[0].x, x[1].x);
  x[0] = {vec::batch(low)}, x[1] = {vec::batch(high)};
}
KDA_INLINE vec canonical_nan(vec x) {
  const uint32x4_t number = vceqq_f32(x.x, x.x);
  return {vec::batch(vbslq_f32(number, x.x, vreinterpretq_f32_u32(vdupq_n_u32(0x7fc00000))))};
}

}  // namespace kda::inline v0::inline KDA_ISA_NAMESPACE
#endif
