// SPDX-License-Identifier: Apache-2.0
// Speculative decoding, both ways. A call that keeps the state after each token, so that the next one goes on from
// whichever was accepted; and a frozen call that keeps nothing, with a later one for the accepted tokens. Whatever is
// accepted, outputs and states are those of decoding the accepted tokens one by one, bit for bit.
#include "support/kda_catch.hpp"
#include "support/step.hpp"

using namespace testing;

// Everything that decodes, and the convolutions, which have no two ways.
#define KDA_DECODE_CALLS                                                                                \
  decode_call<specs::kda_given_key>, decode_call<specs::kda_bounded>, decode_call<specs::gdn_softplus>, \
      decode_call<specs::kda_bf16_key>, decode_call<specs::kda_bf16_value>, decode_call<specs::qwen>,   \
      conv_call<specs::kda_bounded>, conv_call<specs::gdn_softplus>, conv_call<specs::glm>, conv_call<specs::qwen>
#define KDA_CONV_CALLS \
  conv_call<specs::kda_bounded>, conv_call<specs::gdn_softplus>, conv_call<specs::glm>, conv_call<specs::qwen>

namespace {

using flags = std::vector<bool>;

// The sequence's first n tokens one by one, each in a call of its own; the state ends in slot s.store.
template <class Call> Call one_by_one(const sequence& s, testing::index n, const typename Call::pool& states) {
  Call x({s}, states);
  for (testing::index i = 0; i < n; ++i) {
    x.lists.offsets = {i, i + 1};
    x.run();
    x.lists.load = x.lists.store;
    x.lists.has_state[0] = true;
  }
  x.lists.offsets = {0, n};
  return x;
}

// Columns [first, first + n) of a convolution's slot.
template <class Call> auto columns_of(const Call& x, std::int64_t slot, testing::index first, testing::index n) {
  const auto all = x.states.slot(slot);
  std::vector<typename Call::type> some;
  for (testing::index column = first; column < first + n; ++column)
    for (testing::index c = 0; c < x.c.channels; ++c)
      some.push_back(all[size(Call::channel_major ? c * x.c.columns + column : column * x.c.channels + c)]);
  return some;
}

// Copies n tokens of one call's inputs to another's.
template <class Call>
void copy_tokens(Call& to, testing::index to_first, Call& from, testing::index from_first, testing::index n) {
  std::vector<const void*> sources;
  for_each_tensor(from, [&](const auto& tensor) { sources.push_back(&tensor); });
  std::size_t i = 0;
  for_each_tensor(to, [&](auto& tensor) {
    const auto& source = *static_cast<const std::remove_cvref_t<decltype(tensor)>*>(sources[i++]);
    const testing::index row = from.lists.offsets.back() == 0 ? 0 : std::ssize(source) / from.lists.offsets.back();
    std::copy_n(source.begin() + from_first * row, n * row, tensor.begin() + to_first * row);
  });
}

template <class T> std::vector<T> part_of(const std::vector<T>& x, testing::index first, testing::index n) {
  return {x.begin() + first, x.begin() + first + n};
}

}  // namespace

