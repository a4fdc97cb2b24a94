// SPDX-License-Identifier: Apache-2.0
// Saved states: a sequence that is saved, evicted and restored elsewhere goes on with the same bits, and a buffer that
// is anything but what was saved is refused before anything is written.
#include "support/batches.hpp"
#include "support/guarded.hpp"
#include "support/kda_catch.hpp"

#include <kda/saved_state.hpp>

#include <bit>
#include <set>

using namespace testing;
using kda::error;

namespace {

constexpr testing::index header_bytes = 96;

template <class Spec> constexpr bool has_conv = kda::detail::traits<Spec>::conv::present;

// What a prompt of one sequence goes through: the delta rule, and the convolution of specs that have one.
struct nothing {};
template <class Spec, core Core> struct layer {
  using t = kda::detail::traits<Spec>;
  using windows_type = std::conditional_t<has_conv<Spec>, conv_call<Spec>, nothing>;
  static constexpr testing::index slots = 5;
  static constexpr geometry g{.T = 0,
                              .H = 1,
                              .HV = 2,
                              .K = t::dims::key > 0 ? t::dims::key : 20,
                              .V = t::dims::value > 0 ? t::dims::value : 19};
  delta_rule_call<Spec, Core> rule;
  windows_type conv;

  explicit layer(testing::index tokens)
      : rule({fresh(tokens, 7, 0)}, rule.pool_of(slots, 1, g), g), conv(make_conv(tokens)) {}

  static windows_type make_conv(testing::index tokens) {
    if constexpr (has_conv<Spec>)
      return windows_type({fresh(tokens, 8, 0)}, windows_type::pool_of(slots, 2));
    else
      return {};
  }
  template <class F> void each(const F& f) {
    f(rule);
    if constexpr (has_conv<Spec>) f(conv);
  }
  /// Tokens [begin, end) of the prompt, with the state in `slot`.
  void run(testing::index begin, testing::index end, std::int64_t slot) {
    each([&](auto& call) {
      call.lists.offsets = {begin, end};
      call.lists.load = call.lists.store = {slot};
      call.lists.position = {begin};
      call.lists.has_state[0] = begin > 0;
      call.run();
    });
  }
  [[nodiscard]] kda::saved_state_args<Spec> args(std::int64_t slot) {
    kda::saved_state_args<Spec> a{
        .value_heads = g.HV, .key_dim = g.K, .value_dim = g.V, .slot = slot, .states = rule.args().states};
    if constexpr (has_conv<Spec>) {
      a.channels = conv.c.channels;
      a.width = conv.c.width;
      a.conv_states = conv.args().states;
    }
    return a;
  }
  [[nodiscard]] bool same_results(layer& other, std::int64_t slot, std::int64_t others_slot) {
    bool same =
        same_bits(rule.out, other.rule.out) && same_bits(rule.states.slot(slot), other.rule.states.slot(others_slot));
    if constexpr (has_conv<Spec>)
      same = same && same_bits(conv.out, other.conv.out) &&
             same_bits(conv.states.slot(slot), other.conv.states.slot(others_slot));
    return same;
  }
  [[nodiscard]] bool same_pools_but(const std::vector<std::int64_t>& changed, const layer& before) {
    bool same = rule.states.same_but(changed, before.rule.states);
    if constexpr (has_conv<Spec>) same = same && conv.states.same_but(changed, before.conv.states);
    return same;
  }
};
template <class Spec> using decoded = layer<Spec, core::decode>;
template <class Spec> using prefilled = layer<Spec, core::prefill>;

template <class Spec> std::vector<unsigned char> saved(const kda::saved_state_args<Spec>& a, std::int64_t position) {
  std::vector<unsigned char> buffer(size(kda::saved_state_bytes(a)), canary_bytes);
  throw_unless(kda::save_state(a, position, buffer.data(), std::ssize(buffer)));
  return buffer;
}

// One sequence's state in slot 2 of `x`, saved; refuses() puts changed buffers back into slot 1.
template <class Spec> struct saved_sequence {
  decoded<Spec> x{6};
  std::vector<unsigned char> buffer;
  decoded<Spec> before;

  saved_sequence() : buffer((x.run(0, 6, 2), saved(x.args(2), 6))), before(x) {}
  /// The argument that is named when this buffer is refused; empty if it is taken, or if anything was written.
  std::string refusal(const unsigned char* from, testing::index bytes, error expected) {
    std::int64_t position = -77;
    const kda::status s = kda::restore_state(x.args(1), position, from, bytes);
    return s || s.what != expected || position != -77 || !x.same_pools_but({}, before) ? "" : s.argument;
  }
  std::string refusal(const std::vector<unsigned char>& changed) {
    return refusal(changed.data(), std::ssize(changed), error::wrong_buffer);
  }
};

}  // namespace

