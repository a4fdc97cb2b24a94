// SPDX-License-Identifier: Apache-2.0
// Prints the worst error of every operation against fp64, on each ISA that this CPU has, regime by regime;
// docs/numerics.md is made from it.
//   kda_numerics [--markdown]
// Exit status 1 if an error exceeds its bound; it is marked with an exclamation mark.
#include "support/regimes.hpp"

#include <span>

namespace testing {
namespace {

// ISAs of this architecture, worst first. What avx512_bf16 has of its own is in the table of bf16 products.
#if defined(__aarch64__)
constexpr kda::isa all_isas[] = {kda::isa::scalar, kda::isa::neon};
constexpr std::span<const kda::isa> with_products = all_isas;
#else
constexpr kda::isa with_products[] = {kda::isa::scalar, kda::isa::avx2, kda::isa::avx512, kda::isa::avx512_bf16};
constexpr auto all_isas = std::span<const kda::isa>(with_products).first<3>();
#endif

// ---- tables ---------------------------------------------------------------------------------------------------------

constexpr double not_measured = -1, no_bound = std::numeric_limits<double>::infinity();

struct row {
  std::string name;
  double bound;
  std::vector<double> errors;  // one per column
};

struct section {
  std::string title, first_column;
  std::vector<std::string> columns;
  std::vector<row> rows;
};

std::string number(double x) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.1e", x);
  return x == not_measured || x == no_bound ? "-" : text;
}

class printer {
 public:
  explicit printer(bool markdown) : markdown_(markdown) {}
  [[nodiscard]] bool all_hold() const { return all_hold_; }

  void print(const section& s) {
    std::size_t width = s.first_column.size();
    for (const row& r : s.rows) width = std::max(width, r.name.size());
    std::vector<std::vector<std::string>> lines = {{s.first_column, "bound"}};
    lines[0].insert(lines[0].end(), s.columns.begin(), s.columns.end());
    for (const row& r : s.rows) {
      lines.push_back({r.name, number(r.bound)});
      for (const double e : r.errors) {
        lines.back().push_back(number(e) + (e <= r.bound ? "" : " !"));
        all_hold_ = all_hold_ && e <= r.bound;
      }
    }
    std::printf(markdown_ ? "\n### %s\n\n" : "\n%s\n", s.title.c_str());
    for (std::size_t i = 0; i < lines.size(); ++i) {
      print_line(lines[i], width);
      if (i == 0 && markdown_) print_line(std::vector<std::string>(lines[0].size(), "---"), width);
    }
  }

 private:
  void print_line(const std::vector<std::string>& cells, std::size_t width) const {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (markdown_)
        std::printf("%s %s", i == 0 ? "|" : " |", cells[i].c_str());
      else
        std::printf("%-*s", i == 0 ? static_cast<int>(width) + 2 : 16, cells[i].c_str());
    }
    std::printf(markdown_ ? " |\n" : "\n");
  }

  bool markdown_, all_hold_ = true;
};

// ---- the delta rule -------------------------------------------------------------------------------------------------

template <class Spec> std::vector<worst_errors> measure(const regime& r, std::span<const kda::isa> isas = all_isas) {
  std::vector<worst_errors> worst(isas.size());
  for (const problem& p : r.problems) {
    const exact e = reference_of<Spec>(p);
    for (std::size_t i = 0; i < worst.size(); ++i)
      if (const auto* kernels = kernels_on<Spec>(isas[i])) worst[i].take<Spec>(p, e, *kernels);
  }
  return worst;
}

std::vector<std::string> columns_of_both_cores() {
  std::vector<std::string> columns;
  for (const char* core : {"prefill ", "decode "})
    for (const kda::isa isa : all_isas) columns.push_back(std::string(core) + kda::name(isa));
  return columns;
}

// Prefill with products of bf16, on every ISA.
template <class Spec> section bf16_products(const std::string& title) {
  section s{title, "regime, prefill", {}, {}};
  for (const kda::isa isa : with_products) s.columns.emplace_back(kda::name(isa));
  for (const regime& r : products_regimes<Spec>()) {
    s.rows.push_back({r.name, r.bound, {}});
    const std::vector<worst_errors> worst = measure<Spec>(r, with_products);
    for (std::size_t i = 0; i < worst.size(); ++i)
      s.rows.back().errors.push_back(kernels_on<Spec>(with_products[i]) ? worst[i].prefill.worst() : not_measured);
  }
  return s;
}