TEMPLATE_TEST_CASE("the state after each token is kept in its slot, whichever token was accepted before",
                   "[speculation]", KDA_DECODE_CALLS) {
  // Tokens, slot read; five drafts after one token, in a batch with others that are not speculative.
  std::vector<sequence> batch{{6, 1, 0, -7, true},  {6, 2, 7, -7, true},   {6, 3, 13, -7, true}, {6, 4, 24, -7, true},
                              {3, 5, 25, 26, true}, {6, 6, 99, -7, false}, {2, 7, 31, -7, true}, {0, 8, 34, -7, true},
                              continued(1, 9, 35),  {4, 10, -1, -7, true}, fresh(5, 11, 36),     {1, 12, 37, -7, true}};
  const std::vector<std::vector<std::int64_t>> rows{
      {1, 2, 3, 4, 5, 6},        // 0 accepted: from its load slot, which stays
      {7, 8, 9, 10, 11, 12},     // 1: from the first, which it writes again
      {40, 41, 13, 14, 15, 16},  // 3
      {17, 18, 20, 22, 23, 24},  // 6, all
      {},                        // not speculative
      {42, 43, 44, 45, 46, 47},  // fresh
      {27, 28, 29, 30, 31},      // 5 of the round before, then only two tokens
      {32, 33, 34},              // no tokens: nothing is written
      {},
      {-1, -1, -1, -1},  // padding
      {},
      {38, 37}};
  const std::vector<std::int64_t> accepted{0, 1, 3, 6, -1, 4, 5, 3, -1, 0, -1, 2};
  const auto before = TestType::pool_of(49, 2);
  TestType x(batch, before);
  for (std::size_t n = 0; n < batch.size(); ++n)
    if (accepted[n] > 0) x.lists.load[n] = x.lists.store[n] = -5;  // not looked at
  x.lists.speculate(accepted, rows);
  x.run();
  std::vector<std::int64_t> written;
  for (std::size_t n = 0; n < batch.size(); ++n) {
    CAPTURE(n);
    sequence s = batch[n];
    if (accepted[n] < 0) {
      const TestType solo = alone<TestType>(s, before);
      CHECK(same_bits(x.rows(n), solo.rows(0)));
      CHECK(same_bits(x.states.slot(s.store), solo.states.slot(s.store)));
      written.push_back(s.store);
      continue;
    }
    if (s.load == -1) {
      CHECK(all_zeros(x.rows(n)));
      continue;
    }
    s.store = 48;
    for (testing::index j = 0; j < s.tokens; ++j) {
      CAPTURE(j);
      const TestType serial = one_by_one<TestType>(s, j + 1, before);
      const std::int64_t slot = rows[n][size(j)];
      CHECK(same_bits(x.states.slot(slot), serial.states.slot(48)));
      CHECK(same_bits(part_of(x.rows(n), 0, (j + 1) * x.row), serial.rows(0)));
      written.push_back(slot);
    }
  }
  CHECK(x.states.same_but(written, before));
}

TEMPLATE_TEST_CASE("tables are int32 or int64, and their rows may lie apart", "[speculation]", KDA_DECODE_CALLS) {
  const std::vector<sequence> batch{{3, 21, 9, 9, true}, {2, 22, 5, -1, true}, continued(2, 23, 8)};
  const auto before = TestType::pool_of(10, 3);
  TestType plain(batch, before);
  plain.lists.speculate({0, 2, -1}, {{1, 2, 3}, {4, 5, 6}, {}});
  plain.run();
  const std::vector<std::int64_t> wide{1, 2, 3, 77, 77, 4, 5, 6, 77, 77, -1, -1, -1};
  const std::vector<std::int32_t> narrow(wide.begin(), wide.end()), narrow_accepted{0, 2, -1};
  for (const int which : {0, 1, 2, 3}) {
    TestType x(batch, before);
    x.lists = plain.lists;
    auto args = x.args();
    auto& s = args.sequences.speculation;
    s.slots = (which & 1) != 0 ? kda::indices_table(narrow.data(), 3, 3, 5) : kda::indices_table(wide.data(), 3, 3, 5);
    if ((which & 2) != 0) s.num_accepted = kda::indices(narrow_accepted.data(), 3);
    REQUIRE(TestType::function()(args, scratch(3, 1, 9), kda::serial));
    CHECK(same_bits(x.out, plain.out));
    CHECK(same_bits(x.states.cells, plain.states.cells));
  }
}

