// SPDX-License-Identifier: Apache-2.0
// Tens of thousands of short sequences in one call: each right, in time that grows with their number; and lists whose
// memory is filled anew between calls.
#include "support/batches.hpp"
#include "support/kda_catch.hpp"

#include <ctime>

using namespace testing;

namespace {

// Small states, so that the time of the tasks does not hide that of the checks.
template <class Call> typename Call::shape small_shape() {
  if constexpr (std::is_same_v<typename Call::shape, conv_shape>)
    return {.channels = 3, .width = 4, .columns = 3};
  else
    return {.T = 0, .H = 1, .HV = 1, .K = 4, .V = 3};
}

// Lengths 0 to 3; fresh and continued ones; slots in an order that has nothing to do with that of the sequences.
std::vector<sequence> many(testing::index n) {
  std::vector<sequence> batch;
  for (testing::index i = 0; i < n; ++i) {
    const std::int64_t slot = (n - 1 - i) ^ 1;
    batch.push_back({i * 7 % 4, static_cast<std::uint64_t>(i % 13), slot, slot, i % 3 != 0});
  }
  return batch;
}

template <class Call> double seconds_for(testing::index n) {
  Call x(many(n), Call::pool_of(n, 1, small_shape<Call>()), small_shape<Call>());
  scratch w(n);
  const auto args = x.args();
  double best = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat < 3; ++repeat) {
    const std::clock_t start = std::clock();
    throw_unless(Call::function()(args, w, kda::serial));
    best = std::min(best, static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC);
  }
  return best;
}

}  // namespace

TEMPLATE_TEST_CASE("seventy thousand short sequences run in one call", "[many_sequences]",
                   decode_call<specs::kda_given_key>, prefill_call<specs::kda_given_key>,
                   conv_call<specs::kda_bounded>) {
  const testing::index n = emulated() ? 2000 : 70'000;
  const auto shape = small_shape<TestType>();
  const std::vector<sequence> batch = many(n);
  const auto before = TestType::pool_of(n, 1, shape);
  TestType x(batch, before, shape);
  x.run();

  // the same in pieces, each of which knows nothing of the others
  auto states = before;
  bool same = true;
  for (testing::index first = 0; first < n; first += n / 50) {
    const std::vector<sequence> piece(batch.begin() + first, batch.begin() + first + n / 50);
    TestType y(piece, std::move(states), shape);
    y.run();
    const auto begin = x.out.begin() + x.lists.offsets[size(first)] * x.row;
    same = same && same_bits(y.out, std::vector(begin, begin + std::ssize(y.out)));
    states = std::move(y.states);
  }
  CHECK(same);
  CHECK(same_bits(x.states.cells, states.cells));
  for (testing::index i = 0; i < n; i += n / 20 + 1) {
    const TestType solo = alone<TestType>(batch[size(i)], before, shape);
    CHECK(same_bits(x.rows(size(i)), solo.rows(0)));
  }
}

TEMPLATE_TEST_CASE("time grows with the number of sequences, not with its square", "[many_sequences]",
                   decode_call<specs::kda_given_key>, conv_call<specs::kda_bounded>) {
  const testing::index few = emulated() ? 500 : 8'750;
  const double ratio = seconds_for<TestType>(8 * few) / seconds_for<TestType>(few);
  CAPTURE(ratio);
  CHECK(ratio < 32);  // 8 if all is well, 64 if something is quadratic
}

TEMPLATE_TEST_CASE("lists may be filled anew between calls", "[many_sequences]", KDA_TEST_CALLS) {
  const auto before = TestType::pool_of(4, 1);
  const std::vector<sequence> first{continued(9, 1, 0), fresh(0, 2, 1), continued(3, 3, 2)};
  const std::vector<sequence> second{fresh(2, 1, 3), continued(6, 2, 2), {4, 3, 1, 0, true}};
  TestType x(first, before), y(second, before);
  x.run();

  // the second call's batch in the memory of the first's
  TestType refilled(first, before);
  const auto args = refilled.args();
  scratch w(3);
  REQUIRE(TestType::function()(args, w, kda::serial));
  CHECK(same_bits(refilled.out, x.out));
  const auto refill = [](auto& to, const auto& from) { std::copy(from.begin(), from.end(), to.begin()); };
  refill(refilled.lists.offsets, y.lists.offsets);
  refill(refilled.lists.load, y.lists.load);
  refill(refilled.lists.store, y.lists.store);
  std::copy_n(y.lists.has_state.get(), 3, refilled.lists.has_state.get());
  refill(refilled.states.cells, before.cells);
  if constexpr (requires { y.tensors; }) {
    refill(refilled.tensors.q, y.tensors.q);
    refill(refilled.tensors.k, y.tensors.k);
    refill(refilled.tensors.v, y.tensors.v);
    refill(refilled.tensors.gate, y.tensors.gate);
    refill(refilled.tensors.beta, y.tensors.beta);
  } else {
    refill(refilled.x, y.x);
  }
  REQUIRE(TestType::function()(args, w, kda::serial));
  y.run();
  CHECK(same_bits(refilled.out, y.out));
  CHECK(same_bits(refilled.states.cells, y.states.cells));
}
