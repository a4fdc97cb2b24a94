// SPDX-License-Identifier: Apache-2.0
// bfloat16: conversions of every bit pattern and of the hardest floats, one number at a time and in vectors.
#include "support/kda_catch.hpp"
#include "support/numbers.hpp"

namespace testing {
namespace {

using kda::bf16;

// For each bf16, the floats on both sides of it, of the tie above it, and of the next bf16.
std::vector<float> hard_floats() {
  std::vector<float> x;
  for (std::uint32_t high = 0; high <= 0xffff; ++high)
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu})
      x.push_back(from_bits(high << 16 | low));
  return x;
}

// Appends every stride-th of all floats.
void append_floats(std::vector<float>& x, std::uint64_t stride) {
  for (std::uint64_t bits = 0; bits <= 0xffffffffu; bits += stride)
    x.push_back(from_bits(static_cast<std::uint32_t>(bits)));
}

// The nearest bf16 by distance, ties to the even one. Its neighbours are x with the low half cut off, and the next one
// away from 0; past the largest finite bf16 that is 2^128, which stands for infinity.
bf16 nearest(float x) {
  if (std::isnan(x)) return {static_cast<std::uint16_t>(bits_of(x) >> 16 | 0x40u)};
  if (std::isinf(x)) return {static_cast<std::uint16_t>(bits_of(x) >> 16)};
  const bf16 below{static_cast<std::uint16_t>(bits_of(x) >> 16)}, above{static_cast<std::uint16_t>(below.bits + 1)};
  const double magnitude = std::abs(static_cast<double>(x)), low = std::abs(static_cast<double>(kda::to_float(below))),
               high = (above.bits & 0x7fffu) == 0x7f80u ? 0x1p128 : std::abs(static_cast<double>(kda::to_float(above)));
  if (magnitude - low != high - magnitude) return magnitude - low < high - magnitude ? below : above;
  return below.bits % 2 == 0 ? below : above;
}

std::vector<bf16> narrowed(std::vector<float> x) {
  const std::size_t n = x.size();
  x.resize((n + 15) / 16 * 16);
  std::vector<bf16> y(x.size());
  math().bf16.narrow(x.data(), y.data(), std::ssize(x));
  y.resize(n);
  return y;
}

}  // namespace

static_assert(sizeof(bf16) == 2 && alignof(bf16) == 2 && std::is_trivially_copyable_v<bf16>);
static_assert(kda::to_bf16(1.f).bits == 0x3f80 && kda::to_float(bf16{0xc000}) == -2.f);
static_assert(kda::round_to<bf16>(1.00391f).bits == 0x3f81 && kda::round_to<float>(1.00391f) == 1.00391f);

TEST_CASE("every bf16 comes back from float as it was, and a signalling NaN comes back quiet", "[bf16]") {
  std::vector<bf16> all(0x10000);
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) all[bits].bits = static_cast<std::uint16_t>(bits);
  std::vector<float> wide(all.size());
  math().bf16.widen(all.data(), wide.data(), std::ssize(wide));
  const std::vector<bf16> back = narrowed(wide);
  index wrong = 0;
  for (std::uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const bool nan = (bits & 0x7fffu) > 0x7f80u;
    const std::uint32_t expected = nan ? bits | 0x40u : bits;
    if (bits_of(kda::to_float(all[bits])) != bits << 16 || bits_of(wide[bits]) != bits << 16) ++wrong;
    if (kda::to_bf16(kda::to_float(all[bits])).bits != expected || back[bits].bits != expected) ++wrong;
  }
  CHECK(wrong == 0);
}

TEST_CASE("a float goes to the nearest bf16, ties to even, denormals and overflow included", "[bf16]") {
  std::vector<float> x = hard_floats();
  append_floats(x, emulated() ? 1000003 : 1009);
  index wrong = 0;
  float at = 0;
  for (const float e : x)
    if (kda::to_bf16(e).bits != nearest(e).bits) {
      ++wrong;
      at = e;
    }
  CAPTURE(bits_of(at));
  CHECK(wrong == 0);
}

TEST_CASE("vectors of floats are rounded bit for bit as single ones", "[bf16]") {
  std::vector<float> x = hard_floats();
  for (const float nan : all_kinds_of_nan()) x.push_back(nan);
  random_numbers r(1);
  for (int i = 0; i < (emulated() ? 10000 : 1000000); ++i)
    x.push_back(from_bits(static_cast<std::uint32_t>(r.uniform() * 0x1p32)));
  append_floats(x, emulated() ? 1000003 : 509);
  const std::vector<bf16> got = narrowed(x);
  index wrong = 0;
  float at = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    if (got[i].bits != kda::to_bf16(x[i]).bits) {
      ++wrong;
      at = x[i];
    }
  CAPTURE(bits_of(at));
  CHECK(wrong == 0);
}

TEST_CASE("rounding a vector in registers is a store and a load", "[bf16]") {
  std::vector<float> x = hard_floats();
  std::vector<float> y(x.size());
  math().bf16.rounded(x.data(), y.data(), std::ssize(x));
  index wrong = 0;
  for (std::size_t i = 0; i < x.size(); ++i)
    wrong += bits_of(y[i]) == bits_of(kda::to_float(kda::to_bf16(x[i]))) ? 0 : 1;
  CHECK(wrong == 0);
}

}  // namespace testing
