// SPDX-License-Identifier: Apache-2.0
// Batches as padded [B, T, ...] tensors, lists that are columns of an engine's tables or are left out, pools described by
// zeros: the results of packed batches that say everything.
#include "support/kda_catch.hpp"
#include "support/step.hpp"

using namespace testing;

namespace {

constexpr testing::index longest = 20;
// B = 6, T = 20, and how many tokens of each row count.
const std::vector<std::int64_t> lengths{20, 3, 0, 17, 1, 5};
const std::vector<sequence> rows{{longest, 1, 0, 0, true, 5}, {longest, 2, 1, 6, true}, continued(longest, 3, 2),
                                 fresh(longest, 4, 3),        continued(longest, 5, 4), continued(longest, 6, -1)};
const kda::index_list row_offsets = kda::multiples(longest, 7);

// rows of [B, T, ...] tensors, whose tails are NaN.
template <class Call> Call padded_batch(const typename Call::pool& states) {
  Call x(rows, states);
  for (std::size_t n = 0; n < rows.size(); ++n) poison_tokens(x, x.lists.offsets[n] + lengths[n], longest - lengths[n]);
  x.lists.lengths = lengths;
  return x;
}

template <class Call> void check_padded_batch(const Call& x, const typename Call::pool& before) {
  CHECK(x.states.same_but({0, 6, 2, 3, 4}, before));
  for (std::size_t n = 0; n < rows.size(); ++n) {
    CAPTURE(n);
    auto want = x.rows(n);
    fill_bytes(want, canary_bytes);  // behind the length nothing is written
    if (rows[n].store < 0) {
      std::fill_n(want.begin(), lengths[n] * x.row, typename decltype(want)::value_type{});
    } else {
      const Call solo = alone_from<Call>(rows[n], 0, lengths[n], before);
      const auto out = solo.rows(0);
      std::copy(out.begin(), out.end(), want.begin());
      CHECK(same_bits(x.states.slot(rows[n].store), solo.states.slot(rows[n].store)));
    }
    CHECK(same_bits(x.rows(n), want));
  }
}

}  // namespace

TEMPLATE_TEST_CASE("of padded rows only the tokens within their lengths are read and written", "[lengths]",
                   KDA_TEST_CALLS) {
  const auto before = TestType::pool_of(7, 1);
  TestType x = padded_batch<TestType>(before);
  x.run();
  check_padded_batch(x, before);

  TestType y = padded_batch<TestType>(before);  // offsets without an array
  auto args = y.args();
  args.sequences.offsets = row_offsets;
  REQUIRE(TestType::function()(args, scratch(6), kda::serial));
  CHECK(same_bits(y.out, x.out));
  CHECK(same_bits(y.states.cells, x.states.cells));
}

TEMPLATE_TEST_CASE("full lengths are as none", "[lengths]", KDA_TEST_CALLS) {
  const std::vector<sequence> batch{continued(18, 11, 0), fresh(0, 12, 1), {3, 13, 2, 3, true}, continued(1, 14, 4)};
  const auto before = TestType::pool_of(5, 2);
  TestType plain(batch, before), x(batch, before);
  plain.run();
  x.lists.lengths = {18, 0, 3, 1};
  x.run();
  CHECK(same_bits(x.out, plain.out));
  CHECK(same_bits(x.states.cells, plain.states.cells));
}

TEMPLATE_TEST_CASE("offsets may be the multiples of a number", "[lengths]", KDA_TEST_CALLS) {
  for (const testing::index tokens : {0, 1, 7}) {
    std::vector<sequence> batch;
    for (std::int64_t n = 0; n < 5; ++n) batch.push_back(n == 2 ? fresh(tokens, 3, n) : continued(tokens, size(n), n));
    const auto before = TestType::pool_of(5, 3);
    TestType plain(batch, before), x(batch, before);
    plain.run();
    auto args = x.args();
    args.sequences.offsets = kda::multiples(tokens, 6);
    args.sequences.load_slots = args.sequences.store_slots = kda::multiples(1, 5);
    args.sequences.first_position = kda::multiples(0, 5);
    REQUIRE(TestType::function()(args, scratch(5), kda::serial));
    CHECK(same_bits(x.out, plain.out));
    CHECK(same_bits(x.states.cells, plain.states.cells));
  }
}

