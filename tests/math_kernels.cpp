// SPDX-License-Identifier: Apache-2.0
// The vector functions over arrays, compiled once per ISA: what tests/math.cpp, bf16.cpp and f16.cpp measure.
#include "support/math_kernels.hpp"

#include <kda/kda.hpp>

namespace {

using std::ptrdiff_t;
constexpr ptrdiff_t lanes = kda::vec::lanes;

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
constexpr bool fused = true;
#else
constexpr bool fused = false;
#endif

// As in the kernels, arithmetic lives in a function of its own, which the environment's scope surrounds.
template <auto Function, class... Args> KDA_NOINLINE auto apart(Args... args) { return Function(args...); }
template <auto Function, class... Args> auto in_scope(Args... args) {
  const kda::fp_scope scope;
  return apart<Function>(args...);
}

template <auto Function> void unary(const float* x, float* y, ptrdiff_t n) {
  for (ptrdiff_t i = 0; i < n; i += lanes) kda::store(y + i, Function(kda::load(x + i)));
}
template <auto Function> void ternary(const float* a, const float* b, const float* c, float* y, ptrdiff_t n) {
  for (ptrdiff_t i = 0; i < n; i += lanes)
    kda::store(y + i, Function(kda::load(a + i), kda::load(b + i), kda::load(c + i)));
}
void clamp(const float* a, const float* b, const float* c, float* y, ptrdiff_t n) {
  for (ptrdiff_t i = 0; i < n; i += lanes) kda::store(y + i, kda::clamp(kda::load(a + i), *b, *c));
}
float reduce_add(const float* x) { return kda::reduce_add(kda::load(x)); }
void sum_lanes(const float* x, float* y) {
  kda::vec rows[lanes];
  for (ptrdiff_t i = 0; i < lanes; ++i) rows[i] = kda::load(x + i * lanes);
  kda::store(y, kda::sum_lanes(rows));
}
void transpose(const float* x, float* y) {
  kda::vec rows[lanes];
  for (ptrdiff_t i = 0; i < lanes; ++i) rows[i] = kda::load(x + i * lanes);
  kda::transpose(rows);
  for (ptrdiff_t i = 0; i < lanes; ++i) kda::store(y + i * lanes, rows[i]);
}

template <class From> void load(const From* from, ptrdiff_t count, float* to) {
  kda::store(to, kda::load(from, count));
}
template <class To> void store(const float* from, To* to, ptrdiff_t count) { kda::store(to, kda::load(from), count); }
template <class From, class To> void convert(const From* from, To* to, ptrdiff_t n) {
  for (ptrdiff_t i = 0; i < n; i += lanes) kda::store(to + i, kda::load(from + i));
}

using kda::vec;

template <class T>
constexpr testing::word_table<T> words{
    .load = in_scope<load<T>>,
    .store = in_scope<store<T>>,
    .widen = in_scope<convert<T, float>>,
    .narrow = in_scope<convert<float, T>>,
    .rounded = in_scope<unary<[](vec x) KDA_INLINE_LAMBDA { return kda::rounded<T>(x); }>>,
};

constexpr testing::math_table table{
    .lanes = lanes,
    .fused = fused,
    .exp = in_scope<unary<[](vec x) KDA_INLINE_LAMBDA { return kda::exp(x); }>>,
    .exp_nonpositive = in_scope<unary<[](vec x) KDA_INLINE_LAMBDA { return kda::exp_nonpositive(x); }>>,
    .expm1_nonpositive = in_scope<unary<[](vec x) KDA_INLINE_LAMBDA { return kda::expm1_nonpositive(x); }>>,
    .sigmoid = in_scope<unary<[](vec x) KDA_INLINE_LAMBDA { return kda::sigmoid(x); }>>,
    .log1p_ratio = in_scope<unary<[](vec x) KDA_INLINE_LAMBDA { return kda::log1p_ratio(x); }>>,
    .silu = in_scope<unary<[](vec x) KDA_INLINE_LAMBDA { return kda::silu(x); }>>,
    .sqrt = in_scope<unary<[](vec x) KDA_INLINE_LAMBDA { return kda::sqrt(x); }>>,
    .fma = in_scope<ternary<[](vec a, vec b, vec c) KDA_INLINE_LAMBDA { return kda::fma(a, b, c); }>>,
    .fnma = in_scope<ternary<[](vec a, vec b, vec c) KDA_INLINE_LAMBDA { return kda::fnma(a, b, c); }>>,
    .clamp = in_scope<clamp>,
    .reduce_add = in_scope<reduce_add>,
    .sum_lanes = in_scope<sum_lanes>,
    .transpose = in_scope<transpose>,
    .load = in_scope<load<float>>,
    .store = in_scope<store<float>>,
    .bf16 = words<kda::bf16>,
    .f16 = words<kda::f16>,
};

}  // namespace

extern "C" const void* KDA_JOIN_ISA(math_kernels)();
extern "C" const void* KDA_JOIN_ISA(math_kernels)() { return &table; }
