// SPDX-License-Identifier: Apache-2.0
// Kernels read and write nothing but what they are given: every array of every kernel ends at an inaccessible page, at
// every misalignment, among NaN; and a NaN stays in its own sequence and head.
#include "support/batches.hpp"
#include "support/guarded.hpp"
#include "support/kda_catch.hpp"

using namespace testing;

namespace {

// Moves arrays to guarded memory, each ending `misaligned` bytes (rounded down to whole elements) before the page.
class guards {
 public:
  explicit guards(std::size_t misaligned) : misaligned_(misaligned) {}

  template <class T> T* move(const T* from, std::size_t n) {
    const auto g = std::make_shared<guarded<T>>(n, misaligned_ - misaligned_ % sizeof(T));
    if (n != 0) std::memcpy(static_cast<void*>(g->data()), from, n * sizeof(T));
    owners_.push_back(g);
    remember(g->data(), n * sizeof(T));
    return g->data();
  }
  template <class T, std::size_t Rank> void move(kda::view<T, Rank>& v) {
    if (v.data != nullptr) v.data = move<std::remove_const_t<T>>(v.data, elements_of(v));
  }
  void move(kda::index_list& l) { l.wide = move(l.wide, size(l.size)); }
  template <class Args> void move_all(Args& args) {
    for_each_input(args, [&](auto& input) { move(input); });
    move(output_of(args));
  }

  // The same memory for every call, since the system takes its time to hand out pages. Any byte will do for a
  // workspace.
  kda::workspace workspace(testing::index sequences) {
    static const guarded<unsigned char> memory(size(kda::workspace_bytes({.sequences = 16})) + 64);
    const auto bytes = size(kda::workspace_bytes({.sequences = sequences}));
    std::memset(memory.data(), nan_bytes, memory.size());
    unsigned char* data = memory.data() + memory.size() - bytes - (misaligned_ + misaligned_ / 2 % 2);
    remember(data, bytes);
    return {data, static_cast<testing::index>(bytes)};
  }

  // Whether the bytes before each array, from the start of its page, and those up to the inaccessible page are as they
  // were.
  [[nodiscard]] bool surroundings_untouched() const {
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto untouched = [](const unsigned char* first, std::uintptr_t n) {
      return std::all_of(first, first + n, [](unsigned char byte) { return byte == nan_bytes; });
    };
    return std::all_of(arrays_.begin(), arrays_.end(), [&](const array& a) {
      const std::uintptr_t before = reinterpret_cast<std::uintptr_t>(a.first) % page;
      const std::uintptr_t after = (page - reinterpret_cast<std::uintptr_t>(a.last) % page) % page;
      return untouched(a.first - before, before) && untouched(a.last, after);
    });
  }

 private:
  struct array {
    const unsigned char *first, *last;
  };
  void remember(const void* data, std::size_t bytes) {
    const auto* first = static_cast<const unsigned char*>(data);
    arrays_.push_back({first, first + bytes});
  }
  std::size_t misaligned_;
  std::vector<std::shared_ptr<void>> owners_;
  std::vector<array> arrays_;
};

template <class F> void for_each_misalignment(const F& f) {
  for (std::size_t m = 0; m < 64; m += emulated() ? 10u : 2u) {
    CAPTURE(m);
    f(m);
  }
}

template <class T> bool same_as(const T* data, const std::vector<T>& want) {
  return std::memcmp(data, want.data(), want.size() * sizeof(T)) == 0;
}

// One call with sequences, from memory without guards and from guarded memory.
template <class Call> void check_call(const typename Call::shape& shape) {
  const std::vector<sequence> batch{continued(18, 1, 2), fresh(1, 2, 0), continued(0, 3, 1), continued(2, 4, -1)};
  const auto before = Call::pool_of(3, 1, shape);
  Call plain(batch, before, shape), x(batch, before, shape);
  plain.run();
  plain.states.cells.resize(before.reach());
  for_each_misalignment([&](std::size_t m) {
    guards g(m);
    auto args = x.args();
    g.move_all(args);
    args.states.data = g.move(args.states.data, before.reach());
    REQUIRE(Call::function()(args, g.workspace(std::ssize(batch)), kda::serial));
    CHECK(same_as(output_of(args).data, plain.out));
    CHECK(same_as(args.states.data, plain.states.cells));
    CHECK(g.surroundings_untouched());
  });
}

}  // namespace

TEMPLATE_TEST_CASE("the delta rule stays within its arrays", "[guard_pages]", decode_call<specs::kda_given_key>,
                   prefill_call<specs::kda_given_key>, decode_call<specs::kda_bounded>,
                   prefill_call<specs::kda_bounded>, decode_call<specs::gdn_softplus>,
                   prefill_call<specs::gdn_softplus>, decode_call<specs::delta_value>, prefill_call<specs::delta_value>,
                   decode_call<specs::kda_bf16_key>, prefill_call<specs::kda_bf16_key>,
                   decode_call<specs::kda_bf16_value>, prefill_call<specs::kda_bf16_value>,
                   decode_call<specs::kda_mixed>, prefill_call<specs::kda_mixed>, decode_call<specs::qwen>,
                   prefill_call<specs::qwen>, decode_call<specs::kda_f16>, prefill_call<specs::kda_f16>) {
  check_call<TestType>({.T = 0, .H = 1, .HV = 2, .K = 1, .V = 1});
  check_call<TestType>({.T = 0, .H = 1, .HV = 1, .K = 5, .V = 3});
  check_call<TestType>({.T = 0, .H = 1, .HV = 2, .K = 16, .V = 17});
  check_call<TestType>({.T = 0, .H = 2, .HV = 2, .K = 20, .V = 31});
  check_call<TestType>({.T = 0, .H = 1, .HV = 1, .K = 33, .V = 32});
  if (!emulated()) check_call<TestType>({.T = 0, .H = 1, .HV = 1, .K = 15, .V = 260});
}

