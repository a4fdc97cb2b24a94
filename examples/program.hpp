// SPDX-License-Identifier: Apache-2.0
// What the example programs have in common: the choice of kernels, a progress bar, and how they end.
#pragma once
#include <kda/dispatch.hpp>

#include <cstddef>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <unistd.h>

namespace engine {

/// The kernels for exactly the ISA that --isa names, or the best that run here if it was left out.
template <class... Specs>
const kda::tables<Specs...>* choose_kernels(kda::kernel_list<Specs...> list, const std::string& isa) {
  if (isa.empty()) {
    if (const auto* best = kda::select(list)) return best;
    throw std::runtime_error("no kernels were built that can run here");
  }
  for (const kda::isa i : kda::all_isas)
    if (isa == kda::name(i)) {
      if (const auto* exact = kda::select_exactly(list, i)) return exact;
      throw std::runtime_error("kernels for " + isa + " were not built, or cannot run here");
    }
  throw std::runtime_error("--isa " + isa + ": is none of scalar, neon, avx2, avx512, avx512_bf16");
}

/// A bar on standard error, if that is a terminal.
class progress {
 public:
  explicit progress(std::ptrdiff_t steps) : steps_(steps) {}
  ~progress() {
    if (terminal_) std::fputs("\r\x1b[K", stderr);
  }
  /// One step more: `what` is under way.
  void next(const char* what) { draw(done_++, what); }
  /// So many steps are done; drawn when a hundredth has changed.
  void show(std::ptrdiff_t done, const char* what) {
    if (done * 100 / steps_ != shown_) draw(done, what);
  }

 private:
  void draw(std::ptrdiff_t done, const char* what) {
    static constexpr char full[] = "########################################";
    constexpr int width = sizeof full - 1;
    shown_ = done * 100 / steps_;
    if (terminal_)
      std::fprintf(stderr, "\r\x1b[K[%-*.*s] %s", width, static_cast<int>(done * width / steps_), full, what);
  }

  const bool terminal_ = isatty(STDERR_FILENO) != 0;
  std::ptrdiff_t steps_, done_ = 0, shown_ = -1;
};

/// main() of a program: run()'s exit status, or 1 after one line that says what it threw.
template <class F> int run_program(const char* name, F run) {
  try {
    return run();
  } catch (const std::exception& e) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s: %s\n", name, e.what());
    return 1;
  }
}

}
