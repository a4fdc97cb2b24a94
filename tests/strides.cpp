// SPDX-License-Identifier: Apache-2.0
// Strided views: an engine's tensors are used where they lie, give the bits of contiguous ones, and what lies between
// their elements is neither read (it is NaN) nor written.
#include "support/batches.hpp"
#include "support/kda_catch.hpp"

#include <tuple>

using namespace testing;

namespace {

template <class T, std::size_t Rank, class F> void for_each_element(const kda::view<T, Rank>& v, const F& f) {
  testing::index extent[3] = {1, 1, 1};
  std::copy_n(v.shape, Rank, extent);
  for (testing::index i = 0; i < extent[0]; ++i)
    for (testing::index j = 0; j < extent[1]; ++j)
      for (testing::index k = 0; k < extent[2]; ++k) {
        if constexpr (Rank == 3)
          f(*v.at(i, j, k));
        else
          f(*v.at(i, j));
      }
}
template <class T, std::size_t Rank> auto gathered(const kda::view<T, Rank>& v) {
  std::vector<std::remove_const_t<T>> x;
  for_each_element(v, [&](T& e) { x.push_back(e); });
  return x;
}
template <class T, std::size_t Rank> void scatter(const kda::view<T, Rank>& v, const std::vector<T>& x) {
  std::size_t i = 0;
  for_each_element(v, [&](T& e) { e = x[i++]; });
}

// How tensors lie in memory. columns: blocks of one wide matrix, side by side. head_major: [H, T, D]. padded: a gap
// behind every row of every head.
enum class form { columns, head_major, padded };

// Memory full of NaN, into which tensors are strewn.
template <class T> class storage {
 public:
  static constexpr testing::index width = 1200;
  storage(form f, testing::index tokens) : form_(f), cells_(size(tokens * width)) { fill_bytes(cells_, nan_bytes); }

  /// Room for a tensor [T, H, D] or [T, H].
  template <std::size_t Rank> kda::view<T, Rank> reserve(const testing::index (&shape)[Rank]) {
    const testing::index tokens = shape[0], heads = shape[1], dim = Rank == 3 ? shape[Rank - 1] : 1;
    kda::view<T, Rank> v{.data = cells_.data() + next_};
    std::copy_n(shape, Rank, v.shape);
    v.stride[Rank - 1] = 1;
    v.stride[1] = form_ == form::columns ? dim : form_ == form::head_major ? tokens * dim : dim + 3;
    v.stride[0] = form_ == form::columns ? width : form_ == form::head_major ? dim : heads * (dim + 3) + 5;
    next_ += form_ == form::columns ? heads * dim + 5 : tokens * (heads * (dim + 3) + 5);
    if (next_ > (form_ == form::columns ? width : std::ssize(cells_)))
      throw std::runtime_error("the storage is too small");
    return v;
  }
  /// A copy of a tensor.
  template <std::size_t Rank> kda::view<T, Rank> put(const kda::view<const T, Rank>& from) {
    const kda::view<T, Rank> to = reserve(from.shape);
    scatter(to, gathered(from));
    return to;
  }
  /// Whether everything but the elements of `written` has the bits of `before`.
  template <std::size_t Rank> [[nodiscard]] bool same_but(const kda::view<T, Rank>& written, storage before) const {
    kda::view<T, Rank> there = written;
    there.data = before.cells_.data() + (written.data - cells_.data());
    scatter(there, gathered(written));
    return same_bits(before.cells_, cells_);
  }

 private:
  form form_;
  std::vector<T> cells_;
  testing::index next_ = 3;
};

// One storage for each type that a spec may name.
struct storages {
  std::tuple<storage<float>, storage<kda::bf16>, storage<kda::f16>> all;
  storages(form f, testing::index tokens)
      : all(storage<float>(f, tokens), storage<kda::bf16>(f, tokens), storage<kda::f16>(f, tokens)) {}
  template <class T> storage<T>& of() { return std::get<storage<T>>(all); }
  template <class T, std::size_t Rank>
  requires(Rank > 1) void move_in(kda::view<const T, Rank>& v) { v = of<T>().put(v); }
  template <class Array> void move_in(const Array&) {}  // vectors and lists lie in one piece
};

constexpr form forms[] = {form::columns, form::head_major, form::padded};

// Calls `run` with output views of the three forms, and holds them against `want`.
template <class T, std::size_t Rank, class MakeInputs, class Run>
void check_forms(const kda::view<T, Rank>& packed_out, const std::vector<T>& want, const MakeInputs& move_inputs,
                 const Run& run) {
  for (const form f : forms) {
    CAPTURE(static_cast<int>(f));
    storages memory(f, packed_out.shape[0]);
    move_inputs(memory);
    const kda::view<T, Rank> out = memory.of<T>().reserve(packed_out.shape);
    const storages before = memory;
    REQUIRE(run(out));
    CHECK(same_bits(gathered(out), want));
    CHECK(memory.of<T>().same_but(out, std::get<storage<T>>(before.all)));
  }
}

}  // namespace