// The larger error of outputs and states, prefill and decode on each ISA.
template <class Spec> row row_of(const regime& r) {
  row result{r.name, r.bound, {}};
  const std::vector<worst_errors> worst = measure<Spec>(r);
  for (const bool prefill : {true, false})
    for (std::size_t i = 0; i < worst.size(); ++i)
      result.errors.push_back(kernels_on<Spec>(all_isas[i]) == nullptr ? not_measured
                              : prefill                                ? worst[i].prefill.worst()
                                                                       : worst[i].decode.worst());
  return result;
}

template <class Spec> section all_regimes(const std::string& title) {
  section s{title, "regime", columns_of_both_cores(), {}};
  for (const regime& r :
       {ordinary<Spec>(), strong_decay<Spec>(), total_decay_once<Spec>(), middling_decay<Spec>(), no_decay<Spec>(),
        one_decaying_token<Spec>(), forgotten_state<Spec>(), slow_decay<Spec>(), vanishing_decay<Spec>(),
        repeated_keys<Spec>(), reflecting_keys<Spec>(), negative_eigenvalues<Spec>()})
    s.rows.push_back(row_of<Spec>(r));
  return s;
}

// Problems with the options' own gate laws: ordinary logits.
template <class Spec> row ordinary_row(const std::string& name, const geometry& g) {
  return row_of<Spec>({name.c_str(), ordinary_bound, {ordinary_problem<Spec>(g, 1)}});
}

section gate_laws_and_types() {
  section s{"Gate laws in the call, bf16 tensors (before the last rounding of outputs), state fp32",
            "spec, ordinary logits",
            columns_of_both_cores(),
            {}};
  const geometry g{100, 2, 4, 24, 40}, wide{100, 1, 1, 128, 128};
  s.rows = {ordinary_row<specs::kda_bounded>("bounded, per channel, beta = sigmoid", g),
            ordinary_row<specs::kda_softplus>("softplus, per channel, beta = 2 sigmoid", g),
            ordinary_row<specs::gdn_bounded>("bounded, per head, beta = sigmoid", g),
            ordinary_row<specs::gdn_softplus>("softplus, per head, beta = sigmoid", g),
            ordinary_row<specs::glm>("bf16 tensors and logits, bounded, per channel, K = V = 128", wide),
            ordinary_row<specs::qwen>("bf16 tensors and logits, softplus, per head", g)};
  row slow = row_of<specs::kda_mixed>(slow_decay<specs::kda_mixed>());
  slow.name = "bf16 q, k, v; " + slow.name;
  s.rows.push_back(slow);
  return s;
}

template <class Spec> section growth(const std::string& title) {
  section s{title, "tokens", columns_of_both_cores(), {}};
  for (const bool slow : {false, true})
    for (const index T : {1024, 4096, 16384, 65536}) {
      if (emulated() && T > 4096) continue;
      problem p = ordinary_problem<Spec>({T, 1, 1, 16, 16}, 8);
      if (slow) {
        p = with_decay<Spec>(std::move(p), [](index, index, index) { return log_of_slow_alpha; });
        p = with_beta(std::move(p), [](index, index) { return 1e-4; });
      }
      const std::string name = (slow ? "alpha = 0.99992, beta = 1e-4, T = " : "ordinary, T = ") + std::to_string(T);
      s.rows.push_back(row_of<Spec>({name.c_str(), T <= 4096 ? hard_bound : no_bound, {std::move(p)}}));
    }
  return s;
}

// Decode rounds every token's state, prefill the last: each of output and state has its own bound.
template <class Spec> section bf16_state(const std::string& title) {
  section s{title, "error, every channel forgets 1 % to 86 % a token", {}, {}};
  for (const kda::isa isa : all_isas) s.columns.emplace_back(kda::name(isa));
  s.rows = {{"prefill, output", ordinary_bound, {}},
            {"prefill, state", 0x1p-8 + ordinary_bound, {}},
            {"decode, output", 0x1p-5, {}},
            {"decode, state", 0x1p-5, {}}};
  regime r{"", no_bound, {}};
  for (const double g : {-2., -0.5, -0.1, -0.01})
    for (const index T : {64, 256, 2048})
      r.problems.push_back(
          with_decay<Spec>(ordinary_problem<Spec>({T, 1, 1, 32, 24}, 3), [=](index, index, index) { return g; }));
  const std::vector<worst_errors> worst = measure<Spec>(r);
  for (std::size_t i = 0; i < worst.size(); ++i) {
    const bool measured = kernels_on<Spec>(all_isas[i]) != nullptr;
    const double errors[] = {worst[i].prefill.out, worst[i].prefill.state, worst[i].decode.out, worst[i].decode.state};
    for (std::size_t j = 0; j < s.rows.size(); ++j) s.rows[j].errors.push_back(measured ? errors[j] : not_measured);
  }
  return s;
}

