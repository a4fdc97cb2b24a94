// SPDX-License-Identifier: Apache-2.0
// Bad input: each mistake in each argument of each kernel gives a status that names the argument as the call spells it,
// and nothing has been written and no task run.
#include "support/batches.hpp"
#include "support/kda_catch.hpp"

#include <functional>
#include <limits>

using namespace testing;
using kda::error;

namespace {

constexpr testing::index largest = std::numeric_limits<testing::index>::max(),
                         least = std::numeric_limits<testing::index>::min();
constexpr float not_a_number = std::numeric_limits<float>::quiet_NaN(),
                infinity = std::numeric_limits<float>::infinity();
constexpr float denormal = std::numeric_limits<float>::denorm_min();

// What a change may spoil.
template <class Args> struct parts {
  Args args;
  kda::workspace workspace;
  kda::executor executor;
};

// A function that spoils them. Two pointers: there are many hundreds of such functions.
template <class Args> class change {
 public:
  template <class F>
  change(const F& f) : f_(&f), call_([](const void* g, parts<Args>& p) { (*static_cast<const F*>(g))(p); }) {}
  void operator()(parts<Args>& p) const { call_(f_, p); }

 private:
  const void* f_;
  void (*call_)(const void*, parts<Args>&);
};

// A call that is right, and what it answers when a change has been made to it. `written`: outputs and states.
template <class Args> struct right_call {
  kda::call<Args> call;
  Args args;
  testing::index sequences;
  std::function<std::vector<unsigned char>()> written;
  testing::index kept_states = 0;

  kda::status changed(const change<Args>& f, std::ptrdiff_t& tasks) const {
    scratch memory(sequences, 1, kept_states);
    const auto run = [](void* self, std::ptrdiff_t count, kda::executor::task task, void* context) {
      *static_cast<std::ptrdiff_t*>(self) += count;
      for (std::ptrdiff_t i = 0; i < count; ++i) task(context, i);
    };
    parts<Args> p{args, memory, {.self = &tasks, .run = run}};
    f(p);
    return call(p.args, p.workspace, p.executor);
  }
  void refuses(error what, const char* argument, const change<Args>& f, int line = __builtin_LINE()) const {
    std::ptrdiff_t tasks = 0;
    const std::vector<unsigned char> before = written();
    const kda::status s = changed(f, tasks);
    INFO("line " << line << ": " << s.argument << " " << kda::message(s.what));
    CHECK(std::string(s.argument) == argument);
    CHECK(s.what == what);
    CHECK((tasks == 0 && written() == before));
  }
  void accepts(const change<Args>& f, int line = __builtin_LINE()) const {
    std::ptrdiff_t tasks = 0;
    const kda::status s = changed(f, tasks);
    INFO("line " << line << ": " << s.argument << " " << kda::message(s.what));
    CHECK(s);
  }

  // A packed tensor whose extents are all above 1. blame: who is named when another extent is packed.
  template <class Tensor>
  void refuses_tensors(Tensor Args::*tensor, const char* name, const std::vector<const char*>& blame,
                       bool free_channel = false) const {
    INFO("tensor " << name);
    const std::size_t rank = blame.size();
    for (std::size_t d = 0; d < rank; ++d) {
      CAPTURE(d);
      for (const testing::index by : {-1, 1})
        refuses(error::wrong_shape, blame[d], [&](auto& p) {
          auto& v = p.args.*tensor;
          v.shape[d] += by;
          for (std::size_t i = rank - 1; i > 0; --i) v.stride[i - 1] = v.stride[i] * v.shape[i];
        });
      for (const testing::index extent : {testing::index{0}, testing::index{-1}, least})
        refuses(error::wrong_shape, extent == 0 && d == 0 ? blame[0] : name,
                [&](auto& p) { (p.args.*tensor).shape[d] = extent; });
      for (const testing::index stride :
           {testing::index{0}, -(args.*tensor).stride[d], (args.*tensor).stride[d] - 1, largest, least})
        refuses(error::wrong_stride, name, [&](auto& p) { (p.args.*tensor).stride[d] = stride; });
    }
    if (!free_channel) refuses(error::wrong_stride, name, [&](auto& p) { (p.args.*tensor).stride[rank - 1] = 2; });
    refuses(error::null_pointer, name, [&](auto& p) { (p.args.*tensor).data = nullptr; });
  }

  // A vector that may be left out; `of` finds it in the arguments.
  template <class Of> void refuses_vectors(const char* name, const Of& of) const {
    INFO("vector " << name);
    refuses(error::wrong_shape, name, [&](auto& p) { of(p.args).shape[0] -= 1; });
    refuses(error::wrong_shape, name, [&](auto& p) { of(p.args).shape[0] = 0; });
    refuses(error::wrong_shape, name, [&](auto& p) { of(p.args).shape[0] = -1; });
    refuses(error::null_pointer, name, [&](auto& p) { of(p.args).data = nullptr; });
    for (const testing::index stride : {testing::index{0}, testing::index{-1}, testing::index{2}, largest})
      refuses(error::wrong_stride, name, [&](auto& p) { of(p.args).stride[0] = stride; });
  }

  void refuses_workspaces() const {
    refuses(error::null_pointer, "workspace", [](auto& p) { p.workspace.data = nullptr; });
    for (const testing::index bytes : {args_workspace_bytes() - 1, testing::index{0}, testing::index{-1}, least})
      refuses(error::workspace_too_small, "workspace", [&](auto& p) { p.workspace.bytes = bytes; });
    for (const testing::index concurrency : {testing::index{2}, testing::index{1000}, largest / 1000, largest})
      refuses(error::workspace_too_small, "workspace", [&](auto& p) { p.executor.concurrency = concurrency; });
    for (const testing::index concurrency : {testing::index{0}, testing::index{-1}, least})
      accepts([&](auto& p) { p.executor.concurrency = concurrency; });
  }
  [[nodiscard]] testing::index args_workspace_bytes() const {
    return kda::workspace_bytes({.sequences = sequences, .kept_states = kept_states});
  }

  // A list of a fixed size above 1; `of` finds it in the sequences.
  template <class Of> void refuses_lists(const char* name, const Of& of, bool may_be_left_out = false) const {
    INFO("list " << name);
    for (const testing::index by : {-1, 1})
      refuses(error::wrong_shape, name, [&](auto& p) { of(p.args.sequences).size += by; });
    for (const testing::index n : {testing::index{-1}, largest, least})
      refuses(error::wrong_shape, name, [&](auto& p) { of(p.args.sequences).size = n; });
    refuses(error::null_pointer, name, [&](auto& p) { of(p.args.sequences).wide = nullptr; });
    for (const testing::index stride : {testing::index{0}, testing::index{-1}, largest, largest / 8, least})
      refuses(error::wrong_stride, name, [&](auto& p) { of(p.args.sequences).stride = stride; });
    for (const testing::index step : {testing::index{-1}, largest, least})
      refuses(error::wrong_stride, name,
              [&](auto& p) { of(p.args.sequences) = kda::multiples(step, of(p.args.sequences).size); });
    if (may_be_left_out)
      accepts([&](auto& p) { of(p.args.sequences) = {}; });
    else
      refuses(error::wrong_shape, name, [&](auto& p) { of(p.args.sequences) = {}; });
  }

  // Flags, one for each sequence; `of` finds them in the sequences.
  template <class Of> void refuses_flags(const char* name, const Of& of) const {
    INFO("flags " << name);
    for (const testing::index n : {sequences - 1, sequences + 1, testing::index{0}, testing::index{-1}, largest, least})
      refuses(error::wrong_shape, name, [&](auto& p) { of(p.args.sequences).shape[0] = n; });
    for (const testing::index stride : {testing::index{0}, testing::index{-1}, testing::index{2}, largest})
      refuses(error::wrong_stride, name, [&](auto& p) { of(p.args.sequences).stride[0] = stride; });
    refuses(error::null_pointer, name, [&](auto& p) { of(p.args.sequences).data = nullptr; });
  }

  void refuses_gate_params() const {
    if constexpr (requires { args.gate_params.lower_bound; })
      for (const float bound : {not_a_number, infinity, -infinity, 0.f, -0.f, denormal, 5.f})
        refuses(error::wrong_value, "gate_params.lower_bound",
                [&](auto& p) { p.args.gate_params.lower_bound = bound; });
    if constexpr (requires { args.gate_params.a_log; }) {
      refuses_vectors(
          "gate_params.a_log", [](auto& a) -> auto& { return a.gate_params.a_log; });
      refuses_vectors(
          "gate_params.dt_bias", [](auto& a) -> auto& { return a.gate_params.dt_bias; });
      refuses(error::wrong_shape, "gate_params.dt_bias", [](auto& p) { p.args.gate_params.dt_bias.shape[0] += 1; });
    }
  }
};

template <class T> void append_bytes(std::vector<unsigned char>& to, const T* data, std::size_t n) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(data);
  to.insert(to.end(), bytes, bytes + n * sizeof(T));
}