TEMPLATE_TEST_CASE("200 rounds of drafts end where the accepted tokens would, one by one", "[speculation]",
                   KDA_DECODE_CALLS) {
  // Three sequences, one of them fresh; a round brings each of them one to five tokens, of which the first are right.
  // A sequence has two rows of slots. A round either writes over the row that it reads, and then one token is right at
  // least, as in engines; or it writes to the other row and may be all wrong.
  const int rounds = emulated() ? 25 : 200;
  const std::int64_t spare = 33;
  const auto before = TestType::pool_of(34, 4);
  const auto row_of = [](std::int64_t n, int row) {
    std::vector<std::int64_t> slots;
    for (std::int64_t j = 0; j < 5; ++j) slots.push_back(10 * n + 5 * row + j);
    return slots;
  };
  struct progress {
    sequence all;
    TestType stream;  // all its tokens in one call
    testing::index done;
    std::int64_t slot, accepted;  // where its state is; which token of its row that was, 0: of none
    int row;
    bool has_state;
  };
  std::vector<progress> progresses;
  for (std::int64_t n = 0; n < 3; ++n) {
    const sequence s{5 * rounds, 41 + static_cast<std::uint64_t>(n), 30 + n, spare, n != 1};
    progresses.push_back({s, alone<TestType>(s, before), 0, 30 + n, 0, 0, n != 1});
  }
  random_numbers random(31);
  const auto up_to = [&](testing::index n) { return static_cast<testing::index>(random.uniform(0, 1) * float(n + 1)); };
  auto states = before;
  bool same = true;
  for (int round = 0; round < rounds; ++round) {
    std::vector<sequence> batch;
    std::vector<std::int64_t> accepted;
    std::vector<std::vector<std::int64_t>> rows;
    std::vector<testing::index> right;
    for (std::int64_t n = 0; n < 3; ++n) {
      progress& p = progresses[size(n)];
      const testing::index tokens = 1 + up_to(4);
      const bool in_place = p.accepted > 0 && random.uniform() < 0.5;
      right.push_back(in_place ? 1 + up_to(tokens - 1) : up_to(tokens));
      batch.push_back({tokens, 1000 + size(3 * round + n), in_place ? -5 : p.slot, -5, p.has_state});
      accepted.push_back(in_place ? p.accepted : 0);
      if (!in_place) p.row ^= 1;
      rows.push_back(row_of(n, p.row));
    }
    TestType x(batch, states);
    for (std::size_t n = 0; n < 3; ++n)
      copy_tokens(x, x.lists.offsets[n], progresses[n].stream, progresses[n].done, right[n]);
    x.lists.speculate(accepted, rows);
    x.run();
    states = x.states;
    for (std::size_t n = 0; n < 3; ++n) {
      progress& p = progresses[n];
      same = same && same_bits(part_of(x.rows(n), 0, right[n] * x.row),
                               part_of(p.stream.out, p.done * x.row, right[n] * x.row));
      p.done += right[n];
      if (right[n] == 0)
        p.row ^= 1;
      else
        p.accepted = right[n], p.slot = rows[n][size(right[n] - 1)], p.has_state = true;
    }
  }
  CHECK(same);
  for (const progress& p : progresses) {
    CHECK(p.done > rounds);
    CHECK(same_bits(states.slot(p.slot), one_by_one<TestType>(p.all, p.done, before).states.slot(spare)));
  }
}

TEMPLATE_TEST_CASE("rolling windows of a convolution stand one column apart in one slot", "[speculation]",
                   KDA_CONV_CALLS) {
  // Every window that may be read (0: of the load slot, whose last columns count), every number of tokens.
  for (const testing::index width : {2, 3, 4}) {
    const conv_shape shape{.channels = 277, .width = width, .columns = 7};
    const testing::index most = shape.columns - (width - 2);
    for (testing::index tokens = 0; tokens <= most; ++tokens) {
      std::vector<sequence> batch{continued(3, 51, 31), fresh(2, 52, 32), continued(2, 53, -1)};
      std::vector<std::int64_t> accepted{-1, -1, -1};
      std::vector<std::vector<std::int64_t>> rows{{}, {}, {}};
      std::int64_t slot = 0;
      for (std::int64_t a = 0; a <= most; ++a) {
        batch.push_back({tokens, 60 + size(a), a == 0 ? 30 : -5, -5, true});
        accepted.push_back(a);
        rows.push_back({slot});
        for (testing::index j = 1; j < most; ++j) rows.back().push_back(33 + j + 7 * a);  // not touched
        ++slot;
      }
      const auto before = TestType::pool_of(100, 5, shape);
      TestType x(batch, before, shape);
      x.lists.speculate(accepted, rows);
      x.lists.rolling = true;
      x.run();
      CAPTURE(width, tokens);
      std::vector<std::int64_t> written{31, 32};
      for (const std::size_t n : {0u, 1u}) {
        const TestType solo = alone<TestType>(batch[n], before, shape);
        CHECK(same_bits(x.rows(n), solo.rows(0)));
        CHECK(same_bits(x.states.slot(batch[n].store), solo.states.slot(batch[n].store)));
      }
      const TestType old({}, before, shape);
      for (std::size_t n = 3; n < batch.size(); ++n) {
        CAPTURE(n, accepted[n]);
        const std::int64_t own = rows[n][0];
        auto states = before;  // slot 99: the window that is read, as its last columns
        auto window = columns_of(old, 99, 0, shape.columns - (width - 1));
        append(window, accepted[n] == 0
                           ? columns_of(old, 30, shape.columns - (width - 1), width - 1)
                           : columns_of(old, own, static_cast<testing::index>(accepted[n]) - 1, width - 1));
        auto as_stored = window;
        if (TestType::channel_major)
          for (testing::index i = 0; i < std::ssize(window); ++i)
            as_stored[size(i % shape.channels * shape.columns + i / shape.channels)] = window[size(i)];
        states.set_slot(99, as_stored);
        sequence s = batch[n];
        s.load = s.store = 99;
        for (testing::index j = 0; j < tokens; ++j) {
          CAPTURE(j);
          const TestType serial = alone_from<TestType>(s, 0, j + 1, states, shape);
          CHECK(same_bits(columns_of(x, own, j, width - 1),
                          columns_of(serial, 99, shape.columns - (width - 1), width - 1)));
          if (j + 1 == tokens) CHECK(same_bits(x.rows(n), serial.rows(0)));
        }
        const testing::index kept = tokens == 0 ? 0 : width - 2 + tokens;
        CHECK(same_bits(columns_of(x, own, kept, shape.columns - kept),
                        columns_of(old, own, kept, shape.columns - kept)));
        written.push_back(own);
      }
      CHECK(x.states.same_but(written, before));
    }
  }
}