#define KDA_SAVED_LAYERS                                                                                       \
  decoded<specs::kda_given_key>, prefilled<specs::kda_given_value>, decoded<specs::kda_bf16_key>,              \
      prefilled<specs::kda_bf16_value>, decoded<specs::kda_bounded>, prefilled<specs::kda_softplus>,           \
      decoded<specs::gdn_softplus>, prefilled<specs::gdn_bounded>, decoded<specs::glm>, prefilled<specs::glm>, \
      decoded<specs::qwen>, prefilled<specs::qwen>, decoded<specs::kda_f16>, prefilled<specs::kda_f16>

TEMPLATE_TEST_CASE("a sequence that is saved, evicted and restored elsewhere goes on with the same bits", "[saved]",
                   KDA_SAVED_LAYERS) {
  const testing::index tokens = emulated() ? 37 : 75;
  constexpr bool on_grid = std::is_same_v<TestType, prefilled<typename decltype(TestType::rule)::spec>>;
  constexpr bool exact_cuts = !on_grid || std::is_same_v<typename TestType::t::state::type, float>;
  TestType straight(tokens);
  straight.run(0, tokens, 0);
  random_numbers r(3);
  std::set<testing::index> cuts;
  while (std::ssize(cuts) < (on_grid ? 2 : 4)) {
    const auto cut = static_cast<testing::index>(r.uniform(1, static_cast<double>(tokens)));
    const testing::index at = on_grid ? cut / kda::chunk_tokens * kda::chunk_tokens : cut;
    if (at > 0) cuts.insert(at);
  }
  for (const testing::index cut : cuts) {
    CAPTURE(cut);
    TestType in_two_calls(tokens);
    in_two_calls.run(0, cut, 2);
    TestType x = in_two_calls;
    in_two_calls.run(cut, tokens, 2);
    if (exact_cuts) CHECK(in_two_calls.same_results(straight, 2, 0));

    const guarded<unsigned char> buffer(size(kda::saved_state_bytes(x.args(2))), 0);
    const TestType before = x;
    throw_unless(kda::save_state(x.args(2), cut, buffer.data(), static_cast<testing::index>(buffer.size())));
    CHECK(x.same_pools_but({}, before));
    x.each([](auto& call) { fill_bytes(call.states.cells, nan_bytes); });
    const TestType evicted = x;
    std::int64_t position = -1;
    throw_unless(kda::restore_state(x.args(4), position, buffer.data(), static_cast<testing::index>(buffer.size())));
    CHECK(position == cut);
    CHECK(x.same_pools_but({4}, evicted));
    x.run(position, tokens, 4);
    CHECK(x.same_results(in_two_calls, 4, 2));
  }
}

