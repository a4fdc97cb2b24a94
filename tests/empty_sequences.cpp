// SPDX-License-Identifier: Apache-2.0
// Sequences without tokens, anywhere in a batch: their state is what it was before, or zeros if they are fresh, and the
// others do not notice.
#include "support/batches.hpp"
#include "support/kda_catch.hpp"

using namespace testing;

namespace {

// States that an arithmetic copy would change: denormals, negative zero, the largest and infinite numbers, NaN.
template <class T> void put_odd_numbers(slot_pool<T>& states, std::int64_t n) {
  std::vector<T> x = states.slot(n);
  for (std::size_t i = 0; i < x.size(); ++i) {
    constexpr float odd[] = {
        1e-40f, -1e-40f, -0.f, 3e38f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()};
    if (i % 7 < 6) x[i] = kda::round_to<T>(odd[i % 7]);
  }
  states.set_slot(n, x);
}

}  // namespace

TEMPLATE_TEST_CASE("an empty sequence keeps its state, and the others keep their bits", "[empty]", KDA_TEST_CALLS) {
  auto before = TestType::pool_of(8, 1);
  for (const std::int64_t n : {3, 4}) put_odd_numbers(before, n);
  const sequence some = continued(18, 11, 0), one = continued(1, 12, 1), fresh_one = fresh(5, 13, 2);
  const sequence in_place = continued(0, 14, 3), moved = {0, 15, 4, 5, true}, new_one = fresh(0, 16, 6),
                 padding = continued(0, 17, -1);
  const std::vector<std::vector<sequence>> batches{
      {in_place, some},                                                    // first
      {some, moved, one},                                                  // middle
      {some, fresh_one, new_one},                                          // last
      {in_place, moved, some, new_one, padding, one, padding, fresh_one},  // several at a time
      {padding, one, in_place},
      {in_place, moved, new_one, padding},  // nothing else
      {new_one},
      {padding}};
  for (const std::vector<sequence>& batch : batches) {
    CAPTURE(&batch - batches.data());
    TestType x(batch, before);
    x.run();
    std::vector<std::int64_t> stored;
    for (std::size_t n = 0; n < batch.size(); ++n) {
      const sequence& s = batch[n];
      if (s.store < 0) continue;
      stored.push_back(s.store);
      if (s.tokens > 0) {
        const TestType solo = alone<TestType>(s, before);
        CHECK(same_bits(x.rows(n), solo.rows(0)));
        CHECK(same_bits(x.states.slot(s.store), solo.states.slot(s.store)));
      } else if (s.has_state) {
        CHECK(same_bits(x.states.slot(s.store), before.slot(s.load)));
      } else {
        CHECK(all_zeros(x.states.slot(s.store)));
      }
    }
    CHECK(x.states.same_but(stored, before));
  }
}

TEMPLATE_TEST_CASE("a batch without sequences or without tokens needs no tensors", "[empty]", KDA_TEST_CALLS) {
  const auto before = TestType::pool_of(3, 2);
  const auto run = [](TestType& x, const auto& args) {
    return TestType::function()(args, scratch(x.sequences()), kda::serial);
  };

  TestType none({}, before);
  CHECK(none.try_run());
  CHECK(none.states.same_but({}, before));

  TestType nothing({}, TestType::pool_of(0, 2));  // no sequence, no token, no slot, no list
  auto args = nothing.args();
  args.sequences = {};
  args.states.data = nullptr;
  CHECK(run(nothing, args));

  TestType unowned({continued(4, 21, 0)}, before);  // four tokens that belong to no sequence
  args = unowned.args();
  args.sequences = {};
  CHECK(run(unowned, args));
  const std::int64_t end[] = {2};
  args.sequences = {.offsets = kda::indices(end, 1)};
  CHECK(run(unowned, args));
  auto canaries = unowned.out;
  fill_bytes(canaries, canary_bytes);
  CHECK(same_bits(unowned.out, canaries));
  CHECK(unowned.states.same_but({}, before));
}

TEMPLATE_TEST_CASE("null tensors do for sequences that are all empty", "[empty]", KDA_TEST_CALLS) {
  const auto before = TestType::pool_of(3, 3);
  TestType x({{0, 1, 0, 1, true}, fresh(0, 2, 2), continued(0, 3, -1)}, before);
  auto args = x.args();
  if constexpr (requires { args.q; }) {
    args.q.data = args.k.data = args.v.data = nullptr;
    args.gate.data = nullptr;
    args.beta.data = nullptr;
    args.out.data = nullptr;
  } else {
    args.x.data = nullptr;
    args.y.data = nullptr;
  }
  CHECK(TestType::function()(args, scratch(3), kda::serial));
  CHECK(x.states.same_but({1, 2}, before));
  CHECK(same_bits(x.states.slot(1), before.slot(0)));
  CHECK(all_zeros(x.states.slot(2)));
}