TEMPLATE_TEST_CASE("200 rounds of drafts with rolling windows end where the accepted tokens would", "[speculation]",
                   KDA_CONV_CALLS) {
  const int rounds = emulated() ? 25 : 200;
  const conv_shape shape{.channels = 277, .width = 4, .columns = 8};
  const auto before = TestType::pool_of(13, 6, shape);
  const std::vector<std::vector<std::int64_t>> rows{{0, 1, 2, 3, 4, 5}, {6, 7, 8, 9, 10, 11}};
  std::vector<TestType> streams;
  for (std::int64_t n = 0; n < 2; ++n)
    streams.push_back(alone<TestType>({6 * rounds, 71 + size(n), 6 * n, 12, true}, before, shape));
  random_numbers random(32);
  std::vector<testing::index> done(2);
  std::vector<std::int64_t> accepted{0, 0};
  auto states = before;
  bool same = true;
  for (int round = 0; round < rounds; ++round) {
    std::vector<sequence> batch;
    std::vector<testing::index> right;
    for (std::int64_t n = 0; n < 2; ++n) {
      batch.push_back(
          {1 + static_cast<testing::index>(5.9 * random.uniform()), 2000 + size(2 * round + n), 6 * n, -5, true});
      right.push_back(1 + static_cast<testing::index>(0.99 * random.uniform() * double(batch.back().tokens)));
    }
    TestType x(batch, states, shape);
    for (std::size_t n = 0; n < 2; ++n) copy_tokens(x, x.lists.offsets[n], streams[n], done[n], right[n]);
    x.lists.speculate(accepted, rows);
    x.lists.rolling = true;
    x.run();
    states = x.states;
    for (std::size_t n = 0; n < 2; ++n) {
      same = same && same_bits(part_of(x.rows(n), 0, right[n] * x.row),
                               part_of(streams[n].out, done[n] * x.row, right[n] * x.row));
      done[n] += right[n];
      accepted[n] = right[n];
    }
  }
  CHECK(same);
  CHECK((done[0] > rounds && done[1] > rounds));
}

TEMPLATE_TEST_CASE("a checkpoint beside rolling windows holds the inputs that there are, and zeros before them",
                   "[speculation]", KDA_CONV_CALLS) {
  const conv_shape shape{.channels = 33, .width = 4, .columns = 8};
  const auto before = TestType::pool_of(8, 7, shape);
  TestType x({{2, 81, -5, -5, true}}, before, shape);
  x.lists.speculate({1}, {{0, 1, 2}});
  x.lists.keep({{{2, 7}}});
  x.lists.rolling = true;
  x.run();
  CHECK(all_zeros(columns_of(x, 7, 0, 3)));  // 3 + 2 inputs are known, of 8 columns
  CHECK(same_bits(columns_of(x, 7, 3, 3), columns_of(TestType({}, before, shape), 0, 0, 3)));
  CHECK(same_bits(columns_of(x, 7, 6, 2), x.x));
}