TEMPLATE_TEST_CASE("a saved state has one form, whatever the strides of the pools and wherever the buffer lies",
                   "[saved]", decoded<specs::kda_bf16_key>, decoded<specs::kda_bounded>, decoded<specs::gdn_softplus>,
                   decoded<specs::glm>, decoded<specs::qwen>, decoded<specs::kda_f16>) {
  TestType x(6);
  x.run(0, 6, 3);
  const auto from = x.args(3);
  const std::vector<unsigned char> buffer = saved(from, 6);

  // Pools without gaps, whose zeros stand for their strides.
  const auto last_half = [](const auto& v) { return std::vector(v.begin() + std::ssize(v) / 2, v.end()); };
  const auto first_half = [](const auto& v) { return std::vector(v.begin(), v.begin() + std::ssize(v) / 2); };
  std::vector<typename TestType::t::state::type> states(size(2 * x.g.HV * x.g.K * x.g.V));
  std::vector<typename TestType::t::io::qkv> windows;
  auto to = from;
  to.slot = 1;
  to.states = {.data = states.data(), .slots = 2};
  if constexpr (requires { x.conv.states; }) {
    windows.resize(size(2 * x.conv.c.channels * x.conv.c.columns));
    to.conv_states = {.data = windows.data(), .slots = 2, .columns = x.conv.c.columns};
  }
  std::int64_t position = 0;
  throw_unless(kda::restore_state(to, position, buffer.data(), std::ssize(buffer)));
  CHECK(position == 6);
  CHECK(same_bits(last_half(states), x.rule.states.slot(3)));
  CHECK(all_zeros(first_half(states)));
  if constexpr (requires { x.conv.states; }) CHECK(same_bits(last_half(windows), x.conv.states.slot(3)));
  CHECK(all_zeros(first_half(windows)));
  CHECK(saved(to, 6) == buffer);

  for (testing::index shift = 0; shift < 8; ++shift) {
    CAPTURE(shift);
    std::vector<unsigned char> wide(buffer.size() + 8 + 100, canary_bytes), want = wide;
    throw_unless(kda::save_state(from, 6, wide.data() + shift, std::ssize(wide) - shift));
    std::copy(buffer.begin(), buffer.end(), want.begin() + shift);
    CHECK(wide == want);
    CHECK(kda::restore_state(x.args(0), position, wide.data() + shift, std::ssize(wide) - shift));
    CHECK(same_bits(x.rule.states.slot(0), x.rule.states.slot(3)));
  }
}

TEST_CASE("a saved state is laid out as documented, checksum included", "[saved]") {
  if constexpr (std::endian::native == std::endian::little) {
    using spec = specs::kda_softplus;  // key-major, channel-major, float
    float states[2 * 6] = {}, windows[2 * 2 * 4] = {};
    for (int i = 0; i < 6; ++i) states[6 + i] = static_cast<float>(i);
    for (int i = 0; i < 8; ++i) windows[8 + i] = static_cast<float>(-i);
    const kda::saved_state_args<spec> a{.value_heads = 1,
                                        .key_dim = 2,
                                        .value_dim = 3,
                                        .channels = 2,
                                        .width = 4,
                                        .slot = 1,
                                        .states = {.data = states, .slots = 2},
                                        .conv_states = {.data = windows, .slots = 2, .columns = 4}};
    const std::vector<unsigned char> buffer = saved(a, 0x0102030405060708);
    CHECK(std::ssize(buffer) == header_bytes + 14 * 4);
    CHECK(std::string(buffer.begin(), buffer.begin() + 8) == "kdaState");
    const auto at = [&](std::size_t offset, int bytes) {
      std::uint64_t n = 0;
      for (int i = bytes; i-- > 0;) n = n << 8 | buffer[offset + static_cast<std::size_t>(i)];
      return n;
    };
    const std::uint64_t words[] = {at(8, 4), at(12, 4), at(16, 4), at(20, 4), at(24, 4), at(28, 4)};
    const std::uint64_t want[] = {0x01020304, 1, 4, 0, 4, 1};
    CHECK(std::equal(std::begin(words), std::end(words), want));
    const std::uint64_t longs[] = {at(32, 8), at(40, 8), at(48, 8), at(56, 8), at(64, 8), at(72, 8), at(80, 8)};
    const std::uint64_t wanted[] = {1, 2, 3, 2, 4, 0x0102030405060708, 56};
    CHECK(std::equal(std::begin(longs), std::end(longs), wanted));
    CHECK(std::memcmp(&buffer[96], states + 6, 24) == 0);
    CHECK(std::memcmp(&buffer[120], windows + 8, 32) == 0);
    CHECK(at(88, 8) == 0xa087110418b0ec64u);  // another sum is another version
  }
}

