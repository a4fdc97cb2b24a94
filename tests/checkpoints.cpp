// SPDX-License-Identifier: Apache-2.0
// Checkpoints, states that a call keeps on its way: each is what a prompt that ends there leaves, bit for bit, counted
// from the start of the whole prompt; promised slots are all written, other slots are not, and taking one changes no
// other bit.
#include "support/kda_catch.hpp"
#include "support/step.hpp"

using namespace testing;

namespace {

// The checkpoints that `interval` asks of a sequence, in slots from `slot` on.
std::vector<kept> every(std::int64_t interval, const sequence& s, std::int64_t& slot) {
  std::vector<kept> states;
  for (std::int64_t p = s.position + 1; p <= s.position + s.tokens; ++p)
    if (p % interval == 0) states.push_back({p, slot++});
  return states;
}

// A pool whose slots from `first` on are NaN.
template <class Call>
typename Call::pool nan_from(std::int64_t first, testing::index slots,
                             const typename Call::shape& shape = Call::usual) {
  auto states = Call::pool_of(slots, 3, shape);
  auto nan = states.slot(0);
  fill_bytes(nan, nan_bytes);
  for (std::int64_t n = first; n < slots; ++n) states.set_slot(n, nan);
  return states;
}

// Runs the batch with the checkpoints that are set in `x`, and holds them against calls that end there, and everything
// else against a call without.
template <class Call>
void check_checkpoints(Call x, const std::vector<sequence>& batch, const std::vector<std::vector<kept>>& states,
                       const typename Call::shape& shape = Call::usual) {
  const auto before = x.states;
  Call plain(batch, before, shape);
  plain.first_slot = x.first_slot;
  plain.run();
  x.run();
  CHECK(same_bits(x.out, plain.out));
  std::vector<std::int64_t> written;
  for (std::size_t n = 0; n < batch.size(); ++n) {
    if (batch[n].store < x.first_slot) continue;
    written.push_back(batch[n].store);
    CHECK(same_bits(x.states.slot(batch[n].store), plain.states.slot(batch[n].store)));
    for (const kept& k : states[n]) {
      if (k.slot < x.first_slot) continue;
      written.push_back(k.slot);
      CAPTURE(n, k.position, k.slot);
      sequence s = batch[n];
      s.store = k.slot;
      const Call prefix = alone_from<Call>(s, 0, k.position - s.position, before, shape);
      CHECK(same_bits(x.states.slot(k.slot), prefix.states.slot(k.slot)));
    }
  }
  CHECK(x.states.same_but(written, before));
}

}  // namespace

TEMPLATE_TEST_CASE("a checkpoint every n tokens is the state of a prompt that ends there, counted from its start",
                   "[checkpoints]", KDA_TEST_CALLS) {
  const std::vector<std::vector<std::int64_t>> positions{{0, 1, 63}, {64, 331, 15}, {16, 0, 17}};
  for (const std::int64_t interval : {16, 24, 7})
    for (const auto& at : positions) {
      if (emulated() && (interval == 24 || at[0] == 16)) continue;
      const testing::index less = emulated() ? 35 : 0;
      std::vector<sequence> batch{
          continued(50 - less, 1, 0), fresh(70 - less, 2, 1), {90 - less, 3, 2, 3, true}, continued(5, 4, 4)};
      std::vector<std::vector<kept>> states;
      std::int64_t slot = 5;
      for (std::size_t n = 0; n < batch.size(); ++n) {
        batch[n].position = at[n % 3];
        states.push_back(every(interval, batch[n], slot));
      }
      CAPTURE(interval, at);
      TestType x(batch, nan_from<TestType>(5, slot + 2));
      x.lists.keep(states);
      TestType listed = x;
      x.lists.interval = interval;
      check_checkpoints(x, batch, states);
      listed.run();  // the same by their positions
      x.run();
      CHECK(same_bits(listed.states.slot(slot - 1), x.states.slot(slot - 1)));
    }
}