TEMPLATE_TEST_CASE("the delta rule takes its tensors as they lie", "[strides]", decode_call<specs::kda_given_key>,
                   prefill_call<specs::kda_given_key>, decode_call<specs::kda_bounded>,
                   prefill_call<specs::kda_bounded>, decode_call<specs::gdn_softplus>,
                   prefill_call<specs::gdn_softplus>, decode_call<specs::kda_mixed>, prefill_call<specs::kda_mixed>,
                   decode_call<specs::qwen>, prefill_call<specs::qwen>, decode_call<specs::kda_f16>,
                   prefill_call<specs::gdn_f16_stages>) {
  const std::vector<sequence> batch{continued(18, 1, 1), fresh(1, 2, 0), continued(4, 3, 2)};
  auto shape = TestType::usual;
  shape.V = GENERATE(19, 32);  // with and without a tail: values are copied, or read where they lie
  CAPTURE(shape.V);
  const auto before = TestType::pool_of(4, 1, shape);
  TestType plain(batch, before, shape), strided(batch, before, shape);
  plain.run();
  auto args = strided.args();
  check_forms(
      args.out, plain.out,
      [&](storages& memory) {
        args = strided.args();
        for_each_input(args, [&](auto& v) { memory.move_in(v); });
      },
      [&](const auto& out) {
        strided.states = before;
        args.out = out;
        args.states.data = strided.states.cells.data();
        const kda::status s = TestType::function()(args, scratch(3), kda::serial);
        CHECK(same_bits(strided.states.cells, plain.states.cells));
        return s;
      });
}

TEMPLATE_TEST_CASE("beta and the gate of one number a head may be interleaved", "[strides]",
                   decode_call<specs::gdn_softplus>, prefill_call<specs::gdn_softplus>, decode_call<specs::qwen>,
                   prefill_call<specs::qwen>) {
  const std::vector<sequence> batch{continued(18, 1, 1), fresh(1, 2, 0), continued(4, 3, 2)};
  TestType plain(batch, TestType::pool_of(4, 1)), strided = plain;
  plain.run();
  auto args = strided.args();
  using type = std::remove_const_t<std::remove_pointer_t<decltype(args.beta.data)>>;
  const testing::index tokens = args.beta.shape[0], heads = args.beta.shape[1];
  for (const bool by_head : {true, false}) {  // [T, HV, 2] and [T, 2, HV]
    std::vector<type> ba(size(tokens * (2 * heads + 1)));
    fill_bytes(ba, nan_bytes);
    kda::view<type, 2> b{ba.data(), {tokens, heads}, {2 * heads + 1, by_head ? 2 : 1}}, a = b;
    a.data += by_head ? 1 : heads;
    scatter(b, gathered(plain.args().beta));
    scatter(a, gathered(plain.args().gate));
    args.beta = b;
    args.gate = a;
    strided.states = TestType::pool_of(4, 1);
    args.states.data = strided.states.cells.data();
    REQUIRE(TestType::function()(args, scratch(3), kda::serial));
    CHECK(same_bits(strided.out, plain.out));
    CHECK(same_bits(strided.states.cells, plain.states.cells));
  }
}