TEMPLATE_TEST_CASE("a frozen sequence gives the outputs of a stored one, and no bit of any slot changes",
                   "[speculation]", KDA_TEST_CALLS) {
  const std::vector<sequence> batch{
      {18, 91, 0, 3, true}, {5, 92, 0, 99, true}, continued(1, 93, 1),  {4, 94, 2, 4, true},  {3, 95, 7, -7, false},
      {0, 96, 6, 5, true},  {2, 97, -1, 2, true}, {6, 98, 2, -1, true}, {0, 99, 7, -7, true}, fresh(0, 100, -7)};
  const flags frozen{true, true, false, true, true, false, true, true, true, true};
  const auto before = TestType::pool_of(9, 9);
  TestType x(batch, before);
  x.lists.freeze(frozen);
  x.run();
  CHECK(x.states.same_but({1, 5}, before));
  CHECK(same_bits(x.states.slot(5), before.slot(6)));
  for (const std::size_t n : {0u, 1u, 2u, 3u, 4u, 7u}) {
    CAPTURE(n);
    sequence s = batch[n];
    if (frozen[n]) s.store = 8;
    const TestType solo = alone<TestType>(s, before);
    CHECK(same_bits(x.rows(n), solo.rows(0)));
    if (!frozen[n]) CHECK(same_bits(x.states.slot(s.store), solo.states.slot(s.store)));
  }
  CHECK(all_zeros(x.rows(6)));  // padding by its load slot

  // where all are frozen no store slots are needed
  TestType y({batch[0], batch[3]}, before);
  y.lists.freeze({true, true});
  auto args = y.args();
  args.sequences.store_slots = {};
  REQUIRE(TestType::function()(args, scratch(2), kda::serial));
  CHECK(same_bits(y.rows(0), x.rows(0)));
  CHECK(same_bits(y.rows(1), x.rows(3)));
  CHECK(y.states.same_but({}, before));
}

TEMPLATE_TEST_CASE("a frozen speculative sequence goes on from what was accepted and keeps nothing", "[speculation]",
                   KDA_DECODE_CALLS) {
  const std::vector<sequence> batch{{4, 101, -5, -5, true}, {7, 102, 3, -5, true}, {2, 103, -5, -5, true}};
  const std::vector<std::vector<std::int64_t>> rows{{0, 1, 2}, {3, 4, 5}, {6, 7, 8}};  // fewer columns than tokens
  const std::vector<std::int64_t> accepted{2, 0, 3};
  const auto before = TestType::pool_of(10, 10);
  TestType x(batch, before);
  x.lists.speculate(accepted, rows);
  x.lists.freeze({true, true, true});
  x.run();
  CHECK(x.states.same_but({}, before));
  for (std::size_t n = 0; n < 3; ++n) {
    CAPTURE(n);
    sequence s = batch[n];
    if (accepted[n] > 0) s.load = rows[n][size(accepted[n] - 1)];
    s.store = 9;
    CHECK(same_bits(x.rows(n), alone<TestType>(s, before).rows(0)));
  }
}

TEMPLATE_TEST_CASE("a frozen draft is committed later, as far as it was accepted, without outputs", "[speculation]",
                   KDA_DECODE_CALLS) {
  // Five drafts each; 0 to 6 tokens are accepted; then three more are decoded.
  std::vector<sequence> batch;
  std::vector<std::int64_t> accepted;
  flags all;
  for (std::int64_t a = 0; a <= 6; ++a) {
    batch.push_back({9, 111 + size(a), a, a == 3 ? 8 : a, a != 5});
    accepted.push_back(a);
    all.push_back(true);
  }
  const auto before = TestType::pool_of(10, 11);
  TestType x(batch, before);
  x.lists.lengths.assign(7, 6);
  x.lists.freeze(all);
  x.run();
  CHECK(x.states.same_but({}, before));
  for (std::size_t n = 0; n < 7; ++n) {
    const TestType serial = one_by_one<TestType>(batch[n], 6, before);
    CHECK(same_bits(part_of(x.rows(n), 0, 6 * x.row), serial.rows(0)));
  }

  x.lists.frozen.reset();
  x.lists.lengths = accepted;
  auto args = x.args();
  output_of(args) = {};
  REQUIRE(TestType::function()(args, scratch(7), kda::serial));
  CHECK(same_bits(x.states.slot(0), before.slot(0)));  // nothing accepted, nothing changed
  for (std::size_t n = 0; n < 7; ++n) {
    CAPTURE(n);
    const auto a = static_cast<testing::index>(accepted[n]);
    if (a > 0)
      CHECK(same_bits(x.states.slot(batch[n].store),
                      one_by_one<TestType>(batch[n], a, before).states.slot(batch[n].store)));
    sequence rest = batch[n];
    rest.load = rest.store;
    rest.has_state = true;
    const TestType after = alone_from<TestType>(rest, a, 3, x.states),
                   serial = one_by_one<TestType>(batch[n], a + 3, before);
    CHECK(same_bits(after.states.slot(rest.store), serial.states.slot(rest.store)));
    CHECK(same_bits(after.rows(0), part_of(serial.rows(0), a * x.row, 3 * x.row)));
  }
}