TEMPLATE_TEST_CASE("long prompts of a batch keep the states of their own tokens", "[checkpoints]",
                   decode_call<specs::kda_bf16_value>, prefill_call<specs::kda_bounded>,
                   prefill_call<specs::gdn_softplus>, conv_call<specs::kda_bounded>, conv_call<specs::qwen>) {
  using sizes = std::vector<testing::index>;
  int kind = 0;
  for (const sizes& tokens : emulated() ? std::vector<sizes>{{100, 130, 64}}
                                        : std::vector<sizes>{{500, 700, 900}, {256, 300, 400}, {858, 839, 826}})
    for (const std::int64_t interval : {64, 128}) {
      const std::int64_t positions[] = {0, 1, 63, 64, 331};
      std::vector<sequence> batch;
      std::vector<std::vector<kept>> states;
      std::int64_t slot = 3;
      for (std::int64_t n = 0; n < 3; ++n, ++kind) {
        batch.push_back(n == 1 ? fresh(tokens[1], 12, 1) : continued(tokens[size(n)], 11, n));
        batch.back().position = positions[kind % 5];
        states.push_back(every(interval, batch.back(), slot));
      }
      CAPTURE(tokens, interval);
      TestType x(batch, nan_from<TestType>(3, slot + 1));
      x.lists.keep(states);
      x.lists.interval = interval;
      check_checkpoints(x, batch, states);
    }
}

TEMPLATE_TEST_CASE("a checkpoint after any token leaves the bits of all tokens after it as they are", "[checkpoints]",
                   KDA_TEST_CALLS) {
  const testing::index tokens = 35;
  for (const std::int64_t position : {0, 9})
    for (testing::index p = 1; p <= tokens; p += emulated() ? 8 : 1) {
      std::vector<sequence> batch{{tokens, 21, 0, 0, true, position}, {4, 22, 1, 1, false}};
      TestType x(batch, nan_from<TestType>(2, 4));
      const std::vector<std::vector<kept>> states{{{position + p, 2}}, {}};
      x.lists.keep(states);
      CAPTURE(position, p);
      check_checkpoints(x, batch, states);
    }
}

TEMPLATE_TEST_CASE("checkpoints may lie beside each other, be left out one by one, and go where the state came from",
                   "[checkpoints]", KDA_TEST_CALLS) {
  const std::vector<sequence> batch{
      {20, 31, 2, 1, true, 3}, continued(18, 32, 3), fresh(3, 33, 4), {5, 34, 5, 6, true}};
  const std::vector<std::vector<kept>> states{
      {{4, 7}, {5, 2}, {6, -1}, {7, 8}, {19, 0}, {20, 9}, {23, 10}},  // the third is skipped; 2 was loaded
      {{1, 11}, {16, 12}, {17, 13}, {18, 14}},                        // the last is what is stored
      {{2, 15}},
      {{1, 5}}};
  for (const std::int64_t first_slot : {0, 1}) {  // 1: slot 0 is skipped too
    CAPTURE(first_slot);
    TestType x(batch, nan_from<TestType>(7, 17));
    x.first_slot = first_slot;
    x.lists.keep(states);
    check_checkpoints(x, batch, states);
  }
}

TEMPLATE_TEST_CASE("checkpoints hold all blocks of columns of a wide state", "[checkpoints]",
                   decode_call<specs::kda_given_key>, prefill_call<specs::kda_given_key>,
                   decode_call<specs::kda_given_value>, prefill_call<specs::kda_given_value>,
                   decode_call<specs::kda_bf16_key>, prefill_call<specs::kda_bf16_key>,
                   decode_call<specs::kda_bf16_value>, prefill_call<specs::kda_bf16_value>) {
  const geometry g{.T = 0, .H = 1, .HV = 2, .K = 9, .V = 275};
  const std::vector<sequence> batch{{21, 41, 0, 0, true, 5}, fresh(17, 42, 1)};
  const std::vector<std::vector<kept>> states{{{7, 2}, {16, 3}, {20, 4}}, {{16, 5}}};
  TestType x(batch, nan_from<TestType>(2, 7, g), g);
  x.lists.keep(states);
  check_checkpoints(x, batch, states, g);
}