// ---- the other operations -------------------------------------------------------------------------------------------

constexpr double single_operation_bound = 1e-6;
const float infinity = std::numeric_limits<float>::infinity();

/// One row; error(kernels) of a table.
template <class Spec, class Error> row operation(const std::string& name, double bound, Error error) {
  row r{name, bound, {}};
  for (const kda::isa isa : all_isas) {
    const auto* kernels = kernels_on<Spec>(isa);
    r.errors.push_back(kernels == nullptr ? not_measured : error(*kernels));
  }
  return r;
}

void demand(kda::status s) {
  if (!s) throw std::runtime_error(std::string(s.argument) + " " + kda::message(s.what));
}

/// Logits, A_log and dt_bias of a gate law; x [T, HV, D].
struct gate_problem {
  index T, HV, D;
  std::vector<float> x, a_log, dt_bias;
};

gate_problem ordinary_gate(index D) {
  random_numbers random(200);
  return {200, 4, D, random.normals(200 * 4 * D, 3), random.normals(4, 0.5), random.normals(4 * D)};
}

/// Every logit with every A_log and every bias, out to the infinities.
gate_problem extreme_gate(index D) {
  const std::vector<float> logits = {-infinity, -1e4f, -100, -20, -5, -1, -0.f, 0, 1, 5, 20, 100, 1e4f, infinity},
                           a_log = {-80, -4, 0, 2.77f, 5, 88, 100, infinity}, bias = {-100, -1, 0, 1, 100};
  gate_problem p{std::ssize(logits), std::ssize(a_log), D, {}, a_log, {}};
  for (const float x : logits) p.x.insert(p.x.end(), size(p.HV * D), x);
  for (index h = 0; h < p.HV; ++h)
    for (index d = 0; d < D; ++d) p.dt_bias.push_back(bias[size((h + d) % std::ssize(bias))]);
  return p;
}

template <class Spec> std::vector<double> gate_errors(const gate_problem& p, const kda::table<Spec>& kernels) {
  constexpr bool bounded = std::is_same_v<typename kda::detail::traits<Spec>::gate, kda::gate::bounded>;
  std::vector<float> g(p.x.size());
  packed_tensors<Spec> t({.g = {0, 1, p.HV, p.D, 1}, .a_log = p.a_log, .dt_bias = p.dt_bias});
  kda::gate_args<Spec> args{.gate_params = t.params()};
  if constexpr (kda::detail::is_per_channel<Spec>) {
    args.x = kda::packed(p.x.data(), p.T, p.HV, p.D);
    args.g = kda::packed(g.data(), p.T, p.HV, p.D);
  } else {
    args.x = kda::packed(p.x.data(), p.T, p.HV);
    args.g = kda::packed(g.data(), p.T, p.HV);
  }
  demand(kernels.gate(args, scratch(0), kda::serial));
  const auto x = widened(p.x), a_log = widened(p.a_log), dt_bias = widened(p.dt_bias);
  const std::vector<double> want = bounded ? kda::reference::bounded_gate(x, a_log, dt_bias, -5, p.T, p.HV, p.D)
                                           : kda::reference::unbounded_gate(x, a_log, dt_bias, p.T, p.HV, p.D);
  double of_alpha = 0;
  for (std::size_t i = 0; i < g.size(); ++i) {
    const double error = std::abs(std::exp(static_cast<double>(g[i])) - std::exp(want[i]));
    of_alpha = std::max(of_alpha, std::isnan(error) ? 1 : error);
  }
  return {relative_error(g, want), of_alpha};
}

template <class Spec> void add_gate(std::vector<row>& rows, const std::string& law) {
  const index D = kda::detail::is_per_channel<Spec> ? 21 : 1;
  const auto error = [](const gate_problem& p, std::size_t which) {
    return [p, which](const kda::table<Spec>& kernels) { return gate_errors<Spec>(p, kernels)[which]; };
  };
  rows.push_back(operation<Spec>("gate, " + law + ": g, logits 3 times normal", single_operation_bound,
                                 error(ordinary_gate(D), 0)));
  rows.push_back(operation<Spec>("gate, " + law + ": exp(g), logits and A_log to the infinities",
                                 single_operation_bound, error(extreme_gate(D), 1)));
}

