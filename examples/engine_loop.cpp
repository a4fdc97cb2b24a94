// SPDX-License-Identifier: Apache-2.0
// A serving engine in small around kda's step: continuous batching over simulated requests, with chunked prefill, a
// prefix cache, preemption, slot reuse and speculative decoding in both styles.
//   engine_loop [--requests N] [--seed N] [--threads N] [--isa scalar|neon|avx2|avx512|avx512_bf16]
//     --requests N   how many are served (default: 2000)
//     --seed N       of their lengths and inputs, and of what the scheduler leaves to chance (default: 1)
//     --threads N    that run kda's tasks (default: 1); no bit depends on it
//     --isa ISA      exactly these kernels (default: the best that run here; the environment's KDA_ISA can lower them)
// Whatever company a request had, its outputs and its last state are compared with the same request served alone: bit
// for bit; and a prompt that was cut off the chunk grid is within 1e-5 of one call.
// Exit status 1 and one line that names request and token, if one differs.
#include "loop_scheduler.hpp"
#include "program.hpp"

#include <charconv>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

namespace engine {
namespace {

struct options {
  index requests = 2000, seed = 1, threads = 1;
  std::string isa;
};

index whole_number(const std::string& option, const char* word, index least, index most) {
  index n = 0;
  const char* end = word + std::strlen(word);
  const auto [stopped, error] = std::from_chars(word, end, n);
  if (error != std::errc() || stopped != end || n < least || n > most)
    throw std::runtime_error(option + " " + word + ": is no whole number from " + std::to_string(least) + " to " +
                             std::to_string(most));
  return n;
}

options parse(int count, char** words) {
  options o;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    if (word == "--requests" && i + 1 < count)
      o.requests = whole_number(word, words[++i], 1, 1'000'000'000);
    else if (word == "--seed" && i + 1 < count)
      o.seed = whole_number(word, words[++i], 0, 1'000'000'000);
    else if (word == "--threads" && i + 1 < count)
      o.threads = whole_number(word, words[++i], 1, 256);
    else if (word == "--isa" && i + 1 < count)
      o.isa = words[++i];
    else
      throw std::runtime_error(
          "usage: engine_loop [--requests N] [--seed N] [--threads N] [--isa scalar|neon|avx2|avx512|avx512_bf16]");
  }
  return o;
}

void print(const loop_counts& c) {
  const auto per = [](auto a, auto b) { return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0; };
  std::printf("  batches      %td rounds, %td calls; %.1f sequences and %.1f tokens in a round, at most %td and %td\n",
              c.rounds, c.calls, per(c.sequences, c.rounds), per(c.tokens, c.rounds), c.most_sequences, c.most_tokens);
  std::printf("  throughput   prefill %.0f, decode %.0f tokens/s at the same time: %td and %td in %.1f s of step\n",
              per(c.prompt_tokens, c.step_seconds), per(c.decoded_tokens, c.step_seconds), c.prompt_tokens,
              c.decoded_tokens, c.step_seconds);
  std::printf("  prefix cache %td checkpoints kept, %td restored, which spared %td tokens\n", c.checkpoints,
              c.cache_hits, c.cached_tokens);
  std::printf("  preemption   %td states saved, %td dropped; %td tokens computed again, to the same bits\n", c.saved,
              c.dropped, c.repeated_tokens);
  std::printf("  speculation  %td tokens drafted, %.0f %% right\n", c.drafted, 100 * per(c.right, c.drafted));
  std::printf("  solo runs    %.1f s; prompts cut off the grid at most %.1e from one call (bound %.0e)\n",
              c.solo_seconds, c.worst_off_grid, solo_run::bound);
}

int run_all(const options& o) {
  const auto& kernels = choose_kernels(loop_kernels, o.isa)->get<served>();
  thread_pool threads(o.threads);
  std::printf("engine_loop: isa %s, %td thread%s, seed %td\n", kernels.isa, threads.size(),
              threads.size() > 1 ? "s" : "", o.seed);
  std::fflush(stdout);
  scheduler s(kernels, threads, static_cast<std::uint64_t>(o.seed));
  {
    progress bar(o.requests);
    s.serve(o.requests, [&](index done) {
      const loop_counts& c = s.counts();
      char text[96];
      std::snprintf(text, sizeof text, "%td of %td requests, %.0f tokens/s", done, o.requests,
                    static_cast<double>(c.tokens) / c.step_seconds);
      bar.show(done, text);
    });
  }
  print(s.counts());
  std::printf("engine_loop: %td requests, all equal to their solo runs\n", o.requests);
  return 0;
}

}
}

int main(int count, char** words) {
  return engine::run_program("engine_loop", [&] { return engine::run_all(engine::parse(count, words)); });
}