TEMPLATE_TEST_CASE("a sequence goes on from a checkpoint as if it had never stopped", "[checkpoints]", KDA_TEST_CALLS) {
  // Decode and convolution from any token, prefill from the grid; but a bf16 state is rounded where prefill stops.
  using state = typename decltype(TestType::pool::cells)::value_type;
  constexpr bool chunked = std::is_same_v<TestType, prefill_call<typename TestType::spec>>,
                 rounded = chunked && std::is_same_v<state, kda::bf16>;
  const testing::index tokens = 40;
  const sequence s = {tokens, 51, 0, 0, true, 6};
  for (const std::int64_t position : {10, 16, 32, 42}) {
    if (chunked && position % kda::chunk_tokens != 0) continue;
    TestType x({s}, nan_from<TestType>(1, 3));
    x.lists.keep({{{position, 1}}});
    x.run();
    sequence rest = s;
    rest.load = 1, rest.store = 2;
    const testing::index first = position - s.position;
    const TestType resumed = alone_from<TestType>(rest, first, tokens - first, x.states);
    const std::vector out(x.out.begin() + first * x.row, x.out.end());
    CAPTURE(position);
    CHECK((rounded ? relative_error(resumed.rows(0), widened(out)) < 0.01 : same_bits(resumed.rows(0), out)));
    CHECK((rounded || same_bits(resumed.states.slot(2), x.states.slot(0))));
  }
}

TEMPLATE_TEST_CASE("padding and empty sequences have no checkpoints", "[checkpoints]", KDA_TEST_CALLS) {
  const std::vector<sequence> batch{
      continued(20, 61, -1), continued(0, 62, 0), {17, 63, -1, 1, true}, {18, 64, 2, 2, true, 30}, fresh(0, 65, 3)};
  TestType x(batch, nan_from<TestType>(4, 9));
  // Padding has its entries, which are not written: two for itself, one for the sequence whose load slot is padding.
  x.lists.keep({{{5, 4}, {20, 5}}, {}, {{16, 6}}, {{32, 7}}, {}});
  const auto before = x.states;
  x.run();
  CHECK(x.states.same_but({0, 2, 3, 7}, before));
  CHECK(same_bits(x.states.slot(0), before.slot(0)));
  CHECK(all_zeros(x.states.slot(3)));
  sequence s = batch[3];
  s.store = 7;
  CHECK(same_bits(x.states.slot(7), alone_from<TestType>(s, 0, 2, before).states.slot(7)));
}

TEMPLATE_TEST_CASE("a checkpoint may be taken where nothing else is wanted", "[checkpoints]", KDA_TEST_CALLS) {
  // outputs left out, as for a prompt whose tokens are known
  const std::vector<sequence> batch{continued(37, 71, 0), fresh(20, 72, 1)};
  TestType x(batch, nan_from<TestType>(2, 5)), y = x;
  x.lists.keep({{{3, 2}, {32, 3}}, {{16, 4}}});
  x.run();
  y.lists = x.lists;
  auto args = y.args();
  output_of(args) = {};
  REQUIRE(TestType::function()(args, scratch(2, 1, 3), kda::serial));
  CHECK(same_bits(y.states.cells, x.states.cells));
}

