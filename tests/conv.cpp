// SPDX-License-Identifier: Apache-2.0
// The short convolution: against the reference for every width, channel count and short prompt; its state, in both
// layouts, through every split of a prompt, between slots, longer than needed, and beside other channels.
#include "support/kda_catch.hpp"
#include "support/numbers.hpp"

namespace testing {
namespace {

#define KDA_CONVOLUTIONS                                                                                     \
  specs::kda_bounded, specs::kda_softplus, specs::gdn_bounded, specs::gdn_softplus, specs::glm, specs::qwen, \
      specs::kda_f16

template <class Spec> using element = typename kda::detail::traits<Spec>::io::qkv;
template <class Spec> using elements = std::vector<element<Spec>>;
template <class Spec>
constexpr bool channel_major = kda::detail::traits<Spec>::conv::order == kda::conv_state::channel_major;

// One sequence.
template <class Spec> struct prompt {
  index T, C, W, columns;
  elements<Spec> x, past;           // [T, C]; [columns, C], the inputs before x, oldest first
  std::vector<float> weight, bias;  // [C, W]; [C] or empty
};

template <class Spec>
prompt<Spec> random_prompt(index T, index C, index W, bool with_bias, index columns, std::uint64_t seed) {
  random_numbers r(seed);
  return {T,
          C,
          W,
          columns,
          rounded_to<element<Spec>>(r.normals(T * C)),
          rounded_to<element<Spec>>(r.normals(columns * C)),
          r.normals(C * W),
          with_bias ? r.normals(C) : std::vector<float>{}};
}

template <class Spec> std::vector<double> exact_outputs(const prompt<Spec>& p) {
  std::vector<double> state = widened(elements<Spec>(p.past.end() - (p.W - 1) * p.C, p.past.end()));
  return kda::reference::short_conv(widened(p.x), widened(p.weight), widened(p.bias), state, p.T, p.C, p.W,
                                    kda::detail::traits<Spec>::conv::act == kda::activation::silu
                                        ? kda::reference::activation_kind::silu
                                        : kda::reference::activation_kind::none);
}

// The last columns of [past | x].
template <class Spec> elements<Spec> window_after(const prompt<Spec>& p) {
  elements<Spec> all = p.past;
  all.insert(all.end(), p.x.begin(), p.x.end());
  return {all.end() - p.columns * p.C, all.end()};
}

// A pool with gaps between rows and between slots; it starts as NaN everywhere, gaps included.
template <class Spec> struct conv_states {
  index slots, columns, channels;
  index stride = (channel_major<Spec> ? columns : channels) + 3;
  index slot_stride = (channel_major<Spec> ? channels : columns) * stride + 5;
  elements<Spec> data = elements<Spec>(size(slots * slot_stride), kda::round_to<element<Spec>>(not_a_number));

  element<Spec>& at(index slot, index column, index channel) {
    return data[size(slot * slot_stride +
                     (channel_major<Spec> ? channel * stride + column : column * stride + channel))];
  }
  void put(index slot, const elements<Spec>& window) {
    for (index i = 0; i < std::ssize(window); ++i) at(slot, i / channels, i % channels) = window[size(i)];
  }
  elements<Spec> window(index slot) {
    elements<Spec> w;
    for (index i = 0; i < columns * channels; ++i) w.push_back(at(slot, i / channels, i % channels));
    return w;
  }
  // Of the channels from `first` on.
  kda::conv_pool<element<Spec>> view(index first = 0) {
    return {.data = data.data() + first * (channel_major<Spec> ? stride : 1),
            .slots = slots,
            .slot_stride = slot_stride,
            .columns = columns,
            .stride = stride};
  }
};

struct slots {
  std::int64_t load, store;
  bool has_initial_state = true;
};

// Tokens [first, first + tokens) of the prompt.
template <class Spec>
kda::status call(const prompt<Spec>& p, index first, index tokens, elements<Spec>& y, conv_states<Spec>& states,
                 const slots& s) {
  const std::int64_t offsets[] = {0, tokens};
  static scratch w(1);
  return kernels_of<Spec>().conv({.x = kda::packed(p.x.data() + first * p.C, tokens, p.C),
                                  .weight = kda::packed(p.weight.data(), p.C, p.W),
                                  .bias = kda::packed(p.bias.data(), std::ssize(p.bias)),
                                  .y = kda::packed(y.data() + first * p.C, tokens, p.C),
                                  .sequences = {.offsets = kda::indices(offsets, 2),
                                                .load_slots = kda::indices(&s.load, 1),
                                                .store_slots = kda::indices(&s.store, 1),
                                                .has_initial_state = kda::packed(&s.has_initial_state, 1)},
                                  .states = states.view()},
                                 w, kda::serial);
}

template <class Spec> struct convolved { elements<Spec> y, window; };
// The prompt in calls of these lengths, the state in place in one slot.
template <class Spec>
convolved<Spec> convolve(const prompt<Spec>& p, const std::vector<index>& lengths, bool has_initial_state = true) {
  conv_states<Spec> states{1, p.columns, p.C};
  if (has_initial_state) states.put(0, p.past);
  elements<Spec> y(p.x.size());
  index first = 0;
  for (const index n : lengths) {
    const kda::status s = call(p, first, n, y, states, {0, 0, has_initial_state});
    if (!s) throw std::runtime_error(std::string(s.argument) + " " + kda::message(s.what));
    has_initial_state = true;
    first += n;
  }
  return {y, states.window(0)};
}

constexpr double bound = 5e-7;

}  // namespace

TEMPLATE_TEST_CASE("the convolution follows the reference for every width, channel count and short prompt", "[conv]",
                   KDA_CONVOLUTIONS) {
  index wrong = 0, wrong_windows = 0;
  for (index C = 1; C <= 70; C += emulated() ? 23 : 1)
    for (index T = 0; T <= 9; ++T)
      for (const index W : {2, 3, 4})
        for (const bool with_bias : {false, true}) {
          const auto p = random_prompt<TestType>(T, C, W, with_bias, W - 1, 1);
          const auto got = convolve(p, {T});
          wrong += disagreements(got.y, exact_outputs(p), bound);
          wrong_windows += same_bits(got.window, window_after(p)) ? 0 : 1;
        }
  CHECK(wrong == 0);
  CHECK(wrong_windows == 0);
}

TEMPLATE_TEST_CASE("channels beyond a task's block and long prompts are convolved alike", "[conv]", KDA_CONVOLUTIONS) {
  for (const index C : {255, 256, 257, 531}) {
    const auto p = random_prompt<TestType>(emulated() ? 5 : 50, C, 4, true, 3, 2);
    const auto got = convolve(p, {p.T});
    CAPTURE(C);
    CHECK(disagreements(got.y, exact_outputs(p), bound) == 0);
    CHECK(same_bits(got.window, window_after(p)));
  }
}

TEMPLATE_TEST_CASE("a prompt cut anywhere gives the bits of one call", "[conv]", KDA_CONVOLUTIONS) {
  for (const index W : {2, 3, 4})
    for (const index columns : {W - 1, index{6}})
      for (const index C : {1, 19})
        for (index T = 0; T <= 9; ++T) {
          const auto p = random_prompt<TestType>(T, C, W, true, columns, 3);
          const auto whole = convolve(p, {T});
          for (index cut = 0; cut <= T; ++cut) {
            const auto parts = convolve(p, {cut, T - cut});
            CAPTURE(W, columns, C, T, cut);
            CHECK(same_bits(parts.y, whole.y));
            CHECK(same_bits(parts.window, whole.window));
          }
          const auto tokens = convolve(p, std::vector<index>(size(T), 1));
          CHECK(same_bits(tokens.y, whole.y));
          CHECK(same_bits(tokens.window, whole.window));
        }
}

TEMPLATE_TEST_CASE("only the store slot changes, whichever slot is loaded", "[conv]", KDA_CONVOLUTIONS) {
  for (const index W : {2, 3, 4})
    for (const index columns : {W - 1, index{6}})
      for (index T = 0; T <= 8; ++T)
        for (const slots& s : {slots{1, 1}, slots{1, 2}, slots{2, 0}}) {
          const auto p = random_prompt<TestType>(T, 19, W, false, columns, 4);
          conv_states<TestType> states{3, columns, p.C};
          states.put(s.load, p.past);
          conv_states<TestType> expected = states;
          expected.put(s.store, window_after(p));
          elements<TestType> y(p.x.size());
          REQUIRE(call(p, 0, T, y, states, s));
          CAPTURE(W, columns, T, s.load, s.store);
          CHECK(same_bits(states.data, expected.data));
          CHECK(same_bits(y, convolve(p, {T}).y));
        }
}

TEMPLATE_TEST_CASE("of a state longer than needed the last columns are read", "[conv]", KDA_CONVOLUTIONS) {
  for (const index W : {2, 3, 4}) {
    auto p = random_prompt<TestType>(7, 19, W, false, 6, 5);
    std::fill(p.past.begin(), p.past.end() - (W - 1) * p.C, kda::round_to<element<TestType>>(not_a_number));
    conv_states<TestType> states{.slots = 3, .columns = 6, .channels = p.C, .slot_stride = emulated() ? 4096 : 589824};
    states.put(1, p.past);
    conv_states<TestType> expected = states;
    expected.put(1, window_after(p));
    elements<TestType> y(p.x.size());
    REQUIRE(call(p, 0, p.T, y, states, {1, 1}));
    CHECK(disagreements(y, exact_outputs(p), bound) == 0);
    CHECK(same_bits(states.data, expected.data));
  }
}

TEMPLATE_TEST_CASE("a fresh sequence starts from zeros, whatever its slots hold", "[conv]", KDA_CONVOLUTIONS) {
  for (const index columns : {3, 6})
    for (index T = 0; T <= 8; ++T) {
      auto zeros = random_prompt<TestType>(T, 19, 4, true, columns, 6);
      zeros.past.assign(zeros.past.size(), {});
      const auto expected = convolve(zeros, {T});
      for (const std::int64_t load : {0, 1, -1, 99}) {
        conv_states<TestType> states{2, columns, 19};  // all NaN
        elements<TestType> y(zeros.x.size());
        REQUIRE(call(zeros, 0, T, y, states, {load, 1, false}));
        CAPTURE(columns, T, load);
        CHECK(same_bits(y, expected.y));
        CHECK(same_bits(states.window(1), expected.window));
      }
    }
}

TEMPLATE_TEST_CASE("q, k and v side by side give the bits of a call each on their columns of one state", "[conv]",
                   KDA_CONVOLUTIONS) {
  const index parts[] = {11, 11, 23}, C = 45;
  for (const index T : {1, 2, 3, 8}) {
    const auto p = random_prompt<TestType>(T, C, 4, true, 3, 7);
    conv_states<TestType> together{2, 3, C};
    together.put(0, p.past);
    conv_states<TestType> apart = together;
    elements<TestType> y(p.x.size()), y_apart(p.x.size());
    REQUIRE(call(p, 0, T, y, together, {0, 1}));
    index first = 0;
    for (const index n : parts) {
      const std::int64_t offsets[] = {0, T}, load = 0, store = 1;
      const bool has = true;
      scratch w(1);
      REQUIRE(kernels_of<TestType>().conv({.x = kda::packed(p.x.data() + first, T, n).token_stride(C),
                                           .weight = kda::packed(p.weight.data() + first * p.W, n, p.W),
                                           .bias = kda::packed(p.bias.data() + first, n),
                                           .y = kda::packed(y_apart.data() + first, T, n).token_stride(C),
                                           .sequences = {.offsets = kda::indices(offsets, 2),
                                                         .load_slots = kda::indices(&load, 1),
                                                         .store_slots = kda::indices(&store, 1),
                                                         .has_initial_state = kda::packed(&has, 1)},
                                           .states = apart.view(first)},
                                          w, kda::serial));
      first += n;
    }
    CAPTURE(T);
    CHECK(same_bits(y, y_apart));
    CHECK(same_bits(together.data, apart.data));
  }
}

TEMPLATE_TEST_CASE("weights may be stored tap by tap", "[conv]", KDA_CONVOLUTIONS) {
  const auto p = random_prompt<TestType>(6, 19, 3, true, 2, 8);
  std::vector<float> taps(p.weight.size());
  for (index c = 0; c < p.C; ++c)
    for (index j = 0; j < p.W; ++j) taps[size(j * p.C + c)] = p.weight[size(c * p.W + j)];
  conv_states<TestType> states{1, 2, p.C};
  states.put(0, p.past);
  elements<TestType> y(p.x.size());
  const std::int64_t offsets[] = {0, p.T}, slot = 0;
  const bool has = true;
  scratch w(1);
  REQUIRE(kernels_of<TestType>().conv({.x = kda::packed(p.x.data(), p.T, p.C),
                                       .weight = {.data = taps.data(), .shape = {p.C, p.W}, .stride = {1, p.C}},
                                       .bias = kda::packed(p.bias.data(), p.C),
                                       .y = kda::packed(y.data(), p.T, p.C),
                                       .sequences = {.offsets = kda::indices(offsets, 2),
                                                     .load_slots = kda::indices(&slot, 1),
                                                     .store_slots = kda::indices(&slot, 1),
                                                     .has_initial_state = kda::packed(&has, 1)},
                                       .states = states.view()},
                                      w, kda::serial));
  CHECK(same_bits(y, convolve(p, {p.T}).y));
}

TEMPLATE_TEST_CASE("sequences of a batch are convolved as if each were alone", "[conv]", KDA_CONVOLUTIONS) {
  // fresh prompts of one token and of none beside continued ones; the flag decides, not the length
  struct sequence {
    index T;
    std::int64_t load, store;
    bool has_initial_state;
  };
  const std::vector<sequence> batch = {{1, 0, 0, false},  {1, 1, 1, true}, {5, 9, 2, false},
                                       {2, -1, -1, true}, {0, 3, 4, true}, {3, 5, 5, true},
                                       {0, 6, 6, false},  {1, 3, 7, true}, {3, 8, -7, false}};
  const index C = 19, N = std::ssize(batch);
  std::vector<std::int64_t> offsets{0}, load, store;
  bool has[16];
  for (const sequence& s : batch) {
    has[load.size()] = s.has_initial_state;
    offsets.push_back(offsets.back() + s.T);
    load.push_back(s.load);
    store.push_back(s.store);
  }
  const index used = offsets.back(), T = used + 4;  // behind the last sequence lie tokens of nobody
  auto p = random_prompt<TestType>(T, C, 4, true, 3, 9);
  conv_states<TestType> states{8, 3, C};
  random_numbers r(10);
  for (index slot = 0; slot < 8; ++slot) states.put(slot, rounded_to<element<TestType>>(r.normals(3 * C)));
  conv_states<TestType> expected_states = states;
  const auto canary = kda::round_to<element<TestType>>(7);
  elements<TestType> y(p.x.size(), canary), expected = y;
  for (index n = 0; n < N; ++n) {
    const sequence& s = batch[size(n)];
    const index first = offsets[size(n)] * C, last = offsets[size(n + 1)] * C;
    if (s.store < 0) {
      std::fill(expected.begin() + first, expected.begin() + last, element<TestType>{});
      continue;
    }
    prompt<TestType> alone = p;
    alone.T = s.T;
    alone.x.assign(p.x.begin() + first, p.x.begin() + last);
    if (s.has_initial_state) alone.past = states.window(s.load);
    const auto got = convolve(alone, {s.T}, s.has_initial_state);
    std::copy(got.y.begin(), got.y.end(), expected.begin() + first);
    expected_states.put(s.store, got.window);
  }
  scratch w(N);
  REQUIRE(kernels_of<TestType>().conv({.x = kda::packed(p.x.data(), T, C),
                                       .weight = kda::packed(p.weight.data(), C, p.W),
                                       .bias = kda::packed(p.bias.data(), C),
                                       .y = kda::packed(y.data(), T, C),
                                       .sequences = {.offsets = kda::indices(offsets.data(), N + 1),
                                                     .load_slots = kda::indices(load.data(), N),
                                                     .store_slots = kda::indices(store.data(), N),
                                                     .has_initial_state = kda::packed(has, N)},
                                       .states = states.view()},
                                      w, kda::serial));
  CHECK(same_bits(y, expected));
  CHECK(same_bits(states.data, expected_states.data));
}

TEMPLATE_TEST_CASE("a width other than 2 to 4, or a state too short for it, is refused and nothing written", "[conv]",
                   KDA_CONVOLUTIONS) {
  const auto refused = [](const prompt<TestType>& p, const std::string& argument) {
    conv_states<TestType> states{1, p.columns, p.C};
    elements<TestType> y(p.x.size(), kda::round_to<element<TestType>>(7));
    const conv_states<TestType> states_before = states;
    const elements<TestType> y_before = y;
    const kda::status s = call(p, 0, p.T, y, states, {0, 0});
    CAPTURE(p.W, p.columns);
    CHECK(s.what == kda::error::wrong_shape);
    CHECK(s.argument == argument);
    CHECK(same_bits(y, y_before));
    CHECK(same_bits(states.data, states_before.data));
  };
  for (const index W : {0, 1, 5, 8}) refused(random_prompt<TestType>(3, 19, W, false, 8, 11), "weight");
  for (const index W : {3, 4}) refused(random_prompt<TestType>(3, 19, W, false, W - 2, 11), "states.columns");
}

}  // namespace testing