TEMPLATE_TEST_CASE("wrong tables and entries are refused before anything is written", "[speculation]",
                   KDA_DECODE_CALLS) {
  const std::vector<sequence> batch{{3, 121, 0, -5, true}, {2, 122, 1, 2, true}, {3, 123, -5, -5, true}};
  const auto before = TestType::pool_of(20, 12);
  using rows = std::vector<std::vector<std::int64_t>>;
  struct wrong {
    std::vector<std::int64_t> accepted;
    rows table;
    kda::error what;
    const char* argument;
    std::int64_t first_slot = 0;
  };
  const char *const slots = "sequences.speculation.slots", *const num_accepted = "sequences.speculation.num_accepted",
                    *const load = "sequences.load_slots", *const store = "sequences.store_slots";
  using kda::error;
  constexpr std::int64_t far = std::int64_t{1} << 62;
  const std::vector<wrong> all{
      {{0, -1, 2}, {{3, 4}, {}, {6, 7}}, error::wrong_shape, slots},  // three tokens, two columns
      {{0, -1, 4}, {{3, 4, 5}, {}, {6, 7, 8}}, error::wrong_value, num_accepted},
      {{far, -1, 2}, {{3, 4, 5}, {}, {6, 7, 8}}, error::wrong_value, num_accepted},
      {{0, -1, 2}, {{3, 20, 5}, {}, {6, 7, 8}}, error::slot_out_of_range, slots},
      {{0, -1, 2}, {{3, 4, far}, {}, {6, 7, 8}}, error::slot_out_of_range, slots},
      {{0, -1, 2}, {{20, 4, 5}, {}, {6, 7, 8}}, error::slot_out_of_range, slots},
      {{0, -1, 2}, {{3, 4, 5}, {}, {6, 20, 8}}, error::slot_out_of_range, slots},     // read and written
      {{0, -1, 4}, {{3, 4, 5}, {}, {6, 7, 8, 20}}, error::slot_out_of_range, slots},  // only read
      {{0, -1, 2}, {{3, 4, -1}, {}, {6, 7, 8}}, error::slot_out_of_range, slots},     // padding begins with column 0
      {{0, -1, 2}, {{3, -far, 5}, {}, {6, 7, 8}}, error::slot_out_of_range, slots},
      {{-1, -1, 2}, {{}, {}, {6, 7, 0}}, error::slot_out_of_range, slots, 1},  // the first is padding
      {{0, -1, 2}, {{3, 4, 4}, {}, {6, 7, 8}}, error::slot_conflict, slots},
      {{0, -1, 2}, {{3, 4, 5}, {}, {6, 7, 3}}, error::slot_conflict, slots},
      {{0, -1, 2}, {{3, 4, 2}, {}, {6, 7, 8}}, error::slot_conflict, store},  // where another stores
      {{0, -1, 2}, {{3, 4, 1}, {}, {6, 7, 8}}, error::slot_conflict, load},   // what another loads
      {{0, -1, 4}, {{3, 4, 5}, {}, {6, 7, 8, 5}}, error::slot_conflict, slots},
      {{0, -1, 4}, {{3, 4, 5}, {}, {6, 7, 8, 2}}, error::slot_conflict, slots}};
  for (const wrong& w : all) {
    CAPTURE(&w - all.data());
    TestType x(batch, before);
    x.first_slot = w.first_slot;
    x.lists.speculate(w.accepted, w.table);
    const auto untouched = x.out;
    const kda::status s = x.try_run();
    CAPTURE(s.argument, kda::message(s.what));
    CHECK(s.what == w.what);
    CHECK(std::string(s.argument) == w.argument);
    CHECK(same_bits(x.out, untouched));
    CHECK(x.states.same_but({}, before));
  }
  const auto accepted = [&](const std::vector<std::int64_t>& read, const rows& table) {
    TestType x(batch, before);
    x.lists.speculate(read, table);
    const kda::status s = x.try_run();
    CAPTURE(s.argument, kda::message(s.what));
    CHECK(s);
  };
  accepted({0, -1, 2}, {{3, 4, 0}, {-9, 99, far}, {6, 7, 8}});  // over its own load slot; unused rows are not looked at
  accepted({0, -1, 2}, {{-1, 4, far}, {}, {6, 7, 8}});          // padding: the rest of its row is not looked at
  accepted({0, -1, 4}, {{3, 4, 5}, {}, {6, 7, 8, 19}});
}

