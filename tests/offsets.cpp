// SPDX-License-Identifier: Apache-2.0
// Offsets, of either width and however far: lists of int32 and int64, tokens that no sequence owns, and elements more
// than 2^31 from the first.
#include "support/batches.hpp"
#include "support/kda_catch.hpp"

#include <sys/mman.h>

using namespace testing;

namespace {

// Memory of any size, of which only what is touched exists.
template <class T> class sparse {
 public:
  explicit sparse(std::size_t n) : bytes_(n * sizeof(T)) {
    void* p = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = p == MAP_FAILED ? nullptr : static_cast<T*>(p);
  }
  sparse(const sparse&) = delete;
  sparse& operator=(const sparse&) = delete;
  ~sparse() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  [[nodiscard]] T* data() const { return data_; }

 private:
  std::size_t bytes_;
  T* data_;
};

const std::vector<sequence> batch{
    continued(5, 1, 1), {3, 2, 2, 0, true, 9}, fresh(1, 3, 3), continued(0, 4, 4), continued(2, 5, -1)};

}  // namespace

TEMPLATE_TEST_CASE("int32 and int64 lists agree", "[offsets]", KDA_TEST_CALLS) {
  TestType wide(batch, TestType::pool_of(5, 1)), narrow = wide;
  wide.run();
  const auto halved = [](const std::vector<std::int64_t>& x) { return std::vector<std::int32_t>(x.begin(), x.end()); };
  const std::vector<std::int32_t> lists[] = {halved(wide.lists.offsets), halved(wide.lists.load),
                                             halved(wide.lists.store), halved(wide.lists.position)};
  const auto list = [&](std::size_t i) { return kda::indices(lists[i].data(), std::ssize(lists[i])); };
  for (int mixed = 0; mixed < 16; ++mixed) {  // each list by itself
    TestType x = narrow;
    auto args = x.args();
    if ((mixed & 1) != 0) args.sequences.offsets = list(0);
    if ((mixed & 2) != 0) args.sequences.load_slots = list(1);
    if ((mixed & 4) != 0) args.sequences.store_slots = list(2);
    if ((mixed & 8) != 0) args.sequences.first_position = list(3);
    REQUIRE(TestType::function()(args, scratch(5), kda::serial));
    CHECK(same_bits(x.out, wide.out));
    CHECK(same_bits(x.states.cells, wide.states.cells));
  }
}

TEMPLATE_TEST_CASE("tokens that no sequence owns are neither read nor written", "[offsets]", KDA_TEST_CALLS) {
  // Two tokens before the first sequence and three after the last belong to nobody: they are NaN.
  const sequence nobody_before = fresh(2, 7, -1), nobody_after = fresh(3, 8, -1);
  std::vector<sequence> padded = batch;
  padded.insert(padded.begin(), nobody_before);
  padded.push_back(nobody_after);
  const auto before = TestType::pool_of(5, 1);
  TestType plain(batch, before), x(padded, before);
  plain.run();

  auto args = x.args();
  const auto poison = [](auto& tensor) {
    const std::size_t width = tensor.size() / 16;  // 16 tokens
    put_nan(tensor, 0, 2 * width);
    put_nan(tensor, 13 * width, 3 * width);
  };
  if constexpr (requires { x.tensors; })
    poison(x.tensors.q), poison(x.tensors.k), poison(x.tensors.v), poison(x.tensors.gate), poison(x.tensors.beta);
  else
    poison(x.x);
  const auto inner = [](kda::index_list& l, testing::index n) {
    l.wide += 1;
    l.size = n;
  };
  inner(args.sequences.offsets, 6);
  inner(args.sequences.load_slots, 5);
  inner(args.sequences.store_slots, 5);
  inner(args.sequences.first_position, 5);
  args.sequences.has_initial_state.data += 1;
  args.sequences.has_initial_state.shape[0] = 5;
  std::vector want = x.out;
  std::copy(plain.out.begin(), plain.out.end(), want.begin() + 2 * x.row);
  REQUIRE(TestType::function()(args, scratch(5), kda::serial));
  CHECK(same_bits(x.out, want));
  CHECK(same_bits(x.states.cells, plain.states.cells));
}

