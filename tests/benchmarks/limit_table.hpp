// SPDX-License-Identifier: Apache-2.0
// Loops that show what a machine can do at most, one table per ISA, compiled from limit_kernels.cpp. Included by code of
// every ISA, hence declarations only.
#pragma once
#include <kda/dispatch.hpp>

#include <cstddef>

namespace bench {

struct limit_table {
  std::ptrdiff_t flops;  ///< of one call of fma: enough independent chains of multiply-adds to fill every port
  float (*fma)();
  /// x *= factor for `blocks` blocks of 64 KiB (one head's state): front to back, or as four streams 16 KiB apart, which
  /// lets one core keep more reads in flight.
  void (*one_stream)(float* x, std::ptrdiff_t blocks, float factor);
  void (*four_streams)(float* x, std::ptrdiff_t blocks, float factor);
};
inline constexpr std::ptrdiff_t block_floats = 16384;

}  // namespace bench

extern "C" const kda::built_kernels limit_kernels_built[];