// x's call by one function.
template <class Call, class Function> auto right_call_of(Call& x, Function function) {
  const auto written = [&x] {
    std::vector<unsigned char> bytes;
    append_bytes(bytes, x.out.data(), x.out.size());
    append_bytes(bytes, x.states.cells.data(), x.states.cells.size());
    return bytes;
  };
  return right_call<decltype(x.args())>{function, x.args(), x.sequences(), written, x.lists.kept_states()};
}
// x's call by each function that takes such arguments.
template <class Call, class Test> void for_each_right_call(Call& x, const Test& test) {
  std::vector functions{Call::function()};
  if constexpr (requires { x.tensors; })
    functions = {kernels_of<typename Call::spec>().decode, kernels_of<typename Call::spec>().prefill};
  for (const auto function : functions) test(right_call_of(x, function));
}

const std::vector<sequence> batch{continued(3, 1, 1), {3, 2, 2, 0, true}, fresh(2, 3, 3), continued(0, 4, 4)};

}  // namespace

TEMPLATE_TEST_CASE("mistakes in the arguments of the delta rule are named", "[bad_input]",
                   decode_call<specs::kda_bounded>, decode_call<specs::gdn_softplus>, decode_call<specs::kda_mixed>,
                   decode_call<specs::delta_key>) {
  using spec = typename TestType::spec;
  using args = kda::delta_rule_args<spec>;
  constexpr bool per_channel = kda::detail::is_per_channel<spec>;
  TestType x(batch, TestType::pool_of(5, 1));
  for_each_right_call(x, [](const auto& right) {
    right.refuses_tensors(&args::q, "q", {"q", "k", per_channel ? "q" : "k"});
    right.refuses_tensors(&args::k, "k", {"k", "k", "k"});
    right.refuses_tensors(&args::v, "v", {"v", "v", "out"});
    if constexpr (per_channel)
      right.refuses_tensors(&args::gate, "gate", {"gate", "gate", "gate"});
    else if constexpr (kda::detail::is_decaying<spec>)
      right.refuses_tensors(&args::gate, "gate", {"gate", "gate"}, true);
    right.refuses_tensors(&args::beta, "beta", {"beta", "beta"}, true);
    right.refuses_tensors(&args::out, "out", {"out", "out", "out"});

    const auto all = [](auto& p, std::size_t dimension, testing::index extent) {
      p.args.q.shape[dimension] = p.args.k.shape[dimension] = extent;
      if constexpr (per_channel) p.args.gate.shape[dimension] = extent;
    };
    for (const testing::index K : {testing::index{0}, testing::index{257}, testing::index{-1}, largest})
      right.refuses(error::wrong_shape, "q", [&](auto& p) { all(p, 2, K); });
    right.refuses(error::wrong_shape, "q", [&](auto& p) { p.args.q.shape[1] = p.args.k.shape[1] = 0; });
    right.refuses(error::wrong_shape, "v", [&](auto& p) {  // 4 value heads of 3 heads
      p.args.q.shape[1] = p.args.k.shape[1] = 3;
      p.args.q.stride[0] = p.args.k.stride[0] = 60;
    });
    for (const testing::index HV : {0, 1, 3, -2})  // of 2 heads
      right.refuses(error::wrong_shape, "v", [&](auto& p) {
        p.args.v.shape[1] = p.args.beta.shape[1] = p.args.out.shape[1] = HV;
        if constexpr (kda::detail::is_decaying<spec>) p.args.gate.shape[1] = HV;
      });
    for (const testing::index V : {0, -1})
      right.refuses(error::wrong_shape, "v", [&](auto& p) { p.args.v.shape[2] = p.args.out.shape[2] = V; });

    right.refuses_gate_params();
    for (const float scale : {not_a_number, infinity, -infinity, -1.f, denormal, -denormal})
      right.refuses(error::wrong_value, "scale", [&](auto& p) { p.args.scale = scale; });
    for (const float scale : {0.f, -0.f, std::numeric_limits<float>::min(), std::numeric_limits<float>::max()})
      right.accepts([&](auto& p) { p.args.scale = scale; });
  });
}