TEMPLATE_TEST_CASE("lists may be columns of one table", "[lengths]", KDA_TEST_CALLS) {
  const auto before = TestType::pool_of(7, 4);
  for (const bool narrow : {false, true}) {
    TestType x = padded_batch<TestType>(before);
    constexpr testing::index width = 6;
    std::vector<std::int64_t> wide(size(7 * width), -99);
    const std::vector<std::int64_t>* const columns[] = {&x.lists.offsets, &x.lists.lengths, &x.lists.load,
                                                        &x.lists.store, &x.lists.position};
    for (std::size_t c = 0; c < 5; ++c)
      for (std::size_t n = 0; n < columns[c]->size(); ++n) wide[n * width + c] = (*columns[c])[n];
    const std::vector<std::int32_t> halved(wide.begin(), wide.end());
    const auto column = [&](std::size_t c) {
      const testing::index n = std::ssize(*columns[c]);
      return narrow ? kda::indices(halved.data() + c, n, width) : kda::indices(wide.data() + c, n, width);
    };
    auto args = x.args();
    args.sequences.offsets = column(0);
    args.sequences.lengths = column(1);
    args.sequences.load_slots = column(2);
    args.sequences.store_slots = column(3);
    args.sequences.first_position = column(4);
    REQUIRE(TestType::function()(args, scratch(6), kda::serial));
    check_padded_batch(x, before);
  }
}

TEMPLATE_TEST_CASE("without load slots a sequence goes on where it is stored", "[lengths]", KDA_TEST_CALLS) {
  const std::vector<sequence> batch{continued(18, 21, 3), fresh(4, 22, 1), continued(1, 23, 0), continued(2, 24, -1),
                                    continued(0, 25, 2)};
  const auto before = TestType::pool_of(5, 5);
  TestType plain(batch, before), x(batch, before);
  plain.run();
  auto args = x.args();
  args.sequences.load_slots = {};
  REQUIRE(TestType::function()(args, scratch(5), kda::serial));
  CHECK(same_bits(x.out, plain.out));
  CHECK(same_bits(x.states.cells, plain.states.cells));
}

TEMPLATE_TEST_CASE("zeros in a pool's description stand for a pool without gaps", "[lengths]", KDA_TEST_CALLS) {
  typename TestType::shape shape = TestType::usual;
  if constexpr (requires { shape.columns; }) shape.columns = shape.width - 1;
  const std::vector<sequence> batch{continued(18, 31, 3), {4, 32, 0, 1, true}, fresh(2, 33, 2)};
  const auto before = TestType::pool_of(4, 6, shape);
  TestType plain(batch, before, shape), x(batch, before, shape);
  plain.run();
  std::vector<typename decltype(before.cells)::value_type> dense;
  for (std::int64_t n = 0; n < 4; ++n) append(dense, before.slot(n));
  auto args = x.args();
  args.states = {.data = dense.data(), .slots = 4};
  REQUIRE(TestType::function()(args, scratch(3), kda::serial));
  CHECK(same_bits(x.out, plain.out));
  std::vector<typename decltype(before.cells)::value_type> want;
  for (std::int64_t n = 0; n < 4; ++n) append(want, plain.states.slot(n));
  CHECK(same_bits(dense, want));
}

