// SPDX-License-Identifier: Apache-2.0
// The loops that limits are measured with, in the vectors of one ISA.
#include "limit_table.hpp"

#include <kda/export.hpp>
#include <kda/simd/vec.hpp>

namespace {

using kda::vec;
constexpr std::ptrdiff_t lanes = vec::lanes;

// Two FMA ports x 4 cycles (5 on some) are 8 to 10 in flight; 12 accumulators and the two operands fit 16 registers.
constexpr std::ptrdiff_t chains = 12, rounds = 20'000;

float fma() {
  volatile float factor = 0.999f, addend = 1e-3f;  // not constants to the compiler
  const vec a = kda::broadcast(factor), b = kda::broadcast(addend);
  vec sum[chains];
  KDA_UNROLL
  for (std::ptrdiff_t j = 0; j < chains; ++j) sum[j] = kda::broadcast(0.01f * static_cast<float>(j));
  KDA_NO_UNROLL
  for (std::ptrdiff_t i = 0; i < rounds; ++i) KDA_UNROLL
  for (std::ptrdiff_t j = 0; j < chains; ++j) sum[j] = kda::fma(sum[j], a, b);
  KDA_UNROLL
  for (std::ptrdiff_t j = 1; j < chains; ++j) sum[0] = sum[0] + sum[j];
  return kda::reduce_add(sum[0]);
}

void one_stream(float* x, std::ptrdiff_t blocks, float factor) {
  const vec c = kda::broadcast(factor);
  float* const end = x + blocks * bench::block_floats;
  KDA_NO_UNROLL
  for (; x < end; x += 8 * lanes) KDA_UNROLL
  for (std::ptrdiff_t j = 0; j < 8; ++j) kda::store(x + j * lanes, c * kda::load(x + j * lanes));
}

void four_streams(float* x, std::ptrdiff_t blocks, float factor) {
  constexpr std::ptrdiff_t stream = bench::block_floats / 4;
  const vec c = kda::broadcast(factor);
  for (std::ptrdiff_t b = 0; b < blocks; ++b, x += bench::block_floats) KDA_NO_UNROLL
  for (std::ptrdiff_t i = 0; i < stream; i += 2 * lanes) KDA_UNROLL
  for (std::ptrdiff_t s = 0; s < 4; ++s) KDA_UNROLL
  for (std::ptrdiff_t j = 0; j < 2; ++j) {
    float* const p = x + s * stream + i + j * lanes;
    kda::store(p, c * kda::load(p));
  }
}

constexpr bench::limit_table table{
    .flops = 2 * chains * rounds * lanes, .fma = fma, .one_stream = one_stream, .four_streams = four_streams};

}  // namespace

extern "C" const void* KDA_JOIN_ISA(limit_kernels)();
extern "C" const void* KDA_JOIN_ISA(limit_kernels)() { return &table; }
