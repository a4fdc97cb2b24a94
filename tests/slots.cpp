// SPDX-License-Identifier: Apache-2.0
// Slots: who reads and writes which state. Whatever the batch, a sequence gives the bits that it gives alone, and slots
// that no sequence stores keep theirs.
#include "support/batches.hpp"
#include "support/kda_catch.hpp"

using namespace testing;

namespace {

// Every sequence of `x`, which has run on `before`, has the outputs and the stored state that it has alone.
template <class Call>
void check_against_alone(const Call& x, const std::vector<sequence>& batch, const typename Call::pool& before) {
  for (std::size_t n = 0; n < batch.size(); ++n) {
    CAPTURE(n);
    const Call solo = alone<Call>(batch[n], before);
    CHECK(same_bits(x.rows(n), solo.rows(0)));
    CHECK(same_bits(x.states.slot(batch[n].store), solo.states.slot(batch[n].store)));
  }
}

}  // namespace

TEMPLATE_TEST_CASE("a fresh sequence ignores what the pool holds, bit for bit", "[slots]", KDA_TEST_CALLS) {
  const std::int64_t past_pool = 1 << 20;
  const std::vector<sequence> batch{
      {1, 11, 3, 3, false}, {5, 12, -1, 0, false}, {0, 13, 3, 5, false}, {17, 14, past_pool, 1, false}};
  auto before = TestType::pool_of(6, 1);
  fill_bytes(before.cells, nan_bytes);
  TestType x(batch, before);
  x.run();
  CHECK(x.states.same_but({3, 0, 5, 1}, before));

  auto zeros = before;
  fill_bytes(zeros.cells, 0);
  for (std::size_t n = 0; n < batch.size(); ++n) {
    CAPTURE(n);
    const sequence s = continued(batch[n].tokens, batch[n].seed, batch[n].store);
    const TestType from_zeros = alone<TestType>(s, zeros);
    CHECK(same_bits(x.rows(n), from_zeros.rows(0)));
    CHECK(same_bits(x.states.slot(s.store), from_zeros.states.slot(s.store)));
  }
}

TEMPLATE_TEST_CASE("the load slot stays as it is when another is stored", "[slots]", KDA_TEST_CALLS) {
  // Slot 4 is a shared prefix: three sequences go on from it, each into its own slot.
  const std::vector<sequence> batch{
      {3, 21, 4, 0, true}, {1, 22, 4, 6, true}, {18, 23, 4, 2, true}, {2, 24, 1, 5, true}};
  const auto before = TestType::pool_of(7, 2);
  TestType x(batch, before);
  x.run();
  CHECK(x.states.same_but({0, 6, 2, 5}, before));
  for (std::size_t n = 0; n < batch.size(); ++n) {
    CAPTURE(n);
    auto moved = before;  // the same in place, from a copy of the load slot
    moved.set_slot(batch[n].store, before.slot(batch[n].load));
    const TestType in_place = alone<TestType>(continued(batch[n].tokens, batch[n].seed, batch[n].store), moved);
    CHECK(same_bits(x.rows(n), in_place.rows(0)));
    CHECK(same_bits(x.states.slot(batch[n].store), in_place.states.slot(batch[n].store)));
  }
}

TEMPLATE_TEST_CASE("padding ids give zeros and touch no slot", "[slots]", KDA_TEST_CALLS) {
  const auto before = TestType::pool_of(6, 3);
  for (const std::int64_t first_slot : {0, 1, 2}) {
    CAPTURE(first_slot);
    const std::int64_t pad = first_slot - 1;
    const std::vector<sequence> batch{{2, 31, pad, pad, true},  {3, 32, first_slot, first_slot, true},
                                      {4, 33, pad, pad, false}, {1, 34, 3, 3, false},
                                      {1, 35, pad, 4, true},  // padded by its load slot: slot 4 stays
                                      {2, 36, 4, pad, true},    {1, 37, -1000, -1000, true},
                                      {2, 38, pad, 5, false}};  // fresh: its load slot does not matter
    TestType x(batch, before);
    x.first_slot = first_slot;
    x.run();
    CHECK(x.states.same_but({first_slot, 3, 5}, before));
    for (const std::size_t n : {0u, 2u, 4u, 5u, 6u}) {
      CAPTURE(n);
      CHECK(all_zeros(x.rows(n)));
    }
    for (const std::size_t n : {1u, 3u, 7u}) {
      CAPTURE(n);
      const TestType solo = alone<TestType>(batch[n], before);
      CHECK(same_bits(x.rows(n), solo.rows(0)));
      CHECK(same_bits(x.states.slot(batch[n].store), solo.states.slot(batch[n].store)));
    }
  }
}

TEMPLATE_TEST_CASE("a batch of padding needs no pool", "[slots]", KDA_TEST_CALLS) {
  TestType x({continued(3, 1, -1), continued(1, 2, -2)}, TestType::pool_of(0, 1));
  x.run();
  CHECK(all_zeros(x.out));
}

TEMPLATE_TEST_CASE("the flag, not the length, tells a prompt of one token from a decode", "[slots]", KDA_TEST_CALLS) {
  const std::vector<sequence> batch{fresh(1, 41, 2), continued(1, 42, 0), fresh(5, 43, 1), continued(1, 44, 3)};
  const auto before = TestType::pool_of(4, 4);
  TestType x(batch, before);
  x.run();
  check_against_alone(x, batch, before);

  auto zeros = before;
  fill_bytes(zeros.cells, 0);
  for (const std::size_t n : {0u, 2u}) {
    const TestType from_zeros = alone<TestType>(continued(batch[n].tokens, batch[n].seed, batch[n].store), zeros);
    CHECK(same_bits(x.rows(n), from_zeros.rows(0)));
  }
  for (const std::size_t n : {1u, 3u}) {
    const TestType from_zeros = alone<TestType>(continued(batch[n].tokens, batch[n].seed, batch[n].store), zeros);
    CHECK_FALSE(same_bits(x.rows(n), from_zeros.rows(0)));
  }
}

