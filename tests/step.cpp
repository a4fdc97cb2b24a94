// SPDX-License-Identifier: Apache-2.0
// step: a layer in one call is conv, prefill or decode, and norm called one by one, to the bit; whatever order the
// sequences stand in, whatever their modes, and whichever heads a call takes.
#include "support/step.hpp"

#include "support/kda_catch.hpp"

#include <numeric>

namespace testing {
namespace {

constexpr kda::mode decode = kda::mode::decode, prefill = kda::mode::prefill;

// Every kind of sequence: in place, from slot to slot, fresh, empty, padding; shorter than the window and longer than
// two chunks.
const std::vector<sequence> every_kind{continued(1, 11, 0), {37, 12, 1, 2, true, 5}, fresh(2, 13, 3),
                                       continued(0, 14, 4), {3, 15, 5, -1, true},    fresh(19, 16, 6),
                                       fresh(0, 17, 7),     continued(18, 18, 8)};
const std::vector<kda::mode> every_mode{decode, prefill, decode, prefill, decode, prefill, decode, decode};

template <class Spec> step_call<Spec> call_of_kinds() {
  return {every_kind, every_mode, step_call<Spec>::states_of(9, 1), step_call<Spec>::windows_of(9, 2)};
}

// Rows of sequence n in y.
template <class Spec> auto rows(const step_call<Spec>& x, std::size_t n) {
  const index row = x.g.HV * x.g.V;
  return std::vector(x.y.begin() + x.lists.offsets[n] * row, x.y.begin() + x.lists.offsets[n + 1] * row);
}

}  // namespace

TEMPLATE_TEST_CASE("step equals its parts, called one by one, to the bit", "[step]", KDA_TEST_STEPS) {
  auto fused = call_of_kinds<TestType>(), parts = fused;
  fused.run();
  step_call<TestType>::run_parts(parts.args(), scratch(parts.sequences()));
  CHECK(same_bits(fused.y, parts.y));
  CHECK(same_bits(fused.states.cells, parts.states.cells));
  CHECK(same_bits(fused.conv_states.cells, parts.conv_states.cells));
}

TEMPLATE_TEST_CASE("a sequence in a mixed batch has the bits of its own step, whatever the order", "[step]",
                   KDA_TEST_STEPS) {
  const auto states = step_call<TestType>::states_of(9, 1);
  const auto windows = step_call<TestType>::windows_of(9, 2);
  const std::vector<sequence> kinds{fresh(emulated() ? 20 : 70, 1, 0), continued(1, 2, 1), continued(3, 3, 2),
                                    continued(1, 4, 3)};
  const std::vector<kda::mode> modes{prefill, decode, prefill, decode};
  std::vector<std::size_t> order{0, 1, 2, 3};
  do {
    std::vector<sequence> batch;
    std::vector<kda::mode> batch_modes;
    for (const std::size_t n : order) batch.push_back(kinds[n]), batch_modes.push_back(modes[n]);
    step_call<TestType> together(batch, batch_modes, states, windows);
    together.run();
    for (std::size_t i = 0; i < batch.size(); ++i) {
      step_call<TestType> alone({batch[i]}, {batch_modes[i]}, states, windows);
      alone.run();
      CAPTURE(i, order);
      CHECK(same_bits(rows(together, i), alone.y));
      CHECK(same_bits(together.states.slot(batch[i].store), alone.states.slot(batch[i].store)));
      CHECK(same_bits(together.conv_states.slot(batch[i].store), alone.conv_states.slot(batch[i].store)));
    }
  } while (!emulated() && std::next_permutation(order.begin(), order.end()));
}

TEMPLATE_TEST_CASE("a step touches only the slots it stores", "[step]", KDA_TEST_STEPS) {
  auto x = call_of_kinds<TestType>();
  const auto before = x;
  x.run();
  CHECK(x.states.same_but({0, 2, 3, 4, 6, 7, 8}, before.states));
  CHECK(x.conv_states.same_but({0, 2, 3, 4, 6, 7, 8}, before.conv_states));
}

TEMPLATE_TEST_CASE("a fresh sequence of a step ignores what its slots hold, one token or many", "[step]",
                   KDA_TEST_STEPS) {
  const std::vector<sequence> batch{fresh(1, 1, 0), continued(1, 2, 1), fresh(5, 3, 2), continued(1, 4, 3)};
  for (const kda::mode m : {decode, prefill}) {
    auto dirty = step_call<TestType>(batch, {m, m, m, m}, step_call<TestType>::states_of(4, 1),
                                     step_call<TestType>::windows_of(4, 2));
    auto clean = dirty;
    for (const std::int64_t slot : {0, 2}) {
      auto s = dirty.states.slot(slot);
      auto w = dirty.conv_states.slot(slot);
      fill_bytes(s, nan_bytes), fill_bytes(w, nan_bytes);
      dirty.states.set_slot(slot, s), dirty.conv_states.set_slot(slot, w);
      fill_bytes(s, 0), fill_bytes(w, 0);
      clean.states.set_slot(slot, s), clean.conv_states.set_slot(slot, w);
    }
    dirty.run();
    clean.run();
    CHECK(same_bits(dirty, clean));
  }
}

TEMPLATE_TEST_CASE("a prompt cut on the grid has the bits of one step, and decode goes on from it", "[step]",
                   KDA_TEST_STEPS) {
  const auto states = step_call<TestType>::states_of(1, 1);
  const auto windows = step_call<TestType>::windows_of(1, 2);
  step_call<TestType> whole({fresh(51, 7, 0)}, {prefill}, states, windows);
  whole.run();
  // the same inputs, cut: views of the whole call's tensors
  step_call<TestType> cut({fresh(51, 7, 0)}, {prefill}, states, windows);
  const index cuts[] = {0, 16, 48, 51};
  for (int i = 0; i < 3; ++i) {
    auto a = cut.args();
    const std::int64_t offsets[] = {0, cuts[i + 1] - cuts[i]}, position[] = {cuts[i]};
    const bool has[] = {i > 0};
    const auto part = [&](auto& v) { v = v.template part<0>(cuts[i], cuts[i + 1] - cuts[i]); };
    part(a.q), part(a.k), part(a.v), part(a.beta), part(a.output_gate), part(a.y), part(a.gate);
    a.sequences.offsets = kda::indices(offsets);
    a.sequences.first_position = kda::indices(position);
    a.sequences.has_initial_state = kda::packed(has, 1);
    throw_unless(cut.function()(a, scratch(1)));
  }
  CHECK(same_bits(whole.y, cut.y));
  if constexpr (std::is_same_v<typename step_call<TestType>::t::state::type, float>)
    CHECK(same_bits(whole.states.cells, cut.states.cells));
  CHECK(same_bits(whole.conv_states.cells, cut.conv_states.cells));
}

TEMPLATE_TEST_CASE("n tokens in one decode step have the bits of n steps", "[step]", KDA_TEST_STEPS) {
  const auto states = step_call<TestType>::states_of(1, 1);
  const auto windows = step_call<TestType>::windows_of(1, 2);
  for (const index n : {1, 2, 3, 4, 5, 8, 17}) {
    step_call<TestType> once({continued(n, 7, 0)}, {decode}, states, windows), one_by_one = once;
    once.run();
    for (index i = 0; i < n; ++i) {
      auto a = one_by_one.args();
      const std::int64_t offsets[] = {0, 1};
      const auto part = [&](auto& v) { v = v.template part<0>(i, 1); };
      part(a.q), part(a.k), part(a.v), part(a.beta), part(a.output_gate), part(a.y), part(a.gate);
      a.sequences.offsets = kda::indices(offsets);
      throw_unless(one_by_one.function()(a, scratch(1)));
    }
    CAPTURE(n);
    CHECK(same_bits(once, one_by_one));
  }
}

TEMPLATE_TEST_CASE("a step that wants no outputs advances its states all the same", "[step]", KDA_TEST_STEPS) {
  auto quiet = call_of_kinds<TestType>(), loud = quiet;
  loud.run();
  auto a = quiet.args();
  a.y = {}, a.output_gate = {}, a.norm_weight = {};
  throw_unless(quiet.function()(a, scratch(quiet.sequences())));
  CHECK(same_bits(quiet.states.cells, loud.states.cells));
  CHECK(same_bits(quiet.conv_states.cells, loud.conv_states.cells));
}

TEMPLATE_TEST_CASE("unchecked steps have the bits of checked ones", "[step]", KDA_TEST_STEPS) {
  auto checked = call_of_kinds<TestType>(), unchecked = checked;
  checked.run();
  throw_unless(unchecked.function()(unchecked.args(), scratch(unchecked.sequences()), kda::serial, kda::unchecked));
  CHECK(same_bits(checked, unchecked));
}

TEMPLATE_TEST_CASE("widths 2 and 3 of the convolution, with and without bias, equal the parts", "[step]",
                   specs::kda_bounded, specs::qwen) {
  for (const index width : {2, 3, 4})
    for (const bool bias : {false, true}) {
      auto fused = call_of_kinds<TestType>(), parts = fused;
      const auto changed = [&](auto& x) {
        auto a = x.args();
        a.conv_weight.shape[1] = width;
        if (!bias) a.conv_bias = {};
        return a;
      };
      throw_unless(fused.function()(changed(fused), scratch(fused.sequences())));
      step_call<TestType>::run_parts(changed(parts), scratch(parts.sequences()));
      CAPTURE(width, bias);
      CHECK(same_bits(fused, parts));
    }
}

TEMPLATE_TEST_CASE("steps of head ranges are slices of the whole step", "[step][heads]", KDA_TEST_STEPS) {
  const auto usual = call_of_kinds<TestType>();
  auto whole = usual;
  whole.run();
  const index group = usual.g.HV / usual.g.H;
  auto sliced = usual;
  for (index h = 0; h < usual.g.H; ++h) {
    auto a = sliced.args();
    a.heads = {.first = h * group, .count = group};
    throw_unless(sliced.function()(a, scratch(sliced.sequences())));
    if (h + 1 < usual.g.H) CHECK_FALSE(same_bits(sliced, whole));
  }
  CHECK(same_bits(sliced, whole));
}

TEST_CASE("a step over part of a q/k head's value heads is refused: its window would move twice", "[step][heads]") {
  auto x = call_of_kinds<specs::kda_bounded>();
  const auto before = x;
  auto a = x.args();
  for (const kda::head_range r :
       {kda::head_range{1, 1}, {0, 1}, {1, 2}, {0, 3}, {3, 0}, {-1, 2}, {0, 5}, {4, 0}, {0, -2}}) {
    a.heads = r;
    const kda::status s = x.function()(a, scratch(x.sequences()));
    CHECK(s.what == kda::error::wrong_value);
    CHECK(std::string(s.argument) == "heads");
  }
  CHECK(same_bits(x, before));
}

TEMPLATE_TEST_CASE("70,000 sequences of no to three tokens step in linear time", "[step][many]", specs::kda_bounded) {
  const index n = emulated() ? 700 : 70000;
  const geometry g{.T = 0, .H = 1, .HV = 1, .K = 2, .V = 3};
  std::vector<sequence> batch;
  std::vector<kda::mode> modes;
  for (index i = 0; i < n; ++i) {
    batch.push_back({i * 7 % 4, static_cast<std::uint64_t>(i), i, (i + 1) % n, i % 3 != 0});
    if (i % 2 == 1 || batch.back().has_state) batch.back().load = batch.back().store;
    modes.push_back(i % 5 == 0 ? prefill : decode);
  }
  const auto states = step_call<TestType>::states_of(n, 1, g);
  const auto windows = step_call<TestType>::windows_of(n, 2, g);
  step_call<TestType> all(batch, modes, states, windows, g);
  all.run();
  for (std::size_t i = 0; i < batch.size(); i += batch.size() / 97) {
    step_call<TestType> alone({batch[i]}, {modes[i]}, states, windows, g);
    alone.run();
    CHECK(same_bits(rows(all, i), alone.y));
    CHECK(same_bits(all.states.slot(batch[i].store), alone.states.slot(batch[i].store)));
  }
}

TEMPLATE_TEST_CASE("a head whose columns are split among runners keeps its bits", "[step][executors]",
                   specs::kda_bounded, specs::glm, specs::qwen, specs::kda_f16) {
  geometry g = step_call<TestType>::usual;
  g.H = 1, g.HV = 1, g.V = 128;
  if constexpr (!std::is_same_v<TestType, specs::glm>) g.V = 150;
  // in place too: what one task has moved, another may not read
  step_call<TestType> serial({{emulated() ? 5 : 37, 1, 1, 0, true},
                              fresh(3, 2, 2),
                              {2, 3, -1, 3, true},
                              continued(18, 4, 4),
                              continued(1, 5, 5)},
                             {prefill, decode, decode, prefill, decode}, step_call<TestType>::states_of(6, 1, g),
                             step_call<TestType>::windows_of(6, 2, g), g);
  const auto before = serial;
  serial.run();
  index tasks = 0;
  const auto count_tasks = [](void* self, std::ptrdiff_t count, kda::executor::task f, void* context) {
    *static_cast<index*>(self) = std::max(*static_cast<index*>(self), count);
    for (std::ptrdiff_t i = count; i-- > 0;) f(context, i);
  };
  for (const index concurrency : {2, 3, 5, 16}) {
    auto split = before;
    split.run({.self = &tasks, .run = count_tasks, .concurrency = concurrency});
    CAPTURE(concurrency);
    CHECK(same_bits(split, serial));
  }
  CHECK(tasks > 5);  // five sequences of one head
}

TEMPLATE_TEST_CASE("prefill and decode split a head's columns among runners and keep its bits", "[executors]",
                   prefill_call<specs::kda_given_key>, decode_call<specs::kda_given_value>,
                   prefill_call<specs::kda_bf16_value>, decode_call<specs::kda_bf16_key>) {
  const geometry g{.T = 0, .H = 1, .HV = 1, .K = 20, .V = 133};
  const std::vector<sequence> batch{{37, 1, 1, 0, true}, fresh(3, 2, 2)};
  TestType serial(batch, TestType::pool_of(3, 1, g), g);
  const TestType before = serial;
  serial.run();
  const auto backwards = [](void*, std::ptrdiff_t count, kda::executor::task f, void* context) {
    for (std::ptrdiff_t i = count; i-- > 0;) f(context, i);
  };
  for (const index concurrency : {1, 2, 3, 16}) {
    TestType split = before;
    split.run({.run = backwards, .concurrency = concurrency});
    CAPTURE(concurrency);
    CHECK(same_bits(split.out, serial.out));
    CHECK(same_bits(split.states.cells, serial.states.cells));
  }
}

}  // namespace testing
