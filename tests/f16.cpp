// SPDX-License-Identifier: Apache-2.0
// binary16: conversions of every bit pattern and of the hardest floats, one number at a time and in vectors; and calls
// on f16 tensors, which give the bits of the same calls on float tensors, rounded once.
#include "support/batches.hpp"
#include "support/kda_catch.hpp"
#include "support/numbers.hpp"

namespace testing {
namespace {

using kda::f16;

bool is_nan(f16 x) { return (x.bits & 0x7fffu) > 0x7c00u; }

// What a half is: 11 bits of significand times a power of two, at least 2^-24.
double value_of(f16 x) {
  const int exponent = x.bits >> 10 & 0x1f, fraction = x.bits & 0x3ff;
  const double magnitude = exponent == 0x1f ? (fraction == 0 ? HUGE_VAL : std::nan(""))
                           : exponent == 0  ? std::ldexp(fraction, -24)
                                            : std::ldexp(1024 + fraction, exponent - 25);
  return (x.bits & 0x8000u) != 0 ? -magnitude : magnitude;
}

// The nearest half: a whole number of the steps that halves have around x, ties to the even one; no half past 65504, and
// 65520 is a tie between it and infinity.
f16 nearest(float x) {
  const std::uint32_t sign = bits_of(x) >> 31 << 15;
  const auto with_sign = [&](std::uint32_t magnitude) { return f16{static_cast<std::uint16_t>(sign | magnitude)}; };
  if (std::isnan(x)) return with_sign(0x7e00u | (bits_of(x) >> 13 & 0x3ffu));
  const double magnitude = std::abs(static_cast<double>(x));
  if (magnitude >= 65520) return with_sign(0x7c00u);
  int exponent = -14;
  while (magnitude >= std::ldexp(1, exponent + 1)) ++exponent;
  const auto steps = static_cast<std::uint32_t>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  return with_sign(static_cast<std::uint32_t>(exponent + 14) * 1024 + steps);
}

std::vector<f16> all_halves() {
  std::vector<f16> all(0x10000);
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) all[bits].bits = static_cast<std::uint16_t>(bits);
  return all;
}

// Each half that is no NaN, the tie between it and the next one, and the floats on both sides of either; in the end
// every stride-th of all floats, and NaNs.
std::vector<float> hard_floats(std::uint64_t stride) {
  std::vector<float> x;
  const auto add = [&](double e) {
    const auto at = static_cast<float>(e);
    for (const float y : {std::nextafter(at, -infinity), at, std::nextafter(at, infinity)}) x.push_back(y);
  };
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const double low = value_of({static_cast<std::uint16_t>(bits)}),
                 high = bits == 0x7bff ? 65536 : value_of({static_cast<std::uint16_t>(bits + 1)});
    for (const double e : {low, (low + high) / 2}) add(e), add(-e);
  }
  for (const double e : {65536., 1e6, 1e30, HUGE_VAL}) add(e), add(-e);
  for (const float e : {smallest_normal, smallest_normal / 2, 1e-45f}) x.push_back(e), x.push_back(-e);
  for (std::uint64_t bits = 0; bits <= 0xffffffffu; bits += stride)
    x.push_back(from_bits(static_cast<std::uint32_t>(bits)));
  for (const float nan : all_kinds_of_nan()) x.push_back(nan);
  return x;
}

std::vector<float> whole_vectors(std::vector<float> x) {
  x.resize((x.size() + 15) / 16 * 16);
  return x;
}

}  // namespace

static_assert(sizeof(f16) == 2 && alignof(f16) == 2 && std::is_trivially_copyable_v<f16>);
static_assert(kda::to_f16(1.f).bits == 0x3c00 && kda::to_float(f16{0xc000}) == -2.f);
static_assert(kda::round_to<f16>(1.0005f).bits == 0x3c01 && kda::to_float(f16{1}) == 0x1p-24f);
static_assert(kda::to_f16(65519.99609375f).bits == 0x7bff && kda::to_f16(65520.f).bits == 0x7c00);
static_assert(kda::to_f16(-0x1p-25f).bits == 0x8000 && kda::to_f16(0x1.000002p-25f).bits == 1);