TEMPLATE_TEST_CASE("slots may lie any distance apart", "[strides]", KDA_TEST_CALLS) {
  const std::vector<sequence> batch{continued(18, 1, 1), {1, 2, 0, 3, true}, fresh(4, 3, 2)};
  const auto before = TestType::pool_of(4, 2);
  TestType plain(batch, before);
  plain.run();
  const testing::index least = before.stride - 7;
  for (const testing::index stride : {least, least + 1, least + 4096, 2 * before.stride}) {
    CAPTURE(stride);
    auto cells = before.cells;
    cells.resize(size(4 * stride));
    fill_bytes(cells, canary_bytes);
    const auto canaries = cells;
    const auto copy_slots = [&](const auto& from, auto& to) {
      for (std::int64_t n = 0; n < 4; ++n)
        std::copy_n(from.cells.begin() + n * from.stride, least, to.begin() + n * stride);
    };
    copy_slots(before, cells);
    TestType x(batch, before);
    auto args = x.args();
    args.states.data = cells.data();
    args.states.slot_stride = stride;
    REQUIRE(TestType::function()(args, scratch(3), kda::serial));
    CHECK(same_bits(x.out, plain.out));
    auto want = canaries;
    copy_slots(plain.states, want);
    CHECK(same_bits(cells, want));
  }
}

TEMPLATE_TEST_CASE("the convolution takes its tensors as they lie", "[strides]", conv_call<specs::kda_bounded>,
                   conv_call<specs::gdn_softplus>, conv_call<specs::glm>, conv_call<specs::qwen>,
                   conv_call<specs::kda_f16>) {
  using type = typename TestType::type;
  const std::vector<sequence> batch{continued(6, 1, 1), fresh(2, 2, 0), continued(1, 3, 2)};
  const auto before = TestType::pool_of(4, 1);
  TestType plain(batch, before), strided(batch, before);
  plain.run();

  // x and y side by side in one matrix, the weights as [W, C + 2] with the channels adjacent
  const testing::index C = TestType::usual.channels, W = TestType::usual.width, tokens = 9;
  storage<type> memory(form::columns, tokens);
  auto args = strided.args();
  args.x = memory.put(args.x);
  args.y = memory.reserve(args.y.shape);
  std::vector<float> taps(size(W * (C + 2)));
  fill_bytes(taps, nan_bytes);
  const kda::view<float, 2> transposed{taps.data(), {C, W}, {1, C + 2}};
  scatter(transposed, plain.weight);
  args.weight = transposed;
  const storage<type> untouched = memory;
  REQUIRE(TestType::function()(args, scratch(3), kda::serial));
  CHECK(same_bits(gathered(args.y), plain.out));
  CHECK(memory.same_but(args.y, untouched));
  CHECK(same_bits(strided.states.cells, plain.states.cells));

  // q, k and v each in a call of its own, with its own columns of x, y and the state
  strided.states = before;
  fill_bytes(strided.out, canary_bytes);
  testing::index first = 0;
  for (const testing::index n : {testing::index{80}, testing::index{80}, C - 160}) {
    auto part = strided.args();
    const auto narrow = [&](auto& v) {
      v.data += first;
      v.shape[1] = n;
    };
    narrow(part.x);
    narrow(part.y);
    part.weight.data += first * W;
    part.weight.shape[0] = n;
    part.bias.data += first;
    part.bias.shape[0] = n;
    part.states.data += first * (TestType::channel_major ? part.states.stride : 1);
    REQUIRE(TestType::function()(part, scratch(3), kda::serial));
    first += n;
  }
  CHECK(same_bits(strided.out, plain.out));
  CHECK(same_bits(strided.states.cells, plain.states.cells));
}

TEMPLATE_TEST_CASE("gate, beta, l2norm and norm take their tensors as they lie", "[strides]", specs::kda_bounded,
                   specs::kda_softplus, specs::gdn_softplus, specs::glm, specs::qwen, specs::kda_f16) {
  token_operations<TestType> x({.T = 19, .H = 2, .HV = 4, .K = 20, .V = 19});
  x.for_each([](auto call, auto args) {
    REQUIRE(call(args, scratch(0), kda::serial));
    auto strided = args;
    check_forms(
        output_of(args), gathered(output_of(args)),
        [&](storages& memory) {
          strided = args;
          for_each_input(strided, [&](auto& v) { memory.move_in(v); });
        },
        [&](const auto& out) {
          output_of(strided) = out;
          return call(strided, scratch(0), kda::serial);
        });
  });
}