TEMPLATE_TEST_CASE("mistakes in the arguments of the convolution are named", "[bad_input]",
                   conv_call<specs::kda_bounded>, conv_call<specs::qwen>) {
  using args = kda::conv_args<typename TestType::spec>;
  TestType x(batch, TestType::pool_of(5, 1));
  for_each_right_call(x, [&](const auto& right) {
    right.refuses_tensors(&args::x, "x", {"y", "x"});
    right.refuses_tensors(&args::y, "y", {"y", "y"});
    for (const testing::index C : {testing::index{0}, testing::index{-1}})
      right.refuses(error::wrong_shape, "x",
                    [&](auto& p) { p.args.x.shape[1] = p.args.weight.shape[0] = p.args.y.shape[1] = C; });

    for (const testing::index by : {-1, 1})
      right.refuses(error::wrong_shape, "weight", [&](auto& p) { p.args.weight.shape[0] += by; });
    for (const testing::index width :
         {testing::index{1}, testing::index{5}, testing::index{0}, testing::index{-1}, largest, least})
      right.refuses(error::wrong_shape, "weight", [&](auto& p) { p.args.weight.shape[1] = width; });
    right.refuses(error::null_pointer, "weight", [](auto& p) { p.args.weight.data = nullptr; });
    for (const std::size_t d : {0u, 1u})
      for (const testing::index stride : {testing::index{0}, testing::index{-1}, largest, least})
        right.refuses(error::wrong_stride, "weight", [&](auto& p) { p.args.weight.stride[d] = stride; });
    right.refuses(error::wrong_stride, "weight", [](auto& p) { p.args.weight.stride[0] -= 1; });

    right.refuses_vectors(
        "bias", [](auto& a) -> auto& { return a.bias; });
    right.refuses(error::wrong_shape, "bias", [](auto& p) { p.args.bias.shape[0] += 1; });
    right.accepts([](auto& p) { p.args.bias = {}; });

    for (const testing::index columns : {testing::index{2}, testing::index{1}, testing::index{-1}, least})
      right.refuses(error::wrong_shape, "states.columns", [&](auto& p) { p.args.states.columns = columns; });
    const testing::index row = TestType::channel_major ? x.c.columns : x.c.channels;
    for (const testing::index stride : {row - 1, testing::index{1}, -row, largest, least})
      right.refuses(error::wrong_stride, "states.stride", [&](auto& p) { p.args.states.stride = stride; });
    right.refuses(error::wrong_stride, "states.stride", [](auto& p) { p.args.states.columns = largest; });
  });
}