TEST_CASE("every half comes back from float as it was, and a signalling NaN comes back quiet", "[f16]") {
  const std::vector<f16> all = all_halves();
  std::vector<float> wide(all.size());
  math().f16.widen(all.data(), wide.data(), std::ssize(wide));
  std::vector<f16> back(all.size());
  math().f16.narrow(wide.data(), back.data(), std::ssize(wide));
  index wrong = 0;
  for (const f16 x : all) {
    const f16 expected{static_cast<std::uint16_t>(is_nan(x) ? x.bits | 0x200u : x.bits)};
    const float one = kda::to_float(x);
    const std::uint32_t quiet = (x.bits & 0x8000u) << 16 | 0x7fc00000u | (x.bits & 0x3ffu) << 13;
    if (is_nan(x) ? bits_of(one) != quiet : static_cast<double>(one) != value_of(x)) ++wrong;
    if (bits_of(one) != bits_of(wide[x.bits]) || bits_of(one) >> 31 != x.bits >> 15) ++wrong;
    if (kda::to_f16(one).bits != expected.bits || back[x.bits].bits != expected.bits) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("a float goes to the nearest half, ties to even, denormals and overflow included", "[f16]") {
  index wrong = 0;
  float at = 0;
  for (const float e : hard_floats(emulated() ? 1000003 : 1009))
    if (kda::to_f16(e).bits != nearest(e).bits) {
      ++wrong;
      at = e;
    }
  CAPTURE(bits_of(at));
  CHECK(wrong == 0);
}

TEST_CASE("vectors of floats become halves bit for bit as single floats do, in registers too", "[f16]") {
  const std::vector<float> x = whole_vectors(hard_floats(emulated() ? 1000003 : 509));
  std::vector<f16> got(x.size());
  std::vector<float> rounded(x.size());
  math().f16.narrow(x.data(), got.data(), std::ssize(x));
  math().f16.rounded(x.data(), rounded.data(), std::ssize(x));
  index wrong = 0;
  float at = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const f16 want = kda::to_f16(x[i]);
    if (got[i].bits != want.bits || bits_of(rounded[i]) != bits_of(kda::to_float(want))) {
      ++wrong;
      at = x[i];
    }
  }
  CAPTURE(bits_of(at));
  CHECK(wrong == 0);
}

TEST_CASE("parts of a vector are loaded and stored as single halves, whatever they hold", "[f16]") {
  const math_table& m = math();
  const std::vector<f16> all = all_halves();
  index wrong = 0;
  for (index n = 0; n <= m.lanes; ++n)
    for (index first = 0; first + m.lanes <= std::ssize(all); first += emulated() ? 1021 : 13) {
      float x[16];
      m.f16.load(&all[size(first)], n, x);
      std::vector<f16> y(16, f16{0xabcd});
      m.f16.store(x, y.data(), n);
      for (index i = 0; i < m.lanes; ++i) {
        const float want = i < n ? kda::to_float(all[size(first + i)]) : 0.f;
        const f16 stored = i < n ? kda::to_f16(want) : f16{0xabcd};
        wrong += bits_of(x[i]) == bits_of(want) && y[size(i)].bits == stored.bits ? 0 : 1;
      }
    }
  CHECK(wrong == 0);
}

// ---- calls ----------------------------------------------------------------------------------------------------------

namespace {

template <class Narrow, class Wide> struct pair {
  using narrow = Narrow;
  using wide = Wide;  // the same with floats
};
#define KDA_PAIRS (pair<specs::kda_f16, specs::kda_bounded>), (pair<specs::gdn_f16_stages, specs::gdn_softplus>)

template <class T> std::vector<float> as_floats(const std::vector<T>& x) {
  std::vector<float> y;
  for (const T e : x) y.push_back(kda::to_float(e));
  return y;
}
std::vector<float> through_f16(const std::vector<float>& x) { return as_floats(rounded_to<f16>(x)); }

bool is_denormal(f16 x) { return (x.bits & 0x7c00u) == 0 && (x.bits & 0x3ffu) != 0; }
bool is_infinite(f16 x) { return (x.bits & 0x7fffu) == 0x7c00u; }

}  // namespace

TEMPLATE_TEST_CASE("prefill and decode on halves have the bits of floats, rounded once: denormal or infinite too",
                   "[f16]", KDA_PAIRS) {
  using narrow = typename TestType::narrow;
  using wide = typename TestType::wide;
  for (const float amplitude : {1.f, 1e-5f, 3e4f})
    for (const geometry g : {geometry{emulated() ? 18 : 37, 2, 4, 24, 40}, geometry{17, 1, 1, 128, 33}}) {
      problem p = ordinary_problem<wide>(g, 1);
      for (float& e : p.v) e *= amplitude;
      for (float& e : p.state) e *= amplitude;
      if (amplitude < 1)
        for (auto* x : {&p.q, &p.k})
          for (float& e : *x) e *= 1e-4f;  // half of them denormal
      for (auto* x : {&p.q, &p.k, &p.v, &p.gate, &p.beta}) *x = through_f16(*x);
      for (const core c : {core::decode, core::prefill}) {
        const outcome<narrow> got = run<narrow>(p, {c});
        const outcome<wide> want = run<wide>(p, {c});
        CAPTURE(amplitude, g.K, c == core::prefill);
        CHECK(same_bits(got.out, rounded_to<f16>(want.out)));
        CHECK(same_bits(got.state, want.state));
        if (amplitude < 1) CHECK(std::any_of(got.out.begin(), got.out.end(), is_denormal));
        if (amplitude > 1) CHECK(std::any_of(got.out.begin(), got.out.end(), is_infinite));
      }
    }
}

TEMPLATE_TEST_CASE("the convolution on halves has the bits of floats, rounded once, and keeps its inputs", "[f16]",
                   KDA_PAIRS) {
  using narrow = conv_call<typename TestType::narrow>;
  using wide = conv_call<typename TestType::wide>;
  const std::vector<sequence> batch{continued(7, 1, 0), fresh(2, 2, 1), {1, 3, 3, 2, true}};
  narrow x(batch, narrow::pool_of(4, 1));
  for (std::size_t i = 0; i < x.x.size(); i += 5) x.x[i] = kda::round_to<typename narrow::type>(0x1.8p-23f);
  wide y(batch, wide::pool_of(4, 1));
  y.x = as_floats(x.x);
  y.states.cells = as_floats(x.states.cells);
  x.run(), y.run();
  CHECK(same_bits(x.out, rounded_to<f16>(y.out)));
  CHECK(same_bits(as_floats(x.states.cells), y.states.cells));
}

TEMPLATE_TEST_CASE("gate, beta and the norm of q and k on halves have the bits of floats", "[f16]", KDA_PAIRS) {
  using narrow = typename TestType::narrow;
  using wide = typename TestType::wide;
  problem p = ordinary_problem<wide>({.T = 37, .H = 2, .HV = 4, .K = 21, .V = 3}, 4);
  for (auto* x : {&p.q, &p.gate, &p.beta}) *x = through_f16(*x);
  const auto results = [&]<class Spec>(std::type_identity<Spec>) {
    packed_tensors<Spec> in(p);
    const kda::delta_rule_args<Spec> a = in.args();
    std::vector<float> g(p.gate.size()), beta(p.beta.size()), q(p.q.size());
    kda::gate_args<Spec> gate{.x = a.gate, .gate_params = a.gate_params};
    gate.g.data = g.data();
    std::copy(std::begin(a.gate.shape), std::end(a.gate.shape), gate.g.shape);
    std::copy(std::begin(a.gate.stride), std::end(a.gate.stride), gate.g.stride);
    scratch w(0);
    const auto& kernels = kernels_of<Spec>();
    throw_unless(kernels.gate(gate, w, kda::serial));
    throw_unless(kernels.beta({.b = a.beta, .beta = kda::packed(beta.data(), p.g.T, p.g.HV)}, w, kda::serial));
    throw_unless(kernels.l2norm(
        {.x = a.q, .eps = 1e-6f, .scale = 0.5f, .y = kda::packed(q.data(), p.g.T, p.g.H, p.g.K)}, w, kda::serial));
    append(g, beta), append(g, q);
    return g;
  };
  CHECK(same_bits(results(std::type_identity<narrow>()), results(std::type_identity<wide>())));
}

TEST_CASE("the gated norm on halves has the bits of floats, rounded once", "[f16]") {
  const index T = 6, HV = 3, V = 37;
  random_numbers r(5);
  std::vector<float> x = through_f16(r.normals(T * HV * V)), gate = through_f16(r.normals(T * HV * V, 4)),
                     weight = r.normals(V);
  weight[3] = 1e-6f, weight[30] = 1e5f;  // denormal and infinite results
  const auto result = [&]<class Spec>(std::type_identity<Spec>) {
    using type = typename kda::types<Spec>::out;
    const auto rows = rounded_to<type>(x), gates = rounded_to<type>(gate);
    std::vector<type> y(x.size());
    scratch w(0);
    throw_unless(kernels_of<Spec>().norm({.x = kda::packed(rows.data(), T, HV, V),
                                          .gate = kda::packed(gates.data(), T, HV, V),
                                          .weight = kda::packed(weight.data(), V),
                                          .eps = 1e-5f,
                                          .y = kda::packed(y.data(), T, HV, V)},
                                         w, kda::serial));
    return y;
  };
  const auto got = result(std::type_identity<specs::kda_f16>());
  CHECK(same_bits(got, rounded_to<f16>(result(std::type_identity<specs::kda_bounded>()))));
  CHECK(std::any_of(got.begin(), got.end(), is_denormal));
  CHECK(std::any_of(got.begin(), got.end(), is_infinite));
}

}  // namespace testing
