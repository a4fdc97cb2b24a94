// SPDX-License-Identifier: Apache-2.0
#include "suite.hpp"

#include <cstring>

namespace bench {

namespace {

struct shape {
  index N, T;
};
using shapes = std::vector<shape>;
enum class op { prefill, decode, step, conv, gate, l2norm, norm };

shapes tokens(std::initializer_list<index> T) {
  shapes s;
  for (const index t : T) s.push_back({1, t});
  return s;
}
shapes decodes(std::initializer_list<index> N) {
  shapes s;
  for (const index n : N) s.push_back({n, 1});
  return s;
}
shapes operator+(shapes a, const shapes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

template <class Spec>
std::unique_ptr<work> make_work(op o, const kda::table<Spec>& table, const geometry& g, shape s, index concurrency) {
  const std::vector<index> lengths(static_cast<std::size_t>(s.N), s.T);
  switch (o) {
    case op::prefill:
      return std::make_unique<core_work<Spec>>(table, kda::mode::prefill, g, lengths, concurrency);
    case op::decode:
      return std::make_unique<core_work<Spec>>(table, kda::mode::decode, g, lengths, concurrency);
    case op::step:
      return std::make_unique<step_work<Spec>>(
          table, std::vector<kda::mode>(lengths.size(), s.T == 1 ? kda::mode::decode : kda::mode::prefill), g, lengths,
          concurrency);
    case op::conv:
      return std::make_unique<conv_work<Spec>>(table, g, lengths, concurrency);
    case op::gate:
      return std::make_unique<row_work<Spec>>(table, row_kernel::gate, g, s.N * s.T, concurrency);
    case op::l2norm:
      return std::make_unique<row_work<Spec>>(table, row_kernel::l2norm, g, s.N * s.T, concurrency);
    case op::norm:
      return std::make_unique<row_work<Spec>>(table, row_kernel::norm, g, s.N * s.T, concurrency);
  }
  return nullptr;
}

class suite {
 public:
  explicit suite(std::vector<index> threads) : threads_(std::move(threads)) {}

  std::vector<request> all;

  /// Rows of one spec and operation on every ISA. Of scalar kernels, which are slow, only the shapes in `scalar_too`.
  template <class Spec>
  void add(const char* spec, kda::kernel_list<Spec> list, op o, const geometry& g, const shapes& wanted,
           const shapes& scalar_too = {}) {
    for_each_isa(list, [&](const kda::table<Spec>& table) {
      const bool scalar = std::strcmp(table.isa, kda::name(kda::isa::scalar)) == 0;
      for (const shape& s : scalar ? scalar_too : wanted)
        for (const index n : scalar ? std::vector<index>{1} : threads_)
          all.push_back({row_of<Spec>(spec, o, table.isa, g, s, n),
                         [=, &table, most = threads_.back()] { return make_work<Spec>(o, table, g, s, most); }});
    });
  }

 private:
  template <class Spec>
  static row row_of(const char* spec, op o, const char* isa, const geometry& g, shape s, index threads) {
    using types = kda::types<Spec>;
    constexpr bool per_channel = kda::detail::is_per_channel<Spec>;
    const char* names[] = {per_channel ? "kda_prefill" : "gdn_prefill",
                           per_channel ? "kda_decode" : "gdn_decode",
                           "step",
                           "conv",
                           "gate",
                           "l2norm",
                           "norm"};
    const auto type_name = []<class T>(std::type_identity<T>) {
      return std::is_same_v<T, float> ? "f32" : std::is_same_v<T, kda::bf16> ? "bf16" : "f16";
    };
    return {.op = names[static_cast<int>(o)],
            .spec = spec,
            .io = type_name(std::type_identity<typename types::qkv>()),
            .state = type_name(std::type_identity<typename types::state>()),
            .products = type_name(std::type_identity<typename kda::detail::traits<Spec>::products::type>()),
            .layout = kda::detail::traits<Spec>::state::order == kda::layout::key_major ? "key_major" : "value_major",
            .geometry = g.name,
            .isa = isa,
            .threads = threads,
            .N = s.N,
            .T = s.T,
            .is_delta_rule = o <= op::step};
  }

  std::vector<index> threads_;
};

// A spec's name as text, and its list.
#define LIST(name) #name, name

void add_smoke(suite& s) {
  for (const op o : {op::prefill, op::decode, op::step, op::conv, op::gate, op::l2norm, op::norm}) {
    s.add(LIST(glm_f32), o, two_heads, {{2, 16}}, {{2, 16}});
    s.add(LIST(gdn_bf16), o, two_heads, {{2, 1}});
  }
  s.add(LIST(glm_f32_key), op::prefill, two_heads, {{1, 16}});
  s.add(LIST(glm_f32_state_bf16), op::decode, two_heads, {{2, 1}});
  s.add(LIST(glm_f32_state_bf16_key), op::decode, two_heads, {{2, 1}});
  s.add(LIST(glm_f32_products), op::prefill, two_heads, {{1, 16}});
  s.add(LIST(gdn_f32_products), op::prefill, two_heads, {{1, 16}});
  s.add(LIST(glm_bf16), op::step, two_heads, {{1, 1}});
  s.add(LIST(glm_bf16_state_bf16), op::decode, two_heads, {{2, 1}});
  s.add(LIST(kimi_bf16), op::prefill, two_heads, {{1, 16}});
  s.add(LIST(gdn_f32), op::prefill, two_heads, {{1, 16}});
  s.add(LIST(gdn_f32_key), op::decode, two_heads, {{1, 1}});
}

void add_quick(suite& s) {
  s.add(LIST(glm_f32), op::prefill, glm, tokens({512, 2048}), tokens({64}));
  s.add(LIST(glm_f32), op::prefill, one_head, tokens({512}));
  s.add(LIST(glm_f32), op::decode, glm, decodes({1, 8, 32}), decodes({1}));
  s.add(LIST(glm_f32_state_bf16), op::decode, glm, decodes({1, 8, 32}));
  s.add(LIST(glm_f32_key), op::prefill, glm, tokens({512}));
  s.add(LIST(glm_f32_key), op::decode, glm, decodes({1, 32}));
  s.add(LIST(glm_f32_products), op::prefill, glm, tokens({512, 2048}));
  s.add(LIST(glm_bf16), op::prefill, glm, tokens({512}));
  s.add(LIST(gdn_f32), op::prefill, glm, tokens({512}));
  s.add(LIST(gdn_f32_products), op::prefill, glm, tokens({512}));
  s.add(LIST(gdn_f32), op::decode, glm, decodes({1, 32}));
  s.add(LIST(glm_f32), op::step, glm, tokens({512}) + decodes({32}));
  for (const op o : {op::conv, op::gate, op::l2norm, op::norm}) s.add(LIST(glm_f32), o, glm, tokens({512}));
}

void add_full(suite& s) {
  const shapes prompts = tokens({1, 16, 64, 512, 2048, 8192}), some_prompts = tokens({64, 512, 2048});
  const shapes packed{{8, 64}, {8, 512}, {32, 16}, {32, 64}, {128, 16}}, runs{{1, 16}, {8, 16}};
  const shapes steps = decodes({1, 8, 32, 128}), some_steps = decodes({1, 8, 32});

  s.add(LIST(glm_f32), op::prefill, glm, prompts + packed, tokens({64, 512}));
  s.add(LIST(glm_f32), op::prefill, one_head, tokens({512, 2048}), tokens({512}));
  s.add(LIST(glm_f32), op::decode, glm, steps + runs, decodes({1, 8}));
  s.add(LIST(glm_f32), op::step, glm, prompts + shapes{{8, 64}} + decodes({8, 32, 128}), tokens({64}));
  for (const op o : {op::conv, op::gate, op::l2norm, op::norm})
    s.add(LIST(glm_f32), o, glm, tokens({1, 16, 64, 512, 2048}) + decodes({8, 32, 128}), tokens({64}));

  s.add(LIST(glm_f32_key), op::prefill, glm, some_prompts);
  s.add(LIST(glm_f32_key), op::decode, glm, steps + runs);
  s.add(LIST(glm_f32_state_bf16), op::prefill, glm, tokens({512}));
  s.add(LIST(glm_f32_state_bf16), op::decode, glm, steps + runs);
  s.add(LIST(glm_f32_state_bf16_key), op::decode, glm, decodes({1, 32}));
  s.add(LIST(glm_f32_products), op::prefill, glm, some_prompts);
  s.add(LIST(glm_f32_products), op::prefill, one_head, tokens({512}));
  s.add(LIST(gdn_f32_products), op::prefill, glm, some_prompts);
  s.add(LIST(glm_bf16), op::prefill, glm, some_prompts);
  s.add(LIST(glm_bf16), op::decode, glm, some_steps);
  s.add(LIST(glm_bf16), op::step, glm, some_prompts + some_steps);
  for (const op o : {op::conv, op::gate, op::l2norm, op::norm}) s.add(LIST(glm_bf16), o, glm, tokens({1, 512}));
  s.add(LIST(glm_bf16_state_bf16), op::decode, glm, some_steps);
  s.add(LIST(glm_bf16_state_bf16), op::step, glm, decodes({1, 32}));

  s.add(LIST(kimi_bf16), op::prefill, kimi, some_prompts);
  s.add(LIST(kimi_bf16), op::decode, kimi, steps);
  s.add(LIST(kimi_bf16), op::step, kimi, tokens({512}) + decodes({1, 32}));

  s.add(LIST(gdn_f32), op::prefill, glm, some_prompts);  // the peers' shapes
  s.add(LIST(gdn_f32), op::decode, glm, some_steps);
  s.add(LIST(gdn_f32), op::prefill, one_head, tokens({512}));
  s.add(LIST(gdn_f32), op::prefill, qwen3_next, some_prompts);
  s.add(LIST(gdn_f32), op::decode, qwen3_next, steps);
  s.add(LIST(gdn_f32_key), op::prefill, qwen3_next, tokens({512}));
  s.add(LIST(gdn_f32_key), op::decode, qwen3_next, decodes({1, 32}));
  for (const geometry& g : {qwen3_next, qwen3_5}) {
    s.add(LIST(gdn_bf16), op::prefill, g, tokens({512, 2048}));
    s.add(LIST(gdn_bf16), op::decode, g, decodes({1, 32}));
    s.add(LIST(gdn_bf16), op::step, g, tokens({512}) + decodes({1, 32}));
    s.add(LIST(gdn_bf16), op::conv, g, tokens({512}));
  }
}

}  // namespace

std::vector<request> requests(extent e, const std::vector<index>& threads) {
  suite s(threads);
  switch (e) {
    case extent::smoke:
      add_smoke(s);
      break;
    case extent::quick:
      add_quick(s);
      break;
    case extent::full:
      add_full(s);
      break;
  }
  return std::move(s.all);
}

}  // namespace bench