TEMPLATE_TEST_CASE("mistakes in sequences, states and workspace are named", "[bad_input]",
                   decode_call<specs::kda_bounded>, conv_call<specs::kda_bounded>, conv_call<specs::qwen>) {
  TestType x(batch, TestType::pool_of(5, 1));
  for_each_right_call(x, [&](const auto& right) {
    right.refuses_lists(
        "sequences.offsets", [](auto& s) -> auto& { return s.offsets; });
    right.refuses_lists(
        "sequences.load_slots", [](auto& s) -> auto& { return s.load_slots; }, true);
    right.refuses_lists(
        "sequences.store_slots", [](auto& s) -> auto& { return s.store_slots; });
    right.refuses_lists(
        "sequences.first_position", [](auto& s) -> auto& { return s.first_position; }, true);
    right.refuses_flags(
        "sequences.has_initial_state", [](auto& s) -> auto& { return s.has_initial_state; });
    for (const testing::index n : {testing::index{-1}, least})
      right.refuses(error::wrong_shape, "sequences.store_slots", [&](auto& p) {
        kda::sequences& s = p.args.sequences;
        s.load_slots.size = s.store_slots.size = s.has_initial_state.shape[0] = n;
        s.offsets.size = 0;
      });

    const auto with = [&](auto list, const std::vector<std::int64_t>& values) {
      return [=](auto& p) { list(p.args.sequences).wide = values.data(); };
    };
    const auto offsets = [](auto& s) -> auto& { return s.offsets; };
    const std::int64_t end = x.lists.offsets.back();
    const std::vector<std::vector<std::int64_t>> wrong_offsets{
        {0, 4, 3, 8, 8}, {-1, 3, 6, 8, 8},    {0, 3, 6, 8, end + 1}, {0, 3, 9, 8, 8},     {end + 1, 9, 9, 9, 9},
        {0, 3, 6, 8, 7}, {0, 0, 0, 0, least}, {0, 3, 6, largest, 8}, {least, 0, 0, 0, 0}, {0, 3, 6, 8, largest}};
    for (const auto& values : wrong_offsets)
      right.refuses(error::wrong_offsets, "sequences.offsets", with(offsets, values));
    const std::vector<std::vector<std::int64_t>> right_offsets{
        {2, 3, 6, 7, 8}, {0, 0, 0, 0, 0}, {8, 8, 8, 8, 8}, {0, 8, 8, 8, 8}};
    for (const auto& values : right_offsets) right.accepts(with(offsets, values));

    const std::vector<std::int64_t> negative{0, 1, -1, 0};
    right.refuses(error::wrong_value, "sequences.first_position",
                  with(
                      [](auto& s) -> auto& { return s.first_position; }, negative));
    const std::vector<std::int64_t> late{largest, 0, largest - 1, 5};
    right.accepts(with(
        [](auto& s) -> auto& { return s.first_position; }, late));

    const auto load = [](auto& s) -> auto& { return s.load_slots; };
    const auto store = [](auto& s) -> auto& { return s.store_slots; };
    for (const std::int64_t slot : {std::int64_t{5}, std::int64_t{1} << 40, std::int64_t{largest}}) {
      const std::vector<std::int64_t> stores{1, slot, 3, 4}, loads{slot, 2, 3, 4}, fresh_loads{1, 2, slot, 4};
      right.refuses(error::slot_out_of_range, "sequences.store_slots", with(store, stores));
      right.refuses(error::slot_out_of_range, "sequences.load_slots", with(load, loads));
      right.accepts(with(load, fresh_loads));
    }
    const std::vector<std::int64_t> twice{1, 0, 3, 1}, stored_by_another{1, 3, 3, 4};
    right.refuses(error::slot_conflict, "sequences.store_slots", with(store, twice));
    right.refuses(error::slot_conflict, "sequences.load_slots", with(load, stored_by_another));

    for (const testing::index slots : {testing::index{-1}, least})
      right.refuses(error::wrong_shape, "states.slots", [&](auto& p) { p.args.states.slots = slots; });
    right.refuses(error::slot_out_of_range, "sequences.store_slots", [](auto& p) { p.args.states.slots = 0; });
    right.refuses(error::slot_out_of_range, "sequences.load_slots", [](auto& p) { p.args.states.slots = 2; });
    right.refuses(error::null_pointer, "states.data", [](auto& p) { p.args.states.data = nullptr; });
    const testing::index elements = x.states.stride - 7 - (x.states.row_stride - x.states.row);
    for (const testing::index stride : {elements - 1, testing::index{1}, -x.states.stride, largest, least})
      right.refuses(error::wrong_stride, "states.slot_stride", [&](auto& p) { p.args.states.slot_stride = stride; });
    for (const testing::index slots : {largest, largest / x.states.stride})
      right.refuses(error::wrong_stride, "states.slot_stride", [&](auto& p) { p.args.states.slots = slots; });
    for (const std::int64_t first_slot : {std::int64_t{-1}, std::int64_t{least}})
      right.refuses(error::wrong_value, "states.first_slot", [&](auto& p) { p.args.states.first_slot = first_slot; });

    right.refuses_workspaces();
    right.accepts([](auto&) {});
  });
}