TEMPLATE_TEST_CASE("every order of a mixed batch gives what each sequence gives alone", "[slots]", KDA_TEST_CALLS) {
  const std::vector<sequence> all{continued(emulated() ? 17 : 70, 51, 0), continued(1, 52, 3), fresh(3, 53, 1),
                                  continued(1, 54, 2)};
  const auto before = TestType::pool_of(5, 5);
  std::vector<TestType> solo;
  for (const sequence& s : all) solo.push_back(alone<TestType>(s, before));

  std::vector<std::size_t> order{0, 1, 2, 3};
  int orders = 0;
  do {
    std::vector<sequence> batch;
    for (const std::size_t n : order) batch.push_back(all[n]);
    TestType x(batch, before);
    x.run();
    ++orders;
    bool same = x.states.same_but({0, 1, 2, 3}, before);
    for (std::size_t i = 0; i < 4; ++i) {
      const std::int64_t slot = batch[i].store;
      same = same && same_bits(x.rows(i), solo[order[i]].rows(0)) &&
             same_bits(x.states.slot(slot), solo[order[i]].states.slot(slot));
    }
    CAPTURE(order);
    CHECK(same);
  } while (std::next_permutation(order.begin(), order.end()));
  CHECK(orders == 24);
}

TEMPLATE_TEST_CASE("equal sequences give equal results, different ones do not leak into each other", "[slots]",
                   KDA_TEST_CALLS) {
  const testing::index tokens = 19;
  auto before = TestType::pool_of(8, 6);
  for (std::int64_t n = 1; n < 8; ++n) before.set_slot(n, before.slot(0));
  std::vector<sequence> equal, different;
  for (std::int64_t n = 0; n < 8; ++n) {
    equal.push_back(continued(tokens, 61, n));
    different.push_back(continued(tokens - n, 62 + static_cast<std::uint64_t>(n), n));
  }
  const TestType solo = alone<TestType>(equal[0], before);
  TestType x(equal, before);
  x.run();
  for (std::size_t n = 0; n < 8; ++n) {
    CAPTURE(n);
    CHECK(same_bits(x.rows(n), solo.rows(0)));
    CHECK(same_bits(x.states.slot(static_cast<std::int64_t>(n)), solo.states.slot(0)));
  }
  TestType y(different, before);
  y.run();
  check_against_alone(y, different, before);
}

TEMPLATE_TEST_CASE("it does not matter which slots the sequences have", "[slots]", KDA_TEST_CALLS) {
  const auto before = TestType::pool_of(9, 7);
  const std::vector<std::int64_t> shuffled{7, 2, 8, 0, 5};
  std::vector<sequence> in_order, out_of_order;
  auto moved = before;
  for (std::size_t n = 0; n < shuffled.size(); ++n) {
    const auto slot = static_cast<std::int64_t>(n);
    const auto tokens = static_cast<testing::index>(3 * n + 1);
    in_order.push_back(continued(tokens, 71 + n, slot));
    out_of_order.push_back(continued(tokens, 71 + n, shuffled[n]));
    moved.set_slot(shuffled[n], before.slot(slot));
  }
  TestType x(in_order, before), y(out_of_order, moved);
  x.run();
  y.run();
  CHECK(same_bits(x.out, y.out));
  CHECK(y.states.same_but(shuffled, moved));
  for (std::size_t n = 0; n < shuffled.size(); ++n)
    CHECK(same_bits(x.states.slot(static_cast<std::int64_t>(n)), y.states.slot(shuffled[n])));
}

TEMPLATE_TEST_CASE("two sequences may not write one slot, nor one write what another reads", "[slots]",
                   KDA_TEST_CALLS) {
  const auto before = TestType::pool_of(4, 8);
  const auto refused = [&](const std::vector<sequence>& batch, const char* argument) {
    TestType x(batch, before);
    const auto untouched = x.out;
    const kda::status s = x.try_run();
    CHECK(s.what == kda::error::slot_conflict);
    CHECK(std::string(s.argument) == argument);
    CHECK(same_bits(x.out, untouched));
    CHECK(x.states.same_but({}, before));
  };
  refused({continued(2, 1, 1), continued(3, 2, 0), continued(2, 3, 1)}, "sequences.store_slots");
  refused({fresh(2, 1, 1), fresh(2, 2, 1)}, "sequences.store_slots");
  refused({continued(0, 1, 1), continued(2, 2, 1)}, "sequences.store_slots");
  refused({{2, 1, 0, 1, true}, {2, 2, 2, 0, true}}, "sequences.load_slots");
  refused({{2, 1, 2, 1, true}, {2, 2, 3, 2, true}}, "sequences.load_slots");

  const auto accepted = [&](const std::vector<sequence>& batch) { CHECK(TestType(batch, before).try_run()); };
  accepted({continued(2, 1, -1), continued(3, 2, 0), continued(2, 3, -1)});  // padding twice
  accepted({{2, 1, 0, 1, true}, {2, 2, 0, 2, true}});                        // two load one slot
  accepted({{2, 1, 0, 1, false}, {2, 2, 2, 0, true}});                       // a fresh one loads nothing
  accepted({{2, 1, 0, 1, true}, {2, 2, -1, 0, true}});  // padded by its load slot: it stores nothing
}