TEMPLATE_TEST_CASE("each damaged byte of a saved state is noticed", "[saved]", specs::kda_given_key,
                   specs::kda_bf16_value, specs::kda_bounded, specs::qwen) {
  saved_sequence<TestType> s;
  struct field {
    testing::index end;
    const char* name;
  };
  const field fields[] = {{8, "magic"},         {12, "byte_order"}, {16, "version"},     {20, "state_type"},
                          {24, "state_layout"}, {28, "conv_type"},  {32, "conv_layout"}, {40, "value_heads"},
                          {48, "key_dim"},      {56, "value_dim"},  {64, "channels"},    {72, "columns"},
                          {80, "checksum"},     {88, "payload"},    {96, "checksum"}};  // 72-79: the position
  const field* f = fields;
  for (testing::index i = 0; i < header_bytes; ++i) {
    while (i >= f->end) ++f;
    for (const int change :
         emulated() ? std::vector{1 << static_cast<int>(i) % 8, 255} : std::vector{1, 2, 4, 8, 16, 32, 64, 128, 255}) {
      CAPTURE(i, change);
      auto damaged = s.buffer;
      damaged[size(i)] = static_cast<unsigned char>(damaged[size(i)] ^ change);
      CHECK(s.refusal(damaged) == std::string("buffer.") + f->name);
    }
  }
  random_numbers r(5);
  for (testing::index n = 0; n < (emulated() ? 20 : 300); ++n) {
    const testing::index payload = std::ssize(s.buffer) - header_bytes;
    const testing::index i = n < 16    ? n  // the ends, and anywhere
                             : n == 16 ? payload - 1
                                       : static_cast<testing::index>(r.uniform(0, static_cast<double>(payload)));
    CAPTURE(i);
    auto damaged = s.buffer;
    damaged[size(header_bytes + i)] ^= static_cast<unsigned char>(1 << n % 8);
    CHECK(s.refusal(damaged) == "buffer.checksum");
  }
  // Changes that cancel out in weaker sums: two words exchanged, the highest bit of both changed, all zeros.
  const auto word = s.buffer.begin() + header_bytes;
  auto damaged = s.buffer;
  std::swap_ranges(damaged.begin() + header_bytes, damaged.begin() + header_bytes + 8,
                   damaged.begin() + header_bytes + 8);
  CHECK_FALSE(std::equal(word, word + 8, word + 8));
  CHECK(s.refusal(damaged) == "buffer.checksum");
  for (const testing::index distance : {8, 16, 64}) {
    damaged = s.buffer;
    damaged[header_bytes + 7] ^= 0x80;
    damaged[size(header_bytes + 7 + distance)] ^= 0x80;
    CHECK(s.refusal(damaged) == "buffer.checksum");
  }
  damaged = s.buffer;
  std::fill(damaged.begin() + header_bytes, damaged.end(), static_cast<unsigned char>(0));
  CHECK(s.refusal(damaged) == "buffer.checksum");
  CHECK(s.refusal(std::vector<unsigned char>(s.buffer.size())) == "buffer.magic");
  CHECK(s.refusal(s.buffer).empty());
}

TEMPLATE_TEST_CASE("a saved state that is cut short anywhere is refused", "[saved]", specs::kda_given_key,
                   specs::gdn_softplus) {
  saved_sequence<TestType> s;
  const testing::index whole = std::ssize(s.buffer);
  for (testing::index n = 0; n < whole; n += n < 300 || n > whole - 20 ? 1 : 97) {
    CAPTURE(n);
    // It ends at an inaccessible page: a byte read past its end would be a fault.
    const guarded<unsigned char> part(std::vector<unsigned char>(s.buffer.begin(), s.buffer.begin() + n));
    CHECK(s.refusal(part.data(), n, error::buffer_too_small) == "bytes");
  }
  for (const testing::index n : {testing::index{-1}, std::numeric_limits<testing::index>::min()})
    CHECK(s.refusal(s.buffer.data(), n, error::buffer_too_small) == "bytes");
}