TEMPLATE_TEST_CASE("the convolution stays within its arrays", "[guard_pages]", conv_call<specs::kda_bounded>,
                   conv_call<specs::gdn_softplus>, conv_call<specs::glm>, conv_call<specs::qwen>,
                   conv_call<specs::kda_f16>) {
  check_call<TestType>({.channels = 1, .width = 2, .columns = 1});
  check_call<TestType>({.channels = 7, .width = 3, .columns = 2});
  check_call<TestType>({.channels = 33, .width = 4, .columns = 3});
  check_call<TestType>({.channels = 261, .width = 4, .columns = 6});
}

TEMPLATE_TEST_CASE("gate, beta, l2norm and norm stay within their arrays", "[guard_pages]", specs::kda_bounded,
                   specs::kda_softplus, specs::gdn_softplus, specs::glm, specs::qwen, specs::kda_f16) {
  for (const testing::index dim : {1, 5, 16, 31, 33}) {
    CAPTURE(dim);
    token_operations<TestType> x({.T = 17, .H = 1, .HV = 2, .K = dim, .V = dim});
    x.for_each([&](auto call, auto args) {
      REQUIRE(call(args, scratch(0), kda::serial));
      const auto& want = output_of(args);
      const std::size_t bytes = elements_of(want) * sizeof(*want.data);
      for_each_misalignment([&](std::size_t m) {
        guards g(m);
        auto guarded_args = args;
        g.move_all(guarded_args);
        void* got = output_of(guarded_args).data;
        std::memset(got, canary_bytes, bytes);
        REQUIRE(call(guarded_args, g.workspace(0), kda::serial));
        CHECK(std::memcmp(got, want.data, bytes) == 0);
        CHECK(g.surroundings_untouched());
      });
    });
  }
}

TEMPLATE_TEST_CASE("a NaN stays in its own sequence and head", "[guard_pages]", decode_call<specs::kda_given_key>,
                   prefill_call<specs::kda_given_key>, decode_call<specs::kda_bounded>,
                   prefill_call<specs::kda_bounded>, decode_call<specs::gdn_softplus>,
                   prefill_call<specs::gdn_softplus>, decode_call<specs::kda_mixed>, prefill_call<specs::kda_mixed>,
                   decode_call<specs::qwen>, prefill_call<specs::qwen>) {
  for (const testing::index dim : {33, 40, 100}) {
    CAPTURE(dim);
    const geometry g{.T = 0, .H = 2, .HV = 2, .K = dim, .V = dim};
    const std::vector<sequence> batch{continued(emulated() ? 3 : 19, 1, 0), continued(5, 2, 1), continued(3, 3, 2)};
    const auto before = TestType::pool_of(3, 1, g);
    TestType clean(batch, before, g), x(batch, before, g);
    clean.run();

    // The sequence in the middle is NaN: tensors and state.
    const auto poison = [&](auto& tensor) {
      const auto width = tensor.size() / size(x.lists.offsets.back());
      const auto first = size(x.lists.offsets[1]) * width, last = size(x.lists.offsets[2]) * width;
      put_nan(tensor, first, last - first);
    };
    poison(x.tensors.q), poison(x.tensors.k), poison(x.tensors.v), poison(x.tensors.gate), poison(x.tensors.beta);
    auto nan_slot = before.slot(1);
    fill_bytes(nan_slot, nan_bytes);
    x.states.set_slot(1, nan_slot);
    x.run();
    for (const std::size_t n : {0u, 2u}) {
      CHECK(same_bits(x.rows(n), clean.rows(n)));
      CHECK(same_bits(x.states.slot(static_cast<std::int64_t>(n)), clean.states.slot(static_cast<std::int64_t>(n))));
    }

    // The second head is NaN everywhere: tensors and parameters.
    TestType y(batch, before, g);
    const auto poison_head = [&](auto& tensor, testing::index tokens) {
      const auto width = tensor.size() / size(2 * tokens);
      for (std::size_t row = 1; row < size(2 * tokens); row += 2) put_nan(tensor, row * width, width);
    };
    const testing::index tokens = y.lists.offsets.back();
    poison_head(y.tensors.q, tokens), poison_head(y.tensors.k, tokens), poison_head(y.tensors.v, tokens);
    poison_head(y.tensors.gate, tokens), poison_head(y.tensors.beta, tokens);
    poison_head(y.tensors.a_log, 1), poison_head(y.tensors.dt_bias, 1);
    y.run();
    const auto piece = [](const auto& all, testing::index first, testing::index n) {
      return std::vector(all.begin() + first, all.begin() + first + n);
    };
    bool same = true;
    for (testing::index token = 0; token < tokens; ++token)
      same = same && same_bits(piece(y.out, 2 * token * dim, dim), piece(clean.out, 2 * token * dim, dim));
    for (std::int64_t n = 0; n < 3; ++n)
      same = same && same_bits(piece(y.states.slot(n), 0, dim * dim), piece(clean.states.slot(n), 0, dim * dim));
    CHECK(same);
  }
}
