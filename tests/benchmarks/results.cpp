// SPDX-License-Identifier: Apache-2.0
#include "results.hpp"

#include <cstdio>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace bench {

namespace {

using json = nlohmann::ordered_json;

kda::isa isa_of(const std::string& name) {
  for (int i = 0; i <= static_cast<int>(kda::best_isa()); ++i)
    if (name == kda::name(static_cast<kda::isa>(i))) return static_cast<kda::isa>(i);
  throw std::invalid_argument("no such ISA here: " + name);
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  std::string model = "unknown", family, number;
  const auto value = [](const std::string& line) { return line.substr(line.find(':') + 2); };
  for (std::string line; std::getline(info, line) && !line.empty();) {
    if (line.starts_with("model name")) model = value(line);
    if (line.starts_with("cpu family")) family = value(line);
    if (line.starts_with("model\t")) number = value(line);
  }
  return model + (family.empty() ? "" : ", family " + family + ", model " + number);
}

double rounded(double x) {  // four digits: more is noise
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", x);
  return std::stod(text);
}

json limits(const machine& m) {
  json fma = json::object(), rates = json::array();
  for (const peak& p : m.peaks) fma[p.isa][std::to_string(p.threads)] = rounded(p.gflops);
  for (const in_place_rate& r : m.rates)
    rates.push_back({{"level", r.level},
                     {"bytes", r.bytes},
                     {"threads", r.threads},
                     {"one_stream_gbps", rounded(r.one_stream)},
                     {"four_streams_gbps", rounded(r.four_streams)}});
  return {{"peak_gflops", fma}, {"in_place", rates}};
}

}  // namespace

std::string row::name() const {
  return op + "/" + isa + "/" + spec + "/" + geometry + "/N:" + std::to_string(N) + "/T:" + std::to_string(T) +
         "/threads:" + std::to_string(threads);
}

double percent_of_fma_peak(machine& m, const row& r) {
  return 100 * r.token_heads * flops_per_token_head / r.seconds / 1e9 / m.fma_gflops(isa_of(r.isa), r.threads);
}
double percent_of_bandwidth(machine& m, const row& r) {
  return 100 * 2 * r.state_bytes / r.seconds / 1e9 / m.in_place_gbps(static_cast<index>(r.state_bytes), r.threads);
}

void write_json(const std::string& file, machine& m, const std::vector<row>& rows, const std::vector<ratio>& ratios) {
  json results = json::array(), compared = json::array();
  for (const row& r : rows) {
    json x = {{"peer", nullptr},
              {"op", r.op},
              {"isa", r.isa},
              {"io", r.io},
              {"state", r.state},
              {"products", r.products},
              {"layout", r.layout},
              {"spec", r.spec},
              {"geometry", r.geometry},
              {"threads", r.threads},
              {"N", r.N},
              {"T", r.T},
              {"us", rounded(1e6 * r.seconds)},
              {"us_per_token_head", rounded(1e6 * r.seconds / r.token_heads)}};
    if (r.is_delta_rule) {
      x["gflops"] = rounded(r.token_heads * flops_per_token_head / r.seconds / 1e9);
      x["percent_of_fma_peak"] = rounded(percent_of_fma_peak(m, r));
      x["gbps"] = rounded(2 * r.state_bytes / r.seconds / 1e9);
      x["percent_of_bandwidth"] = rounded(percent_of_bandwidth(m, r));
    } else {
      x["gflops"] = x["percent_of_fma_peak"] = nullptr;
      x["gbps"] = rounded(r.bytes / r.seconds / 1e9);
      x["percent_of_bandwidth"] = nullptr;
    }
    x["max_rel_err"] = rounded(r.error);
    x["bytes"] = r.bytes;
    results.push_back(x);
  }
  for (const ratio& r : ratios)
    compared.push_back({{"what", r.what},
                        {"isa", r.isa},
                        {"threads", r.threads},
                        {"us", rounded(1e6 * r.seconds)},
                        {"against_us", rounded(1e6 * r.against)},
                        {"ratio", rounded(r.seconds / r.against)},
                        {"reach", r.reach}});
  json isas = json::array();
  for (int i = 0; i <= static_cast<int>(kda::best_isa()); ++i) isas.push_back(kda::name(static_cast<kda::isa>(i)));
  const json all = {{"machine",
                     {{"cpu", cpu_name()},
                      {"isas", isas},
                      {"clock", cpu_time ? "CPU time on one thread" : "wall"},
                      {"limits", limits(m)}}},
                    {"results", results},
                    {"ratios", compared}};
  std::ofstream out(file);
  out << "{\"machine\": " << all["machine"].dump(1) << ",\n";  // a line for each result: a diff shows what changed
  for (const char* part : {"results", "ratios"}) {
    out << '"' << part << "\": [";
    for (std::size_t i = 0; i < all[part].size(); ++i) out << (i == 0 ? "\n " : ",\n ") << all[part][i].dump();
    out << (std::string(part) == "ratios" ? "\n]}\n" : "\n],\n");
  }
  out.close();
  if (!out) throw std::runtime_error("cannot write " + file);
}

}  // namespace bench