TEST_CASE("a saved state of another layout, type or size is refused", "[saved]") {
  const auto refusal = [](auto& from, auto to) {
    std::int64_t position = -77;
    const kda::status s = kda::restore_state(to, position, from.buffer.data(), std::ssize(from.buffer));
    CHECK(s.what == error::wrong_buffer);
    CHECK(position == -77);
    return std::string(s.argument);
  };
  saved_sequence<specs::kda_given_key> key;
  saved_sequence<specs::kda_bf16_value> bf16_value;
  saved_sequence<specs::kda_bounded> value_time;  // with a convolution, which the pairs' left-hand sides lack
  CHECK(refusal(key, saved_sequence<specs::kda_given_value>().x.args(1)) == "buffer.state_layout");
  CHECK(refusal(key, saved_sequence<specs::kda_bf16_key>().x.args(1)) == "buffer.state_type");
  CHECK(refusal(bf16_value, saved_sequence<specs::kda_bf16_key>().x.args(1)) == "buffer.state_layout");
  CHECK(refusal(bf16_value, saved_sequence<specs::kda_given_value>().x.args(1)) == "buffer.state_type");
  CHECK(refusal(value_time, saved_sequence<specs::kda_given_value>().x.args(1)) == "buffer.conv_type");
  auto without = value_time.x.args(1);
  without.conv_states = {};
  CHECK(refusal(value_time, without) == "buffer.conv_type");
  saved_sequence<specs::kda_softplus> key_channel;
  using channel_float = kda::spec<kda::decay::none, kda::beta::given, kda::qk::as_given, kda::io<float>,
                                  specs::f32_key_major, kda::conv<kda::activation::none, kda::conv_state::time_major>>;
  using channel_bf16 =
      kda::spec<kda::decay::none, kda::beta::given, kda::qk::as_given, kda::io<kda::bf16>, specs::f32_key_major,
                kda::conv<kda::activation::none, kda::conv_state::channel_major>>;
  const auto as = [&]<class To>(std::type_identity<To>) {
    using type = typename kda::detail::traits<To>::io::qkv;
    const auto a = key_channel.x.args(1);
    static std::vector<type> windows(size(a.conv_states.slots * 5 * 277));
    return kda::saved_state_args<To>{
        .value_heads = a.value_heads,
        .key_dim = a.key_dim,
        .value_dim = a.value_dim,
        .channels = a.channels,
        .width = a.width,
        .slot = a.slot,
        .states = a.states,
        .conv_states = {.data = windows.data(), .slots = a.conv_states.slots, .columns = 5}};
  };
  CHECK(refusal(key_channel, as(std::type_identity<channel_float>())) == "buffer.conv_layout");
  CHECK(refusal(key_channel, as(std::type_identity<channel_bf16>())) == "buffer.conv_type");

  // Dimensions whose product is the same.
  const auto with = [&](auto& x, const auto& change) {
    auto a = x.x.args(1);
    change(a);
    return refusal(x, a);
  };
  const auto swapped = [](auto& a) { std::swap(a.key_dim, a.value_dim); };
  CHECK(with(key, swapped) == "buffer.key_dim");
  CHECK(with(key, [](auto& a) { a.value_heads = 1, a.value_dim *= 2; }) == "buffer.value_heads");
  CHECK(with(key, [](auto& a) { --a.value_dim; }) == "buffer.value_dim");
  CHECK(with(value_time, [](auto& a) { --a.channels; }) == "buffer.channels");
  CHECK(with(value_time, [](auto& a) { --a.conv_states.columns; }) == "buffer.columns");
}

namespace {

// Two slots of HV = 1, K = 2, V = 3 and C = 2, W = 4, with windows of T that hold all kinds of bits.
template <class T> struct small_pools {
  using spec = kda::spec<kda::decay::none, kda::beta::given, kda::qk::as_given, kda::io<T>, specs::f32_key_major,
                         kda::conv<kda::activation::none, kda::conv_state::channel_major>>;
  std::vector<float> states = std::vector<float>(12, 0.5f);
  std::vector<T> windows = std::vector<T>(12);

  small_pools() {
    for (std::size_t i = 0; i < windows.size(); ++i) windows[i].bits = static_cast<std::uint16_t>(0x7b01 * i);
  }
  [[nodiscard]] kda::saved_state_args<spec> args(std::int64_t slot) {
    return {.value_heads = 1,
            .key_dim = 2,
            .value_dim = 3,
            .channels = 2,
            .width = 4,
            .slot = slot,
            .states = {.data = states.data(), .slots = 2},
            .conv_states = {.data = windows.data(), .slots = 2}};
  }
};

}  // namespace