TEMPLATE_TEST_CASE("rolling windows must fit their slot, and only their slot is read", "[speculation]",
                   KDA_CONV_CALLS) {
  // five columns, width 4: up to three tokens, up to three accepted
  const auto before = TestType::pool_of(10, 13);
  const auto answer = [&](testing::index tokens, std::int64_t accepted, const std::vector<std::int64_t>& row,
                          bool frozen, const std::vector<sequence>& more = {}) {
    std::vector<sequence> batch{{tokens, 131, 9, -5, true}};
    batch.insert(batch.end(), more.begin(), more.end());
    TestType x(batch, before);
    std::vector<std::int64_t> read{accepted};
    std::vector<std::vector<std::int64_t>> rows{row};
    flags which{frozen};
    for (std::size_t n = 0; n < more.size(); ++n) read.push_back(-1), rows.push_back({}), which.push_back(false);
    x.lists.speculate(read, rows);
    x.lists.rolling = true;
    x.lists.freeze(which);
    const kda::status s = x.try_run();
    if (!s || (frozen && more.empty())) CHECK(x.states.same_but({}, before));
    return s ? std::string("accepted") : std::string(s.argument) + ": " + kda::message(s.what);
  };
  const auto refusal = [](const char* argument, kda::error what) {
    return std::string(argument) + ": " + kda::message(what);
  };
  const std::string columns = refusal("states.columns", kda::error::wrong_shape),
                    out_of_range = refusal("sequences.speculation.slots", kda::error::slot_out_of_range),
                    conflict = refusal("sequences.speculation.slots", kda::error::slot_conflict);
  CHECK(answer(3, 3, {0, 1, 2, 3}, false) == "accepted");
  CHECK(answer(4, 3, {0, 1, 2, 3}, false) == columns);
  CHECK(answer(3, 4, {0, 1, 2, 3}, false) == columns);
  CHECK(answer(4, 3, {0, 1, 2, 3}, true) == "accepted");  // a frozen one keeps none
  CHECK(answer(3, 4, {0, 1, 2, 3}, true) == columns);
  // the window that is read lies in column 0 of the table
  CHECK(answer(2, 2, {10, 1}, true) == out_of_range);
  CHECK(answer(0, 2, {10, 1}, false) == out_of_range);
  CHECK(answer(2, 2, {-1, 1}, true) == "accepted");  // padding
  CHECK(answer(0, 2, {-1, 1}, false) == "accepted");
  CHECK(answer(2, 2, {0, 1}, true, {continued(1, 132, 0)}) == conflict);
  CHECK(answer(0, 2, {0, 1}, false, {continued(1, 132, 0)}) == conflict);
  CHECK(answer(2, 2, {0, 1}, true, {continued(1, 132, 2)}) == "accepted");
}

