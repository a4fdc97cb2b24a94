// SPDX-License-Identifier: Apache-2.0
// The golden test: runs every *.json of golden/, or of the folder that KDA_GOLDEN_DIR names, through the kernels of
// this run's ISA (KDA_TEST_ISA; unset: of each ISA that this CPU has) and through the double reference.
//
//   kda_golden_test            prints a line a file, with each output's worst error over its bound among all of these
//   kda_golden_test --foreign  prints the ISAs of this build that this CPU lacks, one a line
//
// The last line is "golden: N files, M failed"; exit status 1 if any failed. Finding no file is a failure too.
#include "golden/layers.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace {

using namespace golden;

const std::map<std::string, judged_outputs (*)(golden_file&, const engines&)> operations{
    {"l2norm", l2norm},
    {"gate_per_channel", gate_per_channel},
    {"gate_per_head", gate_per_head},
    {"conv", conv},
    {"delta_rule", delta_rule},
    {"norm_gated", norm_gated},
    {"kda_layer", kda_layer},
    {"gdn_layer", gdn_layer},
};

kda::isa isa_of(const char* name) { return static_cast<kda::isa>(kda::detail::rank(name)); }

engines engines_of_this_run() {
  engines found;
  const bool one = std::getenv("KDA_TEST_ISA") != nullptr;
  for (const kda::built_kernels* b = test_kernels.built; b->isa != nullptr; ++b)
    if (const auto* tables = kda::select_exactly(test_kernels, isa_of(b->isa)))
      if (!one || isa_of(b->isa) == testing::current_isa()) found.push_back({b->isa, tables});
  if (found.empty()) throw fault("this build has no kernels that the CPU can run and KDA_TEST_ISA allows");
  return found;
}

int print_foreign_isas() {
  for (const kda::built_kernels* b = test_kernels.built; b->isa != nullptr; ++b)
    if (kda::select_exactly(test_kernels, isa_of(b->isa)) == nullptr) std::puts(b->isa);
  return 0;
}

std::vector<std::filesystem::path> golden_files() {
  const char* other = std::getenv("KDA_GOLDEN_DIR");
  const std::filesystem::path folder = other != nullptr && *other != '\0' ? other : KDA_GOLDEN;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  if (files.empty()) throw fault(std::string("no *.json in ") + folder.string());
  std::sort(files.begin(), files.end());
  return files;
}

/// Prints the file's line and says whether it passed.
bool passes(const std::filesystem::path& path, const engines& run_on) {
  std::string name = path.stem().string(), op = "?", verdicts;
  bool passed = true;
  try {
    golden_file f(path);
    if (f.name != name) name += std::string(" ") + json(f.name).dump();
    const auto operation = operations.find(f.op);
    if (operation == operations.end())
      throw fault(std::string("op is ") + json(f.op).dump() + ", which is none of the format's");
    op = f.op;
    for (const judged_output& o : operation->second(f, run_on)) {
      passed = passed && o.passes();
      verdicts += std::string("  ") + o.verdict();
    }
  } catch (const std::exception& e) {
    passed = false;
    verdicts = std::string("  ") + e.what();
  }
  std::printf("%-7s %-62s %-16s%s\n", passed ? "ok" : "FAILED", name.c_str(), op.c_str(), verdicts.c_str());
  std::fflush(stdout);
  return passed;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) {
    if (std::string(argv[1]) == "--foreign") return print_foreign_isas();
    std::fprintf(stderr, "usage: %s [--foreign]\n", argv[0]);
    return 2;
  }
  std::size_t count = 0, failed = 0;
  try {
    const engines run_on = engines_of_this_run();
    std::printf("kernels:");
    for (const engine& e : run_on) std::printf(" %s", e.isa.c_str());
    std::printf("; and the double reference\n");
    for (const auto& path : golden_files()) {
      ++count;
      if (!passes(path, run_on)) ++failed;
    }
  } catch (const std::exception& e) {
    ++failed;
    std::printf("FAILED  %s\n", e.what());
  }
  std::printf("golden: %zu files, %zu failed\n", count, failed);
  return failed == 0 ? 0 : 1;
}
