// SPDX-License-Identifier: Apache-2.0
// What a run reports, and the file that holds it.
#pragma once
#include "limits.hpp"

#include <string>
#include <vector>

namespace bench {

struct row {
  std::string op, spec, io, state, products, layout, geometry;
  std::string isa{};  ///< the path that ran, as the table reports it
  index threads = 0, N = 0, T = 0;
  bool is_delta_rule = false;  ///< prefill, decode or step: has flops, and states worth counting
  double seconds = 0, error = 0, token_heads = 0, state_bytes = 0, bytes = 0;

  [[nodiscard]] std::string name() const;
};

/// One case measured against another, in turns.
struct ratio {
  std::string what, isa;
  index threads;
  double seconds, against;
  std::string reach;  ///< "<= 1.1": what the ratio seconds / against is to be
};

/// Multiply-adds of one token and head in chunked form, twice: the unit that every engine is counted in.
inline constexpr double flops_per_token_head = 108e3;

/// Writes {"machine": ..., "results": [...], "ratios": [...]}. Limits of the rows' sizes are measured if need be.
void write_json(const std::string& file, machine&, const std::vector<row>&, const std::vector<ratio>&);

/// Percent of the machine's limits that a row reaches.
double percent_of_fma_peak(machine&, const row&);
double percent_of_bandwidth(machine&, const row&);

}  // namespace bench