TEMPLATE_TEST_CASE("mistakes in lengths, frozen sequences and checkpoints are named", "[bad_input]",
                   decode_call<specs::kda_bounded>, conv_call<specs::kda_bounded>, conv_call<specs::qwen>) {
  TestType x({{3, 1, 1, 5, true, 7}, {3, 2, 2, 0, true}, fresh(2, 3, 3), continued(0, 4, 4)}, TestType::pool_of(10, 1));
  x.lists.lengths = {3, 2, 2, 0};
  x.lists.freeze({false, true, false, false});
  x.lists.keep({{{8, 6}, {10, 7}}, {}, {{2, 8}}, {}});
  for_each_right_call(x, [&](const auto& right) {
    const auto lengths = [](auto& s) -> auto& { return s.lengths; };
    right.refuses_lists("sequences.lengths", lengths, true);
    const auto with = [&](auto list, const std::vector<std::int64_t>& values) {
      return [=](auto& p) { list(p.args.sequences).wide = values.data(); };
    };
    const std::vector<std::vector<std::int64_t>> wrong_lengths{
        {-1, 2, 2, 0}, {4, 2, 2, 0}, {3, largest, 2, 0}, {3, 2, least, 0}, {3, 2, 2, 1}};
    for (const auto& values : wrong_lengths)
      right.refuses(error::wrong_value, "sequences.lengths", with(lengths, values));

    right.refuses_flags(
        "sequences.frozen", [](auto& s) -> auto& { return s.frozen; });
    right.accepts([](auto& p) { p.args.sequences.frozen = {}; });
    // a sequence that is stored needs to know where; one that is frozen, where it begins
    right.refuses(error::wrong_shape, "sequences.store_slots", [](auto& p) { p.args.sequences.store_slots = {}; });
    static constexpr bool all[4] = {true, true, true, true};
    const auto all_frozen = [](auto& s) {
      s.frozen = kda::packed(all, 4);
      s.checkpoints = {};
      s.store_slots = {};
    };
    right.accepts([&](auto& p) { all_frozen(p.args.sequences); });
    right.refuses(error::wrong_shape, "sequences.load_slots", [&](auto& p) {
      all_frozen(p.args.sequences);
      p.args.sequences.load_slots = {};
    });

    const auto begin = [](auto& s) -> auto& { return s.checkpoints.begin; };
    right.refuses_lists("sequences.checkpoints.begin", begin);
    const std::vector<std::vector<std::int64_t>> wrong_begins{
        {0, 2, 1, 3, 3},       {-1, 2, 2, 3, 3}, {0, 2, 2, 3, 4}, {0, 2, 2, largest, 3},
        {0, 2, 2, 3, largest}, {4, 4, 4, 4, 4},  {0, 2, 2, 3, 2}, {least, 2, 2, 3, 3}};
    for (const auto& values : wrong_begins)
      right.refuses(error::wrong_offsets, "sequences.checkpoints.begin", with(begin, values));
    const std::vector<std::int64_t> none{0, 0, 0, 0, 0}, of_frozen{0, 1, 2, 3, 3};
    right.accepts(with(begin, none));
    right.refuses(error::wrong_value, "sequences.checkpoints.begin", with(begin, of_frozen));
    right.refuses(error::wrong_offsets, "sequences.checkpoints.begin", [](auto& p) {  // entries, but no slots
      p.args.sequences.checkpoints.slots = {};
      p.args.sequences.checkpoints.positions = {};
    });

    right.refuses_lists(
        "sequences.checkpoints.positions", [](auto& s) -> auto& { return s.checkpoints.positions; });
    const auto kept = [](auto& s) -> auto& { return s.checkpoints.slots; };
    for (const testing::index by : {-1, 1})
      right.refuses(error::wrong_shape, "sequences.checkpoints.positions",
                    [&](auto& p) { kept(p.args.sequences).size += by; });
    for (const testing::index n : {testing::index{-1}, least})
      right.refuses(error::wrong_shape, "sequences.checkpoints.slots",
                    [&](auto& p) { kept(p.args.sequences).size = n; });
    for (const testing::index stride : {testing::index{0}, testing::index{-1}, largest, least})
      right.refuses(error::wrong_stride, "sequences.checkpoints.slots",
                    [&](auto& p) { kept(p.args.sequences).stride = stride; });
    right.refuses(error::wrong_stride, "sequences.checkpoints.slots",
                  [&](auto& p) { kept(p.args.sequences).size = largest; });
    right.refuses(error::null_pointer, "sequences.checkpoints.slots",
                  [&](auto& p) { kept(p.args.sequences).wide = nullptr; });
    for (const std::int64_t slot : {std::int64_t{10}, std::int64_t{largest}}) {
      const std::vector<std::int64_t> slots{6, slot, 8};
      right.refuses(error::slot_out_of_range, "sequences.checkpoints.slots", with(kept, slots));
    }
    const std::vector<std::int64_t> skipped{-1, least, -7};
    right.accepts(with(kept, skipped));

    const auto interval = [](std::int64_t n, bool positions) {
      return [=](auto& p) {
        p.args.sequences.checkpoints.interval = n;
        if (!positions) p.args.sequences.checkpoints.positions = {};
      };
    };
    for (const bool positions : {true, false})
      for (const std::int64_t n : {std::int64_t{-1}, std::int64_t{least}})
        right.refuses(error::wrong_value, "sequences.checkpoints.interval", interval(n, positions));
    right.refuses(error::wrong_value, "sequences.checkpoints.interval", interval(2, true));
    right.refuses(error::wrong_shape, "sequences.checkpoints.begin", interval(3, false));  // one each
    right.refuses(error::wrong_shape, "sequences.checkpoints.begin", interval(largest, false));
    right.accepts(interval(2, false));  // 8 and 10, and 2
    const std::vector<std::int64_t> late{largest - 2, 0, 0, 0};
    right.refuses(error::wrong_value, "sequences.first_position",
                  with(
                      [](auto& s) -> auto& { return s.first_position; }, late));

    right.refuses_workspaces();
    right.accepts([](auto&) {});
  });
}