TEST_CASE("windows of bf16 and of f16, which have one size, are not taken for each other", "[saved]") {
  small_pools<kda::bf16> bf16;
  small_pools<kda::f16> f16;
  const auto code = [](const std::vector<unsigned char>& buffer) {
    std::uint32_t n = 0;
    std::memcpy(&n, &buffer[24], sizeof n);
    return n;
  };
  const auto of_bf16 = saved(bf16.args(0), 5), of_f16 = saved(f16.args(0), 5);
  CHECK(of_bf16.size() == of_f16.size());
  CHECK(code(of_bf16) == 2);
  CHECK(code(of_f16) == 3);
  const auto refused = [](auto& pools, const std::vector<unsigned char>& buffer) {
    const auto before = pools;
    std::int64_t position = -77;
    const kda::status s = kda::restore_state(pools.args(1), position, buffer.data(), std::ssize(buffer));
    CHECK(s.what == error::wrong_buffer);
    CHECK(std::string(s.argument == nullptr ? "" : s.argument) == "buffer.conv_type");
    CHECK(position == -77);
    CHECK(same_bits(pools.windows, before.windows));
  };
  refused(bf16, of_f16);
  refused(f16, of_bf16);
  std::int64_t position = -77;
  throw_unless(kda::restore_state(f16.args(1), position, of_f16.data(), std::ssize(of_f16)));
  CHECK(position == 5);
  CHECK(same_bits(std::vector(f16.windows.begin() + 6, f16.windows.end()),
                  std::vector(f16.windows.begin(), f16.windows.begin() + 6)));
}

namespace {

// Each mistake in the arguments, as save_state and restore_state must answer it; nothing is written.
template <class Spec> class mistakes {
 public:
  template <class F> void refused(error e, const std::string& argument, const F& change, bool no_buffer = false) {
    CAPTURE(argument, kda::message(e));
    auto a = s_.x.args(1);
    change(a);
    auto to = s_.buffer;
    for (const bool saves : {true, false}) {
      CAPTURE(saves);
      std::int64_t position = -77;
      unsigned char* const buffer = no_buffer ? nullptr : to.data();
      const kda::status answer = saves ? kda::save_state(a, 1, buffer, std::ssize(to))
                                       : kda::restore_state(a, position, buffer, std::ssize(to));
      CHECK(answer.what == e);
      CHECK(answer.argument == argument);
      CHECK(to == s_.buffer);
      CHECK(position == -77);
      CHECK(s_.x.same_pools_but({}, s_.before));
    }
  }

 private:
  saved_sequence<Spec> s_;
};

}  // namespace

TEMPLATE_TEST_CASE("mistakes in the arguments of a saved state are refused by name", "[saved]", specs::kda_given_key,
                   specs::kda_bf16_value, specs::kda_bounded, specs::gdn_softplus) {
  constexpr testing::index most = std::numeric_limits<testing::index>::max();
  mistakes<TestType> m;
  for (const testing::index n : {testing::index{0}, testing::index{-1}, -most}) {
    m.refused(error::wrong_shape, "value_heads", [&](auto& a) { a.value_heads = n; });
    m.refused(error::wrong_shape, "key_dim", [&](auto& a) { a.key_dim = n; });
    m.refused(error::wrong_shape, "value_dim", [&](auto& a) { a.value_dim = n; });
  }
  m.refused(error::wrong_shape, "key_dim", [](auto& a) { a.key_dim = 257; });
  m.refused(error::wrong_shape, "value_dim", [](auto& a) { a.value_dim = most; });
  m.refused(error::wrong_shape, "value_dim", [](auto& a) { a.value_heads = most; });
  for (const std::int64_t slot : {-1l, -most, 5l, most})
    m.refused(error::slot_out_of_range, "slot", [&](auto& a) { a.slot = slot; });
  m.refused(error::slot_out_of_range, "slot", [](auto& a) { a.states.first_slot = 2; });
  m.refused(error::slot_out_of_range, "slot", [](auto& a) { a.states.slots = 1; });
  m.refused(error::slot_out_of_range, "slot", [](auto& a) { a.states = {}; });
  m.refused(error::null_pointer, "states.data", [](auto& a) { a.states.data = nullptr; });
  m.refused(error::wrong_shape, "states.slots", [](auto& a) { a.states.slots = -1; });
  m.refused(error::wrong_value, "states.first_slot", [](auto& a) { a.states.first_slot = -1; });
  for (const testing::index stride : {testing::index{-1}, testing::index{1}, most})
    m.refused(error::wrong_stride, "states.slot_stride", [&](auto& a) { a.states.slot_stride = stride; });
  m.refused(
      error::null_pointer, "buffer", [](auto&) {}, true);
  if constexpr (has_conv<TestType>) {
    for (const testing::index n : {testing::index{0}, testing::index{-1}, most})
      m.refused(error::wrong_shape, "channels", [&](auto& a) { a.channels = n; });
    for (const testing::index n : {testing::index{1}, testing::index{5}, -most})
      m.refused(error::wrong_shape, "width", [&](auto& a) { a.width = n; });
    m.refused(error::slot_out_of_range, "slot", [](auto& a) { a.conv_states.first_slot = 2; });
    m.refused(error::slot_out_of_range, "slot", [](auto& a) { a.conv_states.slots = 1; });
    m.refused(error::null_pointer, "conv_states.data", [](auto& a) { a.conv_states.data = nullptr; });
    m.refused(error::wrong_shape, "conv_states.columns", [](auto& a) { a.conv_states.columns = 2; });
    m.refused(error::wrong_stride, "conv_states.stride", [](auto& a) { a.conv_states.stride = 4; });
    m.refused(error::wrong_stride, "conv_states.stride",
              [](auto& a) { a.conv_states.columns = most, a.conv_states.stride = 0, a.conv_states.slot_stride = 0; });
    m.refused(error::wrong_stride, "conv_states.slot_stride", [](auto& a) { a.conv_states.slot_stride = 277 * 5 - 1; });
  }
}

