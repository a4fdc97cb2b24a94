// SPDX-License-Identifier: Apache-2.0
// The inner loops of prefill and decode by themselves, for predict.py to read in assembly.
#include <kda/kda.hpp>

namespace {

using std::ptrdiff_t;
static_assert(kda::row_block == 4, "predict.py counts so many rows");

// sums [block_rows, block_vectors * lanes] += a b over n terms
KDA_INLINE void product(const float* a, ptrdiff_t row, ptrdiff_t step, const float* b, ptrdiff_t n, float* sums) {
  kda::accumulators<kda::block_rows, kda::block_vectors> acc;
  KDA_UNROLL
  for (int i = 0; i < kda::block_rows; ++i) {
    KDA_UNROLL
    for (int j = 0; j < kda::block_vectors; ++j) acc[i][j] = kda::broadcast(0.f);
  }
  kda::multiply_add<kda::block_rows, kda::block_vectors>(a, row, step, b, n, acc);
  KDA_UNROLL
  for (int i = 0; i < kda::block_rows; ++i) {
    KDA_UNROLL
    for (int j = 0; j < kda::block_vectors; ++j)
      kda::store(sums + (i * kda::block_vectors + j) * kda::vec::lanes, acc[i][j]);
  }
}

}  // namespace

extern "C" {
// [K; Q] S: rows of keys.
void read_state(const float* keys, ptrdiff_t stride, const float* panel, ptrdiff_t n, float* sums) {
  product(keys, stride, 1, panel, n, sums);
}
// S <- ...: columns of keys.
void update_state(const float* keys, ptrdiff_t stride, const float* panel, ptrdiff_t n, float* sums) {
  product(keys, 1, stride, panel, n, sums);
}
// Decode, fp32 states [V, K] with K = 128. Pass 1, a row an iteration.
void pass_1(const float* rows, ptrdiff_t n, const float* kd, const float* qd, kda::vec* sums) {
  const kda::row_products_of_128 products{kd, qd};
  KDA_NO_UNROLL
  for (ptrdiff_t i = 0; i < n; ++i) products(rows + i * 128, sums[2 * i], sums[2 * i + 1]);
}
// Pass 2 on row_block rows, 2 * lanes of their channels an iteration.
void pass_2(float* rows, const float* k, const float* factor, const float* deltas) {
  kda::update_rows<kda::row_block>(rows, 128, rows, 128, k, factor, 128, deltas);
}
}
