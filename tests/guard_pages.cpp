// SPDX-License-Identifier: Apache-2.0
// Kernels read and write nothing but what they are given: every array of every kernel ends at an inaccessible page, at every
// misalignment, among NaN; and a NaN stays in its own sequence and head.
#include "support/batches.hpp"
#include "support/guarded.hpp"
#include "support/kda_catch.hpp"

using namespace testing;

namespace {

// Moves arrays to guarded memory, each ending `misaligned` bytes (rounded down to whole elements) before the page.
class guards {
 public:
  explicit guards(std::size_t misaligned) : misaligned_(misaligned) {}

  template <class T>
  T* move(const T* from, std::size_t n) {
    const auto g = std::make_shared<guarded<T>>(n, misaligned_ - misaligned_ % sizeof(T));
    if (n != 0) std::memcpy(static_cast<void*>(g->data()), from, n * sizeof(T));
    owners_.push_back(g);
    const auto* first = reinterpret_cast<const unsigned char*>(g->data());
    arrays_.push_back({first, first + n * sizeof(T)});
    return g->data();
  }
  template <class T, std::size_t Rank>
  void move(kda::view<T, Rank>& v) {
    if (v.data == nullptr) return;
    std::size_t n = 1;
    for (const testing::index extent : v.shape) n *= size(extent);
    v.data = move<std::remove_const_t<T>>(v.data, n);
  }
  void move(kda::detail::no_gate&) {}
  void move(kda::index_list& l) { l.wide = move(l.wide, size(l.size)); }
  void move(kda::sequences& s) {
    move(s.offsets);
    move(s.load_slots);
    move(s.store_slots);
    move(s.has_initial_state);
    move(s.first_position);
  }
  template <class Params>
  void move_params(Params& p) {
    if constexpr (requires { p.a_log; }) {
      move(p.a_log);
      move(p.dt_bias);
    }
  }
  kda::workspace workspace(testing::index sequences) {
    const testing::index bytes = kda::workspace_bytes({.sequences = sequences});
    return {move(std::vector<unsigned char>(size(bytes), nan_bytes).data(), size(bytes)), bytes};
  }

  // Whether the bytes before each array, from the start of its page, and those up to the inaccessible page are as they were.
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
  std::size_t misaligned_;
  std::vector<std::shared_ptr<void>> owners_;
  std::vector<array> arrays_;
};

template <class F>
void for_each_misalignment(const F& f) {
  for (std::size_t m = 0; m < 64; m += emulated() ? 9u : 1u) {
    CAPTURE(m);
    f(m);
  }
}

template <class T>
bool same_as(const T* data, const std::vector<T>& want) {
  return std::memcmp(data, want.data(), want.size() * sizeof(T)) == 0;
}

// One call with sequences, from memory without guards and from guarded memory.
template <class Call>
void check_call(const typename Call::shape& shape) {
  const std::vector<sequence> batch{continued(18, 1, 2), fresh(1, 2, 0), continued(0, 3, 1), continued(2, 4, -1)};
  const auto before = Call::pool_of(3, 1, shape);
  Call plain(batch, before, shape), x(batch, before, shape);
  plain.run();
  plain.states.cells.resize(size(2 * before.stride + before.rows * before.row_stride - (before.row_stride - before.row)));
  for_each_misalignment([&](std::size_t m) {
    guards g(m);
    auto args = x.args();
    const auto* out = [&] {
      if constexpr (requires { args.q; }) {
        g.move(args.q), g.move(args.k), g.move(args.v), g.move(args.gate), g.move(args.beta), g.move(args.out);
        g.move_params(args.gate_params);
        return args.out.data;
      } else {
        g.move(args.x), g.move(args.weight), g.move(args.bias), g.move(args.y);
        return args.y.data;
      }
    }();
    g.move(args.sequences);
    args.states.data = g.move(args.states.data, plain.states.cells.size());
    REQUIRE(Call::function()(args, g.workspace(std::ssize(batch)), kda::serial));
    CHECK(same_as(out, plain.out));
    CHECK(same_as(args.states.data, plain.states.cells));
    CHECK(g.surroundings_untouched());
  });
}

// One call on tokens; `output` and `inputs` are its members.
template <class Call, class Args, class Output, class... Inputs>
void check_operation(Call call, Args args, Output output, Inputs... inputs) {
  auto& out = args.*output;
  std::vector<std::remove_pointer_t<decltype(out.data)>> want(size(out.shape[0] * out.stride[0]));
  fill_bytes(want, canary_bytes);
  out.data = want.data();
  REQUIRE(call(args, scratch(0), kda::serial));
  for_each_misalignment([&](std::size_t m) {
    guards g(m);
    Args guarded_args = args;
    (g.move(guarded_args.*inputs), ...);
    g.move(guarded_args.*output);
    if constexpr (requires { args.gate_params; }) g.move_params(guarded_args.gate_params);
    REQUIRE(call(guarded_args, g.workspace(0), kda::serial));
    CHECK(same_as((guarded_args.*output).data, want));
    CHECK(g.surroundings_untouched());
  });
}

}  // namespace