TEMPLATE_TEST_CASE("masked tokens in front of a prompt leave no trace", "[lengths]", decode_call<specs::kda_given_key>,
                   prefill_call<specs::kda_given_key>, decode_call<specs::gdn_given_value>,
                   prefill_call<specs::gdn_given_value>, decode_call<specs::kda_bf16_key>,
                   prefill_call<specs::kda_bf16_key>) {
  // A mask is beta = 0 and a log decay of 0, whatever q, k and v hold. On the grid prefill keeps its bits too.
  using state = typename decltype(TestType::pool::cells)::value_type;
  for (const testing::index masked : {1, 5, 16, 32})
    for (const bool is_fresh : {false, true}) {
      const testing::index tokens = 21;
      const sequence s{masked + tokens, 41, 0, 1, !is_fresh};
      const auto before = TestType::pool_of(2, 7);
      TestType x({s}, before);
      for (auto* tensor : {&x.tensors.gate, &x.tensors.beta}) {
        const testing::index row = std::ssize(*tensor) / s.tokens;
        std::fill_n(tensor->begin(), masked * row, 0.f);
      }
      x.run();
      TestType want({s}, before);
      want.lists.offsets = {masked, s.tokens};
      want.run();
      const std::vector out(x.out.begin() + masked * x.row, x.out.end());
      CAPTURE(masked, is_fresh);
      const bool chunked = std::is_same_v<TestType, prefill_call<typename TestType::spec>>;
      if (!chunked || masked % kda::chunk_tokens == 0) {
        CHECK(same_bits(out, want.rows(0)));
        CHECK(same_bits(x.states.slot(1), want.states.slot(1)));
      } else {
        CHECK(relative_error(out, widened(want.rows(0))) <= 2 * ordinary_bound);
        CHECK(relative_error(x.states.slot(1), widened(want.states.slot(1))) <=
              (std::is_same_v<state, kda::bf16> ? 0x1p-8 : 2 * ordinary_bound));
      }
    }
}

TEMPLATE_TEST_CASE("masked inputs of a convolution in front of a prompt leave no trace", "[lengths]",
                   conv_call<specs::kda_bounded>, conv_call<specs::gdn_softplus>, conv_call<specs::glm>,
                   conv_call<specs::qwen>) {
  for (const testing::index masked : {1, 2, 3, 7})
    for (const testing::index tokens : {1, 2, 6}) {
      const sequence s = fresh(masked + tokens, 42, 0);
      TestType x({s}, TestType::pool_of(1, 8)), want = x;
      std::fill_n(x.x.begin(), masked * x.row, typename TestType::type{});
      x.run();
      want.lists.offsets = {masked, s.tokens};
      want.run();
      CAPTURE(masked, tokens);
      CHECK(same_bits(std::vector(x.out.begin() + masked * x.row, x.out.end()), want.rows(0)));
      CHECK(same_bits(x.states.cells, want.states.cells));
    }
}

TEMPLATE_TEST_CASE("a step reads and writes only the tokens within their lengths", "[lengths]", KDA_TEST_STEPS) {
  using call = step_call<TestType>;
  const std::vector<kda::mode> modes{kda::mode::prefill, kda::mode::decode, kda::mode::prefill,
                                     kda::mode::decode,  kda::mode::decode, kda::mode::prefill};
  call x(rows, modes, call::states_of(7, 9), call::windows_of(7, 10));
  const call before = x;
  x.lists.lengths = lengths;
  for (std::size_t n = 0; n < rows.size(); ++n) {
    const auto poison = [&](auto& tensor) {
      const std::size_t row = tensor.size() / size(x.tokens);
      put_nan(tensor, size(x.lists.offsets[n] + lengths[n]) * row, size(longest - lengths[n]) * row);
    };
    poison(x.projection), poison(x.output_gate), poison(x.tensors.gate), poison(x.tensors.beta);
  }
  auto args = x.args();
  args.sequences.offsets = row_offsets;
  throw_unless(call::function()(args, scratch(6)));
  const testing::index row = x.g.HV * x.g.V;
  for (std::size_t n = 0; n < rows.size(); ++n) {
    CAPTURE(n);
    std::vector<typename call::out_type> want(size(longest * row));
    fill_bytes(want, canary_bytes);
    if (rows[n].store < 0) {
      std::fill_n(want.begin(), lengths[n] * row, typename call::out_type{});
    } else {
      call solo({rows[n]}, {modes[n]}, before.states, before.conv_states);
      solo.lists.offsets = {0, lengths[n]};
      solo.run();
      std::copy_n(solo.y.begin(), lengths[n] * row, want.begin());
      CHECK(same_bits(x.states.slot(rows[n].store), solo.states.slot(rows[n].store)));
      CHECK(same_bits(x.conv_states.slot(rows[n].store), solo.conv_states.slot(rows[n].store)));
    }
    const auto first = x.y.begin() + x.lists.offsets[n] * row;
    CHECK(same_bits(std::vector(first, first + longest * row), want));
  }
}