TEMPLATE_TEST_CASE("mistakes in speculation are named", "[bad_input]", decode_call<specs::kda_bounded>,
                   conv_call<specs::kda_bounded>, conv_call<specs::qwen>) {
  TestType x({{3, 1, -5, -5, true}, {3, 2, 2, 0, true}, fresh(2, 3, 3), {0, 4, 4, -5, true}}, TestType::pool_of(12, 1));
  x.lists.speculate({2, -1, -1, 0}, {{5, 6, 7}, {}, {}, {8, 9, 10}});
  const auto right = right_call_of(x, TestType::function());
  right.refuses_lists(
      "sequences.speculation.num_accepted", [](auto& s) -> auto& { return s.speculation.num_accepted; });
  const char* const slots = "sequences.speculation.slots";
  const auto table = [](auto& p) -> auto& { return p.args.sequences.speculation.slots; };
  for (const testing::index rows :
       {testing::index{3}, testing::index{5}, testing::index{0}, testing::index{-1}, largest, least})
    right.refuses(error::wrong_shape, slots, [&](auto& p) { table(p).rows = rows; });
  for (const testing::index columns : {testing::index{2}, testing::index{-1}, least})
    right.refuses(error::wrong_shape, slots, [&](auto& p) { table(p).first_row.size = columns; });
  for (const testing::index columns : {testing::index{4}, largest})  // wider than the rows lie apart
    right.refuses(error::wrong_stride, slots, [&](auto& p) { table(p).first_row.size = columns; });
  for (const testing::index stride : {testing::index{2}, testing::index{0}, testing::index{-3}, largest, least})
    right.refuses(error::wrong_stride, slots, [&](auto& p) { table(p).row_stride = stride; });
  for (const testing::index stride : {testing::index{2}, testing::index{0}, testing::index{-1}, largest, least})
    right.refuses(error::wrong_stride, slots, [&](auto& p) { table(p).first_row.stride = stride; });
  right.refuses(error::null_pointer, slots, [&](auto& p) { table(p).first_row.wide = nullptr; });
  right.refuses(error::null_pointer, slots, [&](auto& p) { table(p).first_row = kda::multiples(1, 3); });
  right.refuses(error::wrong_value, "sequences.speculation.num_accepted", [&](auto& p) { table(p) = {}; });
  static constexpr std::int64_t no_drafts[4] = {-1, -1, -1, -1};
  right.accepts([](auto& p) { p.args.sequences.speculation.num_accepted.wide = no_drafts; });
  right.refuses(error::wrong_shape, "sequences.store_slots", [](auto& p) { p.args.sequences.store_slots = {}; });
  right.accepts([](auto& p) { p.args.sequences.load_slots = {}; });  // -5, the store slot of the last, is padding
  right.refuses_workspaces();
  right.accepts([](auto&) {});
  // of one sequence, whose table may claim any width
  TestType one({{2, 1, 0, -5, true}}, TestType::pool_of(4, 1));
  one.lists.speculate({0}, {{1, 2}});
  const auto single = right_call_of(one, TestType::function());
  single.refuses(error::wrong_stride, slots, [&](auto& p) { table(p).first_row.size = largest; });
  single.refuses(error::workspace_too_small, "workspace", [&](auto& p) { table(p).first_row.size = largest / 16; });
  if constexpr (requires { x.tensors; })
    right_call_of(x, kernels_of<typename TestType::spec>().prefill)
        .refuses(error::wrong_value, "sequences.speculation.num_accepted", [](auto&) {});
}

