// SPDX-License-Identifier: Apache-2.0
// A linear-attention layer of GLM-5.3-Flash on the CPU, from hidden states to hidden states.
//   glm_layer [--golden DIR] [--isa scalar|neon|avx2|avx512|avx512_bf16] [--quick]
//     --golden DIR   the folder of the golden files (default: golden)
//     --isa ISA      exactly these kernels (default: the best that run here; the environment's KDA_ISA can lower them)
//     --quick        fewer tokens
// 1. Small layers of GLM's kind, all that golden/ has, against what transformers computed.
// 2. The full size in bf16, a prompt in several calls and then token by token. Each stage is compared, for a few heads,
//    with the double reference on the same bf16 inputs.
// Exit status 1 and one line that says why, if an error is beyond its bound or something cannot be read or run.
#include "glm_weights.hpp"
#include "golden_layer.hpp"
#include "program.hpp"
#include "stage_errors.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace engine {
namespace {

// ---- 1. golden layers ----------------------------------------------------------------------------------------------

/// Worst error and its bound, as shares of the largest stored magnitude.
struct golden_error {
  double worst = 0, bound = 0;
  [[nodiscard]] bool passed() const { return worst <= bound; }
};

golden_error compare(const std::vector<float>& got, const expected& want) {
  deviation d;
  for (std::size_t i = 0; i < got.size(); ++i) d.add(got[i], static_cast<double>(want.data[i]));
  const double unit = d.largest > 0 ? d.largest : 1;
  return {d.worst / unit, want.max_abs / unit + want.max_rel};
}

/// Errors of y, state and convolution state after the stored calls.
template <class Spec>
std::vector<golden_error> run(const kda::table<Spec>& kernels, thread_pool& pool, const golden_layer& g) {
  activations<float> a(std::ssize(g.hidden) / g.shape.hidden, g.shape);
  a.hidden.data = g.hidden;
  layer<float, Spec> l(kernels, pool, g.shape, g.weights);
  stage_times times;
  index first = 0;
  for (const index n : g.calls) {
    l.forward(a, first, n, n == 1 ? core::decode : core::prefill, times);
    first += n;
  }
  return {compare(a.y.data, g.y), compare(l.state, g.state), compare(l.conv_state.data, g.conv_state)};
}

template <class Tables>
std::vector<golden_error> run_with_its_spec(const Tables& kernels, thread_pool& pool, const golden_layer& g) {
  if (g.bounded && g.conv_silu) return run(kernels.template get<glm_f32>(), pool, g);
  if (g.bounded) return run(kernels.template get<glm_f32_no_silu>(), pool, g);
  if (g.conv_silu) return run(kernels.template get<glm_f32_softplus>(), pool, g);
  throw std::runtime_error("softplus without silu is none of the specs of glm.hpp");
}

template <class Tables> bool run_golden_layers(const Tables& kernels, thread_pool& pool, const std::string& folder) {
  const std::vector<golden_layer> layers = read_golden_layers(folder);
  std::printf("1. %zu small layers in float32 against transformers' outputs\n\n", layers.size());
  std::printf("   %-40s%s\n", "", "worst error / bound, of the largest output");
  std::printf("   %-40s%-20s%-20s%s\n", "layer and lengths of its calls", "y", "state", "convolution state");
  bool passed = true;
  for (const golden_layer& g : layers) {
    try {
      const auto errors = run_with_its_spec(kernels, pool, g);
      std::printf("   %-36s", g.name.c_str());
      for (const golden_error& e : errors) {
        std::printf("    %.1e / %.0e%s", e.worst, e.bound, e.passed() ? "" : " (!)");
        passed = passed && e.passed();
      }
      std::printf("\n");
    } catch (const std::exception& e) {
      throw std::runtime_error(g.file.string() + ": " + e.what());
    }
  }
  return passed;
}

// ---- 2. full size --------------------------------------------------------------------------------------------------

bool print_phase(const char* title, index tokens, const stage_times& times, const stage_deviations& d) {
  struct line {
    const char* stage;
    double seconds;
    const deviation& error;
  };
  std::printf("   %s\n", title);
  bool passed = true;
  for (const line& l : {line{"projections", times.projections, d.projections}, line{"convolution", times.conv, d.conv},
                        line{"delta rule, gate, beta, q/k norm", times.core, d.core},
                        line{"gated norm", times.norm, d.norm}, line{"output projection", times.out, d.out}}) {
    const double per_token_and_head = l.seconds / static_cast<double>(tokens * glm_shape.heads);
    std::printf("     %-34s%6td%10.1f ms%11.2f us%12.1e%12.1e%s\n", l.stage, tokens, 1e3 * l.seconds,
                1e6 * per_token_and_head, l.error.worst / l.error.largest, l.error.unrounded / l.error.largest,
                l.error.passed() ? "" : " (!)");
    passed = passed && l.error.passed();
  }
  return passed;
}

bool run_full_size(const kda::table<glm>& kernels, thread_pool& pool, bool quick) {
  const std::vector<index> calls = quick ? std::vector<index>{24, 9, 7} : std::vector<index>{160, 100, 44};
  const index prompt = std::accumulate(calls.begin(), calls.end(), index{0}), decoded = quick ? 4 : 16;
  const std::vector<index> heads{0, 21, 42, 63};
  constexpr layer_shape s = glm_shape;
  activations<kda::bf16> a(prompt + decoded, s);
  layer_weights<kda::bf16> weights;
  stage_times prompt_times, decode_times;
  layer_deviations errors;
  bool same_window = true;
  {
    progress bar(2 + std::ssize(calls) + decoded);
    bar.next("weights");
    weights = make_glm_weights(pool, a.hidden);
    layer<kda::bf16, glm> l(kernels, pool, s, weights);
    index first = 0;
    for (const index n : calls) {
      bar.next("prompt");
      l.forward(a, first, n, core::prefill, prompt_times);
      first += n;
    }
    for (; first < prompt + decoded; ++first) {
      bar.next("decode");
      l.forward(a, first, 1, core::decode, decode_times);
    }
    bar.next("reference");
    errors = compare_heads(pool, {s, weights, a, l.state, prompt}, heads);
    for (index column = 0; column < s.conv_width - 1; ++column)
      same_window =
          same_window && std::memcmp(l.conv_state.at(column), a.projected.at(first - (s.conv_width - 1) + column),
                                     static_cast<std::size_t>(3 * s.Q()) * sizeof(kda::bf16)) == 0;
  }

  std::printf("\n2. hidden size %td, %td heads of %td, convolution over %td, lower bound %g, bf16; heads", s.hidden,
              s.heads, s.head_dim, s.conv_width, static_cast<double>(s.lower_bound));
  for (const index head : heads) std::printf(" %td", head);
  std::printf(" against the double reference\n\n");
  std::printf("   %-36s%6s%13s%14s%24s\n", "", "", "", "per token", "error, of the largest");
  std::printf("   %-36s%6s%13s%14s%12s%12s\n", "stage", "tokens", "time", "and head", "total", "unrounded");
  const std::string calls_text = "prompt: prefill in " + std::to_string(calls.size()) + " calls";
  bool passed = print_phase(calls_text.c_str(), prompt, prompt_times, errors.prompt);
  passed &= print_phase("then: decode token by token", decoded, decode_times, errors.decode);
  std::printf("   states at the end\n");
  std::printf("     %-67s%24.1e%s\n", "delta rule, fp32", errors.state.worst / errors.state.largest,
              errors.state.passed() ? "" : " (!)");
  std::printf("     %-67s%24s\n", "convolution", same_window ? "exact" : "wrong (!)");
  std::printf("   %-69s%24.0e\n", "bound of an unrounded error", deviation::bound);
  return passed && errors.state.passed() && same_window;
}

// ---- command line --------------------------------------------------------------------------------------------------

struct options {
  std::string golden = "golden", isa;
  bool quick = false;
};

options parse(int count, char** words) {
  options o;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--quick")
      o.quick = true;
    else if (word == "--golden" && i + 1 < count)
      o.golden = words[++i];
    else if (word == "--isa" && i + 1 < count)
      o.isa = words[++i];
    else
      throw std::runtime_error("usage: glm_layer [--golden DIR] [--isa scalar|neon|avx2|avx512|avx512_bf16] [--quick]");
  }
  return o;
}

int run_all(const options& o) {
  stopwatch clock;
  const auto* kernels = choose_kernels(glm_kernels, o.isa);
  thread_pool pool(std::max(1u, std::thread::hardware_concurrency()));
  std::printf("glm_layer: isa %s, %td threads\n\n", kernels->get<glm>().isa, pool.size());
  if (!run_golden_layers(*kernels, pool, o.golden))
    throw std::runtime_error(o.golden + ": an error is beyond its bound");
  if (!run_full_size(kernels->get<glm>(), pool, o.quick))
    throw std::runtime_error("full size: an error is beyond its bound");
  std::printf("\nglm_layer: all within bounds, %.1f s\n", clock.lap());
  return 0;
}

}
}

int main(int count, char** words) {
  return engine::run_program("glm_layer", [&] { return engine::run_all(engine::parse(count, words)); });
}