template <class Spec> row beta_row(const std::string& name, double factor) {
  std::vector<float> b = random_numbers(201).normals(500, 4);
  b.insert(b.end(), {-infinity, -1e4f, -100, -0.f, 100, 1e4f, infinity});
  const auto want = kda::reference::sigmoid(widened(b), factor);
  return operation<Spec>(name, single_operation_bound, [=](const kda::table<Spec>& kernels) {
    std::vector<float> beta(b.size());
    demand(
        kernels.beta({.b = kda::packed(b.data(), std::ssize(b), 1), .beta = kda::packed(beta.data(), std::ssize(b), 1)},
                     scratch(0), kda::serial));
    return relative_error(beta, want);
  });
}

row l2norm_row() {
  using spec = specs::kda_norm_key;
  return operation<spec>(
      "l2norm, amplitudes 0 to 1e15, K = 1 to 256", single_operation_bound, [](const kda::table<spec>& kernels) {
        double worst = 0;
        for (const index K : {1, 33, 128, 256})
          for (const double amplitude : {1e15, 1e4, 1., .1, .01, 1e-3, 1e-4, 1e-25, 0.}) {
            const std::vector<float> x = random_numbers(202).normals(10 * K, amplitude);
            std::vector<float> y(x.size());
            demand(kernels.l2norm({.x = kda::packed(x.data(), 10, 1, K),
                                   .eps = 1e-6f,
                                   .scale = 1.f,
                                   .y = kda::packed(y.data(), 10, 1, K)},
                                  scratch(0), kda::serial));
            worst = std::max(worst, relative_error(y, kda::reference::l2norm_rows(widened(x), 10, K,
                                                                                  static_cast<double>(1e-6f), 1)));
          }
        return worst;
      });
}

template <class Spec> row conv_row(const std::string& name) {
  using t = kda::detail::traits<Spec>;
  using T = typename t::io::qkv;
  return operation<Spec>(name, single_operation_bound, [](const kda::table<Spec>& kernels) {
    double worst = 0;
    for (const index W : {2, 3, 4}) {
      constexpr index tokens = 64, C = 100;
      random_numbers random(203);
      const auto x = rounded_to<T>(random.normals(tokens * C)), state = rounded_to<T>(random.normals((W - 1) * C));
      const auto weight = random.normals(C * W), bias = random.normals(C);
      std::vector<T> y(x.size()), pool(state.size());
      constexpr bool channel_major = t::conv::order == kda::conv_state::channel_major;
      for (index w = 0; w < W - 1; ++w)
        for (index c = 0; c < C; ++c) pool[size(channel_major ? c * (W - 1) + w : w * C + c)] = state[size(w * C + c)];
      const std::int32_t offsets[] = {0, tokens}, slot[] = {0};
      const bool has[] = {true};
      kda::conv_args<Spec> a{.x = kda::packed(x.data(), tokens, C),
                             .weight = kda::packed(weight.data(), C, W),
                             .bias = kda::packed(bias.data(), C),
                             .y = kda::packed(y.data(), tokens, C)};
      a.sequences = {.offsets = kda::indices(offsets, 2),
                     .load_slots = kda::indices(slot, 1),
                     .store_slots = kda::indices(slot, 1),
                     .has_initial_state = kda::packed(has, 1)};
      a.states = {.data = pool.data(),
                  .slots = 1,
                  .slot_stride = std::ssize(pool),
                  .columns = W - 1,
                  .stride = channel_major ? W - 1 : C};
      demand(kernels.conv(a, scratch(1), kda::serial));
      std::vector<double> history = widened(state);
      const auto want =
          kda::reference::short_conv(widened(x), widened(weight), widened(bias), history, tokens, C, W,
                                     t::conv::act == kda::activation::silu ? kda::reference::activation_kind::silu
                                                                           : kda::reference::activation_kind::none);
      worst = std::max(worst, error_before_rounding(y, want));
    }
    return worst;
  });
}

