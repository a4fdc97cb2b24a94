// SPDX-License-Identifier: Apache-2.0
// Which calls are measured.
#pragma once
#include "results.hpp"
#include "work.hpp"

#include <functional>

namespace bench {

/// smoke: seconds, to see that everything still runs; quick: a few minutes; full: all.
enum class extent { smoke, quick, full };

struct request {
  row what;  // nothing measured yet
  std::function<std::unique_ptr<work>()> make;
};

/// Rows that differ in nothing but threads are neighbours, so that they can share their work.
std::vector<request> requests(extent, const std::vector<index>& threads);

/// The contract's ratios; each case for `seconds`.
std::vector<ratio> measure_ratios(machine&, extent, double seconds);

/// f(table) for each ISA that was built and can run here, best first.
template <class Spec, class F> void for_each_isa(kda::kernel_list<Spec> list, const F& f) {
  for (int i = static_cast<int>(kda::best_isa()); i >= 0; --i)
    if (const auto* table = kda::select_exactly(list, static_cast<kda::isa>(i))) f(table->template get<Spec>());
}

}  // namespace bench