TEMPLATE_TEST_CASE("head ranges past the value heads are refused", "[bad_input]", decode_call<specs::kda_bounded>,
                   decode_call<specs::gdn_softplus>) {
  TestType x(batch, TestType::pool_of(5, 1));
  for_each_right_call(x, [](const auto& right) {
    using range = kda::head_range;
    for (const range r : {range{-1, 2}, range{-1, 0}, range{0, 5}, range{2, 3}, range{4, 0}, range{4, 1}, range{5, 0},
                          range{0, -1}, range{3, -1}, range{largest, 1}, range{1, largest}, range{least, 1},
                          range{1, least}, range{largest, largest}})
      right.refuses(error::wrong_value, "heads", [&](auto& p) { p.args.heads = r; });
    for (const range r : {range{0, 0}, range{0, 4}, range{3, 1}, range{3, 0}, range{1, 2}, range{0, 1}})
      right.accepts([&](auto& p) { p.args.heads = r; });
  });
}

TEMPLATE_TEST_CASE("mistakes in the arguments of gate, beta, l2norm and norm are named", "[bad_input]",
                   specs::kda_bounded, specs::kda_softplus, specs::gdn_softplus, specs::qwen) {
  token_operations<TestType> x({.T = 19, .H = 2, .HV = 4, .K = 20, .V = 19});
  x.for_each([](auto call, const auto& args) {
    using type = std::remove_cvref_t<decltype(args)>;
    const auto& out = output_of(args);
    const right_call<type> right{call, args, 0, [&out] {
                                   std::vector<unsigned char> bytes;
                                   append_bytes(bytes, out.data, elements_of(out));
                                   return bytes;
                                 }};

    if constexpr (std::is_same_v<type, kda::gate_args<TestType>>) {
      constexpr bool per_channel = kda::detail::is_per_channel<TestType>;
      const std::vector<const char*> blame(per_channel ? 3 : 2, "g");
      right.refuses_tensors(&type::x, "x", blame, !per_channel);
      right.refuses_tensors(&type::g, "g", blame, !per_channel);
      if constexpr (per_channel)
        for (const testing::index K : {0, 257})
          right.refuses(error::wrong_shape, "x", [&](auto& p) { p.args.x.shape[2] = p.args.g.shape[2] = K; });
      right.refuses_gate_params();
    } else if constexpr (std::is_same_v<type, kda::beta_args<TestType>>) {
      right.refuses_tensors(&type::b, "b", {"beta", "beta"}, true);
      right.refuses_tensors(&type::beta, "beta", {"beta", "beta"}, true);
      for (const testing::index T : {testing::index{3}, largest})
        right.refuses(error::wrong_shape, "b", [&](auto& p) {
          p.args.b.shape[0] = p.args.beta.shape[0] = T;
          p.args.b.shape[1] = p.args.beta.shape[1] = 0;
        });
    } else if constexpr (std::is_same_v<type, kda::l2norm_args<TestType>>) {
      right.refuses_tensors(&type::x, "x", {"y", "y", "y"});
      right.refuses_tensors(&type::y, "y", {"y", "y", "y"});
      for (const testing::index K : {0, 257})
        right.refuses(error::wrong_shape, "x", [&](auto& p) { p.args.x.shape[2] = p.args.y.shape[2] = K; });
      right.refuses(error::wrong_shape, "x", [&](auto& p) { p.args.x.shape[1] = p.args.y.shape[1] = 0; });
      for (const float scale : {not_a_number, infinity, -infinity})
        right.refuses(error::wrong_value, "scale", [&](auto& p) { p.args.scale = scale; });
    } else {
      right.refuses_tensors(&type::x, "x", {"x", "x", "x"});
      right.refuses_tensors(&type::gate, "gate", {"gate", "gate", "gate"});
      right.refuses_tensors(&type::y, "y", {"y", "y", "y"});
      right.refuses_vectors(
          "weight", [](auto& a) -> auto& { return a.weight; });
      right.refuses(error::wrong_shape, "weight", [](auto& p) { p.args.weight.shape[0] += 1; });
      for (const std::size_t d : {1u, 2u})
        right.refuses(error::wrong_shape, "x",
                      [&](auto& p) { p.args.x.shape[d] = p.args.gate.shape[d] = p.args.y.shape[d] = 0; });
    }
    if constexpr (requires { args.eps; })
      for (const float eps : {not_a_number, infinity, -infinity, -1e-6f})
        right.refuses(error::wrong_value, "eps", [&](auto& p) { p.args.eps = eps; });
    right.refuses_workspaces();
    right.accepts([](auto&) {});
  });
}