TEMPLATE_TEST_CASE("slots may lie more than 2^31 elements into the pool", "[offsets]", KDA_TEST_CALLS) {
  // 4097 slots of 2^20 elements, 4 MiB of float: slot 2048 begins at element 2^31, slot 4096 at 2^32.
  constexpr testing::index stride = testing::index{1} << 20;
  const std::int64_t far_slots[] = {511, 512, 2047, 2048, 4096};
  const std::vector<sequence> near_batch{{2, 1, 4, 0, true}, {17, 2, 2, 3, true}, continued(1, 3, 1)};
  std::vector<sequence> far_batch = near_batch;
  for (sequence& s : far_batch) s.load = far_slots[s.load], s.store = far_slots[s.store];

  TestType x(near_batch, TestType::pool_of(5, 1)), y(far_batch, TestType::pool_of(1, 1));
  using type = typename decltype(x.states.cells)::value_type;
  const testing::index elements = x.states.stride - 7;
  const sparse<type> far(size(4097 * stride));
  if (far.data() == nullptr) KDA_SKIP("no address space of 16 GiB");
  for (std::int64_t n = 0; n < 5; ++n)
    std::copy_n(x.states.cells.begin() + n * x.states.stride, elements, far.data() + far_slots[n] * stride);
  x.run();
  auto args = y.args();
  args.states.data = far.data();
  args.states.slots = 4097;
  args.states.slot_stride = stride;
  REQUIRE(TestType::function()(args, scratch(3), kda::serial));
  CHECK(same_bits(y.out, x.out));
  for (std::int64_t n = 0; n < 5; ++n) {
    const type* near = x.states.cells.data() + n * x.states.stride;
    CHECK(std::memcmp(far.data() + far_slots[n] * stride, near, size(elements) * sizeof(type)) == 0);
  }
}

TEMPLATE_TEST_CASE("tokens may lie more than 2^31 elements into a tensor", "[offsets]", KDA_TEST_CALLS) {
  // Rows of one matrix 2^29 elements wide, whose columns are the tensors: token 4 begins at element 2^31, token 8 at
  // 2^32.
  constexpr testing::index width = testing::index{1} << 29, column = 4096, tokens = 9;
  const std::vector<sequence> all{continued(5, 1, 1), fresh(1, 2, 0), continued(3, 3, 2)};
  TestType x(all, TestType::pool_of(3, 1)), y = x;
  x.run();
  const sparse<float> far(size(tokens * width));  // floats or, in its first half, bf16
  if (far.data() == nullptr) KDA_SKIP("no address space of 18 GiB");
  testing::index next = 0;
  const auto move = [&](auto& v) {
    using type = std::remove_const_t<std::remove_pointer_t<decltype(v.data)>>;
    const testing::index row = v.stride[0];
    type* to = reinterpret_cast<type*>(far.data()) + next;
    next += column;
    for (testing::index token = 0; token < tokens; ++token) std::copy_n(v.data + token * row, row, to + token * width);
    v.data = to;
    v.stride[0] = width;
  };
  auto args = y.args();
  if constexpr (requires { args.q; })
    move(args.q), move(args.k), move(args.v), move(args.gate), move(args.beta);
  else
    move(args.x);
  auto& out = output_of(args);
  move(out);
  REQUIRE(TestType::function()(args, scratch(3), kda::serial));
  bool same = true;
  for (testing::index token = 0; token < tokens; ++token)
    same = same && std::memcmp(out.at(token), x.out.data() + token * x.row, size(x.row) * sizeof(*out.data)) == 0;
  CHECK(same);
  CHECK(same_bits(y.states.cells, x.states.cells));
}