TEMPLATE_TEST_CASE("checkpoints that no token reaches, or in slots that are taken, are refused", "[checkpoints]",
                   KDA_TEST_CALLS) {
  const std::vector<sequence> batch{{20, 81, 0, 1, true, 30}, continued(4, 82, 2), continued(0, 83, 3)};
  const auto before = TestType::pool_of(8, 8);
  const auto refused = [&](const std::vector<std::vector<kept>>& states, kda::error what, const char* argument,
                           std::int64_t interval = 0) {
    TestType x(batch, before);
    x.lists.keep(states);
    x.lists.interval = interval;
    const auto untouched = x.out;
    const kda::status s = x.try_run();
    CAPTURE(s.argument, kda::message(s.what));
    CHECK(s.what == what);
    CHECK(std::string(s.argument) == argument);
    CHECK(same_bits(x.out, untouched));
    CHECK(x.states.same_but({}, before));
  };
  constexpr std::int64_t far = std::int64_t{1} << 62;
  for (const std::int64_t position : {std::int64_t{30}, std::int64_t{29}, std::int64_t{0}, std::int64_t{51}, far, -far,
                                      std::numeric_limits<std::int64_t>::min()})
    refused({{{position, 4}}, {}, {}}, kda::error::wrong_value, "sequences.checkpoints.positions");
  refused({{{31, 4}, {31, 5}}, {}, {}}, kda::error::wrong_value, "sequences.checkpoints.positions");
  refused({{{40, 4}, {31, 5}}, {}, {}}, kda::error::wrong_value, "sequences.checkpoints.positions");
  refused({{}, {{5, 4}}, {}}, kda::error::wrong_value, "sequences.checkpoints.positions");
  refused({{}, {}, {{1, 4}}}, kda::error::wrong_value, "sequences.checkpoints.positions");
  const char* const begin = "sequences.checkpoints.begin";
  refused({{{32, 4}}, {}, {}}, kda::error::wrong_shape, begin, 16);  // there are two: 32 and 48
  refused({{{32, 4}, {48, 5}, {50, 6}}, {}, {}}, kda::error::wrong_shape, begin, 16);
  refused({{{32, 4}, {48, 5}}, {{4, 6}}, {}}, kda::error::wrong_shape, begin, 16);
  const char* const slots = "sequences.checkpoints.slots";
  refused({{{31, 4}, {32, 4}}, {}, {}}, kda::error::slot_conflict, slots);  // twice in a sequence
  refused({{{31, 4}}, {{1, 4}}, {}}, kda::error::slot_conflict, slots);     // and in two
  refused({{}, {{1, 1}}, {}}, kda::error::slot_conflict, slots);            // where another stores
  refused({{}, {{4, 3}}, {}}, kda::error::slot_conflict, "sequences.store_slots");
  refused({{{31, 1}}, {}, {}}, kda::error::slot_conflict, "sequences.store_slots");  // where it stores itself
  refused({{}, {{1, 0}}, {}}, kda::error::slot_conflict, "sequences.load_slots");    // what another loads
  refused({{{31, 8}}, {}, {}}, kda::error::slot_out_of_range, slots);
  refused({{{31, far}}, {}, {}}, kda::error::slot_out_of_range, slots);
  TestType frozen(batch, before);
  frozen.lists.keep({{{31, 4}}, {}, {}});
  frozen.lists.freeze({true, false, false});
  CHECK(std::string(frozen.try_run().argument) == begin);
}

TEMPLATE_TEST_CASE("a step keeps both states of a checkpoint, and its other bits", "[checkpoints]", KDA_TEST_STEPS) {
  using call = step_call<TestType>;
  const std::vector<sequence> batch{
      {37, 91, 0, 1, true, 5}, fresh(20, 92, 2), continued(9, 93, 3), continued(3, 94, -1)};
  const std::vector<std::vector<kept>> states{
      {{7, 4}, {16, 0}, {21, 5}, {42, 6}}, {{2, 7}, {16, 8}}, {{9, 9}}, {{1, 10}}};
  for (const kda::mode of_second : {kda::mode::prefill, kda::mode::decode}) {
    const std::vector<kda::mode> modes{kda::mode::prefill, of_second, kda::mode::decode, kda::mode::decode};
    call x(batch, modes, call::states_of(11, 14), call::windows_of(11, 15)), plain = x;
    const call before = x;
    plain.run();
    x.lists.keep(states);
    x.run();
    CHECK(same_bits(x.y, plain.y));
    for (std::size_t n = 0; n < 3; ++n) {
      CHECK(same_bits(x.states.slot(batch[n].store), plain.states.slot(batch[n].store)));
      CHECK(same_bits(x.conv_states.slot(batch[n].store), plain.conv_states.slot(batch[n].store)));
      for (const kept& k : states[n]) {
        sequence s = batch[n];
        s.store = k.slot;
        call prefix({s}, {modes[n]}, before.states, before.conv_states);
        prefix.lists.offsets = {0, k.position - s.position};
        prefix.run();
        CAPTURE(n, k.position, of_second == kda::mode::decode);
        CHECK(same_bits(x.states.slot(k.slot), prefix.states.slot(k.slot)));
        CHECK(same_bits(x.conv_states.slot(k.slot), prefix.conv_states.slot(k.slot)));
      }
    }
    const std::vector<std::int64_t> written{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
    CHECK(x.states.same_but(written, before.states));
    CHECK(x.conv_states.same_but(written, before.conv_states));
  }
}