TEMPLATE_TEST_CASE("dimensions other than those of the spec are refused", "[bad_input]",
                   decode_call<specs::kda_fixed_dims>, decode_call<specs::glm>) {
  const auto refused = [](testing::index K, testing::index V, const char* argument) {
    const geometry g{.T = 0, .H = 1, .HV = 1, .K = K, .V = V};
    TestType x({continued(1, 1, 0)}, TestType::pool_of(1, 1, g), g);
    for_each_right_call(x, [&](const auto& right) { right.refuses(error::wrong_shape, argument, [](auto&) {}); });
  };
  refused(64, 128, "q");
  refused(127, 128, "q");
  refused(256, 128, "q");
  refused(128, 64, "v");
  refused(128, 129, "v");
  constexpr geometry g{.T = 0, .H = 1, .HV = 1, .K = 128, .V = 128};
  TestType x({continued(1, 1, 0)}, TestType::pool_of(1, 1, g), g);
  for_each_right_call(x, [](const auto& right) { right.accepts([](auto&) {}); });
}

TEMPLATE_TEST_CASE("sizes that no memory has are refused, not computed with", "[bad_input]",
                   decode_call<specs::kda_given_key>, decode_call<specs::gdn_given_value>) {
  TestType x(batch, TestType::pool_of(5, 1));
  for_each_right_call(x, [](const auto& right) {
    const auto set = [](auto& p, std::size_t dimension, testing::index extent) {
      auto& a = p.args;
      if (dimension != 1) a.q.shape[dimension] = a.k.shape[dimension] = extent;
      a.v.shape[dimension] = a.gate.shape[dimension] = a.out.shape[dimension] = extent;
      if (dimension < 2) a.beta.shape[dimension] = extent;
    };
    for (const testing::index T : {largest, largest / 4, largest / 160 + 1})  // of 160 bytes each in q
      right.refuses(error::wrong_stride, "q", [&](auto& p) { set(p, 0, T); });
    for (const testing::index HV : {largest - 1, largest / 19 - 1, largest / 4 - 1, largest / 40 / 19 - 1}) {
      right.refuses(error::wrong_stride, "v", [&](auto& p) { set(p, 1, HV - HV % 2); });
      right.refuses(error::wrong_shape, "v", [&](auto& p) {  // nor without tokens, when the tensors are empty
        set(p, 0, 0);
        set(p, 1, HV - HV % 2);
        p.args.sequences = {};
      });
    }
    const auto without_tokens = [&](testing::index V) {
      return [&set, V](auto& p) {
        static constexpr std::int64_t offsets[5] = {};
        set(p, 0, 0);
        p.args.v.shape[2] = p.args.out.shape[2] = V;
        p.args.sequences.offsets = kda::indices(offsets, 5);
        static constexpr std::int64_t padding[4] = {-1, -1, -1, -1};
        p.args.sequences.load_slots = p.args.sequences.store_slots = kda::indices(padding, 4);
        p.args.states.slots = 0;
      };
    };
    right.refuses(error::wrong_shape, "v", without_tokens(largest));
    right.refuses(error::wrong_shape, "v", without_tokens(largest / 4 / 80));  // of which there is one, but not four
    right.accepts([](auto& p) {  // with one slot, the distance between slots does not matter
      static constexpr std::int64_t offsets[2] = {0, 8}, slot[1] = {0};
      static constexpr bool has_state[1] = {true};
      p.args.states.slots = 1;
      p.args.states.slot_stride = least;
      p.args.sequences = {.offsets = kda::indices(offsets, 2),
                          .load_slots = kda::indices(slot, 1),
                          .store_slots = kda::indices(slot, 1),
                          .has_initial_state = kda::packed(has_state, 1)};
    });
  });
}

TEST_CASE("a workspace for limits that no memory has is the largest number, not a small one", "[bad_input]") {
  constexpr auto most = std::numeric_limits<std::ptrdiff_t>::max();
  static_assert(kda::workspace_bytes({.sequences = most}) == most);
  static_assert(kda::workspace_bytes({.sequences = 1, .concurrency = most}) == most);
  CHECK(kda::workspace_bytes({.sequences = 70'000, .concurrency = 64}) < std::ptrdiff_t{1} << 27);
  CHECK(kda::packed(static_cast<float*>(nullptr), most, 2, 64).stride[0] == 128);
}