TEMPLATE_TEST_CASE("a step speculates as its parts do, in both kinds of state", "[speculation]", KDA_TEST_STEPS) {
  using call = step_call<TestType>;
  const std::vector<sequence> batch{{4, 141, 0, -5, true},   {4, 142, -5, -5, true}, {3, 143, 1, 2, true},
                                    {2, 144, -5, -5, false}, {0, 145, -5, -5, true}, {3, 146, -1, -5, true}};
  const std::vector<std::int64_t> accepted{0, 3, -1, 4, 2, 0};
  const std::vector<std::vector<std::int64_t>> rows{{3, 4, 5, 6}, {7, 8, 9, 10}, {}, {11, 12, 13, 14}, {15, 16}, {17}};
  const std::vector<kda::mode> modes(6, kda::mode::decode);
  for (const bool rolling : {false, true})
    for (const bool frozen : {false, true}) {
      call x(batch, modes, call::states_of(20, 16), call::windows_of(20, 17, call::usual, 8));
      x.lists.speculate(accepted, rows);
      x.lists.rolling = rolling;
      if (frozen) x.lists.freeze(flags{true, true, false, true, false, true});
      const call before = x;
      call parts = x;
      x.run();
      call::run_parts(parts.args(), scratch(6, 1, parts.lists.kept_states()));
      CAPTURE(rolling, frozen);
      CHECK(same_bits(x, parts));
      if (frozen) {
        CHECK(x.states.same_but({2}, before.states));
        CHECK(x.conv_states.same_but({2}, before.conv_states));
      }
    }
}

TEST_CASE("a step neither prefills drafts nor takes tables that a part of it would refuse", "[speculation]") {
  using call = step_call<specs::kda_bounded>;
  call x({{2, 161, 0, -5, true}, {2, 162, 1, 2, true}}, {kda::mode::decode, kda::mode::prefill}, call::states_of(8, 20),
         call::windows_of(8, 21, call::usual, 5));
  const call before = x;
  const auto answer = [&](const std::vector<std::int64_t>& accepted, const std::vector<std::int64_t>& row,
                          bool rolling) {
    x.lists.speculate(accepted, {row, {4, 5}});
    x.lists.rolling = rolling;
    const kda::status s = x.try_run();
    if (!s) CHECK(same_bits(x, before));
    x = before;
    return s ? std::string("accepted") : std::string(s.argument) + ": " + kda::message(s.what);
  };
  const auto refusal = [](const char* argument, kda::error what) {
    return std::string(argument) + ": " + kda::message(what);
  };
  CHECK(answer({0, -1}, {3, 6}, false) == "accepted");
  CHECK(answer({0, 0}, {3, 6}, false) == refusal("modes", kda::error::wrong_value));
  CHECK(answer({0, -1}, {3}, false) == refusal("sequences.speculation.slots", kda::error::slot_out_of_range));
  CHECK(answer({3, -1}, {3, 6}, false) == refusal("sequences.speculation.num_accepted", kda::error::wrong_value));
  CHECK(answer({4, -1}, {3, 6, 7, 1}, true) == refusal("conv_states.columns", kda::error::wrong_shape));
  CHECK(answer({3, -1}, {3, 6, 7}, true) == "accepted");
}

TEMPLATE_TEST_CASE("a frozen step is committed later, as far as it was accepted", "[speculation]", KDA_TEST_STEPS) {
  using call = step_call<TestType>;
  std::vector<sequence> batch;
  std::vector<std::int64_t> accepted;
  for (std::int64_t a = 0; a <= 4; ++a)
    batch.push_back({4, 151 + size(a), a, a == 2 ? 5 : a, a != 3}), accepted.push_back(a);
  const std::vector<kda::mode> modes(5, kda::mode::decode);
  call x(batch, modes, call::states_of(6, 18), call::windows_of(6, 19));
  const call before = x;
  x.lists.freeze(flags(5, true));
  x.run();
  CHECK(x.states.same_but({}, before.states));
  CHECK(x.conv_states.same_but({}, before.conv_states));
  call stored = before;
  stored.run();
  CHECK(same_bits(x.y, stored.y));
  x.lists.frozen.reset();
  x.lists.lengths = accepted;
  auto a = x.args();
  a.y = {}, a.output_gate = {}, a.norm_weight = {};
  throw_unless(call::function()(a, scratch(5)));
  for (std::size_t n = 0; n < 5; ++n) {
    call serial({batch[n]}, {kda::mode::decode}, before.states, before.conv_states);
    serial.lists.offsets = {0, accepted[n]};
    serial.run();
    CAPTURE(n);
    CHECK(same_bits(x.states.slot(batch[n].store), serial.states.slot(batch[n].store)));
    CHECK(same_bits(x.conv_states.slot(batch[n].store), serial.conv_states.slot(batch[n].store)));
  }
}