TEMPLATE_TEST_CASE("what a saved state is written to shares no memory with what it is read from", "[saved]",
                   specs::kda_given_key, specs::kda_bounded, specs::gdn_softplus) {
  saved_sequence<TestType> s;
  const auto refused = [&](const auto& a, void* buffer, const char* argument) {
    std::int64_t position = -77;
    for (const kda::status answer : {kda::save_state(a, 1, buffer, std::ssize(s.buffer)),
                                     kda::restore_state(a, position, buffer, std::ssize(s.buffer))}) {
      CHECK(answer.what == error::overlap);
      CHECK(answer.argument == std::string(argument));
    }
    CHECK(position == -77);
    CHECK(s.x.same_pools_but({}, s.before));
  };
  auto a = s.x.args(3);
  auto* const cells = reinterpret_cast<char*>(a.states.data);
  const auto element = static_cast<testing::index>(sizeof *a.states.data), whole = std::ssize(s.buffer);
  const testing::index slot = 3 * a.states.slot_stride * element,
                       state = a.value_heads * a.key_dim * a.value_dim * element;
  refused(a, cells + slot, "buffer");
  refused(a, cells + slot - whole + 1, "buffer");
  refused(a, cells + slot + state - 1, "buffer");
  if constexpr (has_conv<TestType>) {
    refused(a, reinterpret_cast<char*>(a.conv_states.data + 3 * a.conv_states.slot_stride) - whole + 1, "buffer");
    a.slot = 0;
    a.conv_states.data = reinterpret_cast<decltype(a.conv_states.data)>(cells + state - element);
    a.conv_states.slots = 1;
    refused(a, s.buffer.data(), "conv_states.data");
  }
}

TEST_CASE("a state is saved into enough bytes, of a position that there is", "[saved]") {
  saved_sequence<specs::kda_bounded> s;
  const auto a = s.x.args(2);
  auto to = std::vector<unsigned char>(s.buffer.size(), canary_bytes);
  const auto untouched = to;
  for (const testing::index n : {std::ssize(to) - 1, testing::index{96}, testing::index{0}, testing::index{-5}}) {
    const kda::status answer = kda::save_state(a, 1, to.data(), n);
    CHECK(answer.what == error::buffer_too_small);
    CHECK(answer.argument == std::string("bytes"));
  }
  const kda::status answer = kda::save_state(a, -1, to.data(), std::ssize(to));
  CHECK(answer.what == error::wrong_value);
  CHECK(answer.argument == std::string("position"));
  CHECK(to == untouched);
  CHECK(kda::save_state(a, std::numeric_limits<std::int64_t>::max(), to.data(), std::ssize(to)));
  CHECK(kda::saved_state_bytes(a) == std::ssize(to));
}