template <class Spec> row norm_row(const std::string& name, double bound) {
  using t = kda::detail::traits<Spec>;
  using T = typename t::io::out;
  return operation<Spec>(name, bound, [](const kda::table<Spec>& kernels) {
    double worst = 0;
    for (const double amplitude : {1e6, 1., 1e-3, 1e-6})
      for (const index V : {1, 33, 128}) {
        random_numbers random(204);
        const auto x = rounded_to<T>(random.normals(20 * V, amplitude)),
                   gate = rounded_to<T>(random.normals(20 * V, 3));
        const auto weight = random.normals(V);
        std::vector<T> y(x.size());
        demand(kernels.norm({.x = kda::packed(x.data(), 20, 1, V),
                             .gate = kda::packed(gate.data(), 20, 1, V),
                             .weight = kda::packed(weight.data(), V),
                             .eps = 1e-5f,
                             .y = kda::packed(y.data(), 20, 1, V)},
                            scratch(0), kda::serial));
        const auto want = kda::reference::rms_norm_gated(
            widened(x), widened(gate), widened(weight), 20, V, static_cast<double>(1e-5f),
            t::norm::act == kda::activation::silu ? kda::reference::activation_kind::silu
                                                  : kda::reference::activation_kind::sigmoid);
        worst = std::max(worst, error_before_rounding(y, want));
      }
    return worst;
  });
}

section other_operations() {
  section s{"Gate laws, beta, norms and convolution by themselves", "operation", {}, {}};
  for (const kda::isa isa : all_isas) s.columns.emplace_back(kda::name(isa));
  add_gate<specs::kda_bounded>(s.rows, "bounded per channel");
  add_gate<specs::kda_softplus>(s.rows, "softplus per channel");
  add_gate<specs::gdn_bounded>(s.rows, "bounded per head");
  add_gate<specs::gdn_softplus>(s.rows, "softplus per head");
  s.rows.push_back(beta_row<specs::kda_bounded>("beta, sigmoid, logits to the infinities", 1));
  s.rows.push_back(beta_row<specs::kda_softplus>("beta, 2 sigmoid, logits to the infinities", 2));
  s.rows.push_back(l2norm_row());
  s.rows.push_back(conv_row<specs::kda_bounded>("conv, SiLU, W = 2 to 4, time-major state"));
  s.rows.push_back(conv_row<specs::kda_softplus>("conv, no activation, W = 2 to 4, channel-major state"));
  s.rows.push_back(conv_row<specs::glm>("conv, SiLU, bf16, before the last rounding"));
  s.rows.push_back(norm_row<specs::kda_bounded>("norm, sigmoid, weight before the cast", single_operation_bound));
  s.rows.push_back(norm_row<specs::kda_softplus>("norm, SiLU, weight before the cast", single_operation_bound));
  s.rows.push_back(norm_row<specs::gdn_softplus>("norm, SiLU, weight after the cast", single_operation_bound));
  s.rows.push_back(norm_row<specs::glm>("norm, sigmoid, bf16, before the last rounding", single_operation_bound));
  s.rows.push_back(
      norm_row<specs::qwen>("norm, SiLU, bf16, weight after the cast: two roundings before the last", 0x1p-7));
  return s;
}

int print_all(bool markdown) {
  printer p(markdown);
  p.print(all_regimes<specs::kda_norm_key>("Per-channel decay (KDA), key-major state"));
  p.print(all_regimes<specs::kda_norm_value>("Per-channel decay (KDA), value-major state"));
  p.print(all_regimes<specs::gdn_norm_key>("Per-head decay (GDN), key-major state"));
  p.print(all_regimes<specs::gdn_norm_value>("Per-head decay (GDN), value-major state"));
  p.print(gate_laws_and_types());
  p.print(growth<specs::kda_norm_value>("Growth with T, per-channel decay, value-major state"));
  p.print(growth<specs::gdn_norm_key>("Growth with T, per-head decay, key-major state"));
  p.print(bf16_state<specs::kda_bf16_key>("bf16 state, key-major"));
  p.print(bf16_state<specs::kda_bf16_value>("bf16 state, value-major"));
  p.print(bf16_products<specs::kda_products>("bf16 products, per-channel decay, key-major state"));
  p.print(bf16_products<specs::gdn_products>("bf16 products, per-head decay, value-major bf16 state"));
  p.print(other_operations());
  return p.all_hold() ? 0 : 1;
}

}  // namespace
}  // namespace testing

int main(int count, char** arguments) {
  const std::string argument = count > 1 ? arguments[1] : "";
  if (count > 2 || (!argument.empty() && argument != "--markdown")) {
    std::fprintf(stderr, "usage: kda_numerics [--markdown]\n");
    return 2;
  }
  try {
    return testing::print_all(argument == "--markdown");
  } catch (const std::exception& e) {
    std::fprintf(stderr, "kda_numerics: ERROR: %s\n", e.what());
    return 2;
  }
}