TEMPLATE_TEST_CASE("the delta rule stays within its arrays", "[guard_pages]", decode_call<specs::kda_given_key>,
                   prefill_call<specs::kda_given_key>, decode_call<specs::kda_bounded>, prefill_call<specs::kda_bounded>,
                   decode_call<specs::gdn_softplus>, prefill_call<specs::gdn_softplus>, decode_call<specs::delta_value>,
                   prefill_call<specs::delta_value>, decode_call<specs::kda_bf16_key>, prefill_call<specs::kda_bf16_key>,
                   decode_call<specs::kda_bf16_value>, prefill_call<specs::kda_bf16_value>, decode_call<specs::kda_mixed>,
                   prefill_call<specs::kda_mixed>, decode_call<specs::qwen>, prefill_call<specs::qwen>) {
  check_call<TestType>({.T = 0, .H = 1, .HV = 2, .K = 1, .V = 1});
  check_call<TestType>({.T = 0, .H = 1, .HV = 1, .K = 5, .V = 3});
  check_call<TestType>({.T = 0, .H = 1, .HV = 2, .K = 16, .V = 17});
  check_call<TestType>({.T = 0, .H = 2, .HV = 2, .K = 20, .V = 31});
  check_call<TestType>({.T = 0, .H = 1, .HV = 1, .K = 33, .V = 32});
  if (!emulated()) check_call<TestType>({.T = 0, .H = 1, .HV = 1, .K = 15, .V = 260});
}

TEMPLATE_TEST_CASE("the convolution stays within its arrays", "[guard_pages]", conv_call<specs::kda_bounded>,
                   conv_call<specs::gdn_softplus>, conv_call<specs::glm>, conv_call<specs::qwen>) {
  check_call<TestType>({.channels = 1, .width = 2, .columns = 1});
  check_call<TestType>({.channels = 7, .width = 3, .columns = 2});
  check_call<TestType>({.channels = 33, .width = 4, .columns = 3});
  check_call<TestType>({.channels = 261, .width = 4, .columns = 6});
}

TEMPLATE_TEST_CASE("gate, beta, l2norm and norm stay within their arrays", "[guard_pages]", specs::kda_bounded,
                   specs::kda_softplus, specs::gdn_softplus, specs::glm, specs::qwen) {
  using t = kda::detail::traits<TestType>;
  const auto& kernels = kernels_of<TestType>();
  for (const testing::index dim : {1, 5, 16, 31, 33}) {
    CAPTURE(dim);
    const geometry g{.T = 17, .H = 1, .HV = 2, .K = dim, .V = dim};
    packed_tensors<TestType> in(ordinary_problem<TestType>(g, 1));
    const auto args = in.args();

    using gate = kda::gate_args<TestType>;
    gate a{.x = args.gate, .gate_params = args.gate_params, .g = {}};
    std::copy(std::begin(a.x.shape), std::end(a.x.shape), a.g.shape);
    std::copy(std::begin(a.x.stride), std::end(a.x.stride), a.g.stride);
    check_operation(kernels.gate, a, &gate::g, &gate::x);

    using beta = kda::beta_args<TestType>;
    check_operation(kernels.beta, beta{.b = args.beta, .beta = kda::packed(static_cast<float*>(nullptr), g.T, g.HV)},
                    &beta::beta, &beta::b);

    using l2norm = kda::l2norm_args<TestType>;
    check_operation(kernels.l2norm,
                    l2norm{.x = args.q,
                           .eps = 1e-6f,
                           .scale = 0.5f,
                           .y = kda::packed(static_cast<float*>(nullptr), g.T, g.H, g.K)},
                    &l2norm::y, &l2norm::x);

    using norm = kda::norm_args<TestType>;
    const std::vector<float> weight = random_numbers(5).normals(g.V);
    check_operation(kernels.norm,
                    norm{.x = args.v,
                         .gate = args.v,
                         .weight = kda::packed(weight.data(), g.V),
                         .eps = 1e-5f,
                         .y = kda::packed(static_cast<typename t::io::out*>(nullptr), g.T, g.HV, g.V)},
                    &norm::y, &norm::x, &norm::gate, &norm::weight);
  }
}

TEMPLATE_TEST_CASE("a NaN stays in its own sequence and head", "[guard_pages]", decode_call<specs::kda_given_key>,
                   prefill_call<specs::kda_given_key>, decode_call<specs::kda_bounded>, prefill_call<specs::kda_bounded>,
                   decode_call<specs::gdn_softplus>, prefill_call<specs::gdn_softplus>, decode_call<specs::kda_mixed>,
                   prefill_call<specs::kda_mixed>, decode_call<specs::qwen>, prefill_call<specs::qwen>) {
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
      std::memset(static_cast<void*>(tensor.data() + first), nan_bytes, (last - first) * sizeof(tensor[0]));
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
      for (std::size_t row = 1; row < size(2 * tokens); row += 2)
        std::memset(static_cast<void*>(tensor.data() + row * width), nan_bytes, width * sizeof(tensor[0]));
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
