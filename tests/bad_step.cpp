// SPDX-License-Identifier: Apache-2.0
// Bad input to step: each mistake gives a status that names the argument, and nothing has been written and no task run.
#include "support/kda_catch.hpp"
#include "support/step.hpp"

#include <functional>

namespace testing {
namespace {

using kda::error;

constexpr index largest = std::numeric_limits<index>::max(), least = std::numeric_limits<index>::min();

template <class Spec> struct right_step {
  using args = kda::step_args<Spec>;
  step_call<Spec> x{{continued(3, 1, 1), {18, 2, 2, 0, true}, fresh(2, 3, 3), continued(0, 4, 4)},
                    {kda::mode::decode, kda::mode::prefill, kda::mode::decode, kda::mode::prefill},
                    step_call<Spec>::states_of(5, 1),
                    step_call<Spec>::windows_of(5, 2)};

  // The answer to the call after `f`, which must be a refusal that wrote nothing, or none.
  kda::status changed(const std::function<void(args&)>& f, kda::workspace* w = nullptr) {
    const step_call<Spec> before = x;
    args a = x.args();
    f(a);
    index tasks = 0;
    const auto run = [](void* self, std::ptrdiff_t count, kda::executor::task task, void* context) {
      *static_cast<index*>(self) += count;
      for (std::ptrdiff_t i = 0; i < count; ++i) task(context, i);
    };
    scratch memory(x.sequences());
    const kda::status s = x.function()(a, w != nullptr ? *w : memory, {.self = &tasks, .run = run});
    if (!s) CHECK((tasks == 0 && same_bits(x, before)));
    if (s) x = before;
    return s;
  }
  void refuses(error what, const char* argument, const std::function<void(args&)>& f, int line = __builtin_LINE()) {
    const kda::status s = changed(f);
    INFO("line " << line << ": " << s.argument << " " << kda::message(s.what));
    CHECK(std::string(s.argument) == argument);
    CHECK(s.what == what);
  }
  void accepts(const std::function<void(args&)>& f, int line = __builtin_LINE()) {
    const kda::status s = changed(f);
    INFO("line " << line << ": " << s.argument << " " << kda::message(s.what));
    CHECK(s);
  }
  template <class T, std::size_t Rank>
  void refuses_tensor(const char* name, kda::view<T, Rank>& (*of)(args&), bool free_channel = false) {
    INFO("tensor " << name);
    refuses(error::null_pointer, name, [&](args& a) { of(a).data = nullptr; });
    for (std::size_t d = 0; d < Rank; ++d) {
      for (const index extent : {index{-1}, least})
        refuses(error::wrong_shape, name, [&](args& a) { of(a).shape[d] = extent; });
      for (const index stride : {index{0}, index{-1}, largest, least})
        refuses(error::wrong_stride, name, [&](args& a) { of(a).stride[d] = stride; });
    }
    if (!free_channel) refuses(error::wrong_stride, name, [&](args& a) { of(a).stride[Rank - 1] = 2; });
  }
};

}  // namespace

TEMPLATE_TEST_CASE("mistakes in the arguments of step are named", "[bad_input]", specs::kda_bounded, specs::qwen) {
  using args = kda::step_args<TestType>;
  right_step<TestType> right;
  right.accepts([](args&) {});
  right.template refuses_tensor<const typename step_call<TestType>::raw, 3>(
      "q", [](args & a) -> auto& { return a.q; });
  right.template refuses_tensor<const typename step_call<TestType>::raw, 3>(
      "k", [](args & a) -> auto& { return a.k; });
  right.template refuses_tensor<const typename step_call<TestType>::raw, 3>(
      "v", [](args & a) -> auto& { return a.v; });
  right.template refuses_tensor<const float, 2>(
      "conv_weight", [](args & a) -> auto& { return a.conv_weight; }, true);
  right.template refuses_tensor<const float, 1>(
      "conv_bias", [](args & a) -> auto& { return a.conv_bias; });
  right.template refuses_tensor<const typename step_call<TestType>::out_type, 3>(
      "output_gate", [](args & a) -> auto& { return a.output_gate; });
  right.template refuses_tensor<const float, 1>(
      "norm_weight", [](args & a) -> auto& { return a.norm_weight; });
  right.template refuses_tensor<typename step_call<TestType>::out_type, 3>(
      "y", [](args & a) -> auto& { return a.y; });
  right.template refuses_tensor<const kda::mode, 1>(
      "modes", [](args & a) -> auto& { return a.modes; });

  for (const index by : {-1, 1}) {
    right.refuses(error::wrong_shape, "conv_weight", [&](args& a) { a.conv_weight.shape[0] += by; });
    right.refuses(error::wrong_shape, "conv_bias", [&](args& a) { a.conv_bias.shape[0] += by; });
    right.refuses(error::wrong_shape, "norm_weight", [&](args& a) { a.norm_weight.shape[0] += by; });
    right.refuses(error::wrong_shape, "modes", [&](args& a) { a.modes.shape[0] += by; });
    right.refuses(error::wrong_shape, "y", [&](args& a) { a.y.shape[0] += by; });
  }
  for (const index width : {index{1}, index{5}, index{0}, index{-1}, largest, least})
    right.refuses(error::wrong_shape, "conv_weight", [&](args& a) { a.conv_weight.shape[1] = width; });
  for (const float eps : {-1e-6f, std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()})
    right.refuses(error::wrong_value, "norm_eps", [&](args& a) { a.norm_eps = eps; });
  const kda::mode odd[] = {kda::mode::decode, static_cast<kda::mode>(7), kda::mode::decode, kda::mode::prefill};
  right.refuses(error::wrong_value, "modes", [&](args& a) { a.modes.data = odd; });

  right.refuses(error::null_pointer, "states.data", [](args& a) { a.states.data = nullptr; });
  right.refuses(error::null_pointer, "conv_states.data", [](args& a) { a.conv_states.data = nullptr; });
  right.refuses(error::wrong_shape, "conv_states.columns", [](args& a) { a.conv_states.columns = 2; });
  right.refuses(error::wrong_stride, "conv_states.stride", [](args& a) { a.conv_states.stride = 1; });
  right.refuses(error::wrong_stride, "conv_states.slot_stride", [](args& a) { a.conv_states.slot_stride = 9; });
  right.refuses(error::wrong_stride, "states.slot_stride", [](args& a) { a.states.slot_stride = 9; });
  right.refuses(error::wrong_shape, "conv_states.slots", [](args& a) { a.conv_states.slots = -1; });
  right.refuses(error::wrong_value, "conv_states.first_slot", [](args& a) { a.conv_states.first_slot = 1; });
  // a slot must lie in both pools
  right.refuses(error::slot_out_of_range, "sequences.store_slots", [](args& a) { a.conv_states.slots = 4; });
  right.refuses(error::slot_out_of_range, "sequences.store_slots", [](args& a) { a.states.slots = 4; });

  // a step that wants no outputs does not look at what only they need
  right.accepts([](args& a) { a.y = {}, a.output_gate = {}, a.norm_weight = {}, a.norm_eps = -1.f; });
  right.refuses(error::null_pointer, "y", [](args& a) { a.y.data = nullptr; });
}

TEST_CASE("step takes at most 256 value channels", "[bad_input]") {
  const geometry g{.T = 0, .H = 1, .HV = 1, .K = 4, .V = 257};
  step_call<specs::kda_bounded> x({fresh(1, 1, 0)}, {kda::mode::decode},
                                  step_call<specs::kda_bounded>::states_of(1, 1, g),
                                  step_call<specs::kda_bounded>::windows_of(1, 1, g), g);
  const kda::status s = x.try_run();
  CHECK(s.what == error::wrong_shape);
  CHECK(std::string(s.argument) == "v");
}

TEMPLATE_TEST_CASE("whatever step writes may touch nothing else", "[bad_input][aliasing]", specs::kda_bounded,
                   specs::qwen) {
  using args = kda::step_args<TestType>;
  right_step<TestType> right;
  const auto write_to = [](auto*& data, const void* memory) {
    data = static_cast<std::remove_reference_t<decltype(data)>>(const_cast<void*>(memory));
  };
  using inputs = std::vector<std::pair<const char*, const void* (*)(args&)>>;
  const inputs read{{"q", [](args& a) -> const void* { return a.q.data; }},
                    {"k", [](args& a) -> const void* { return a.k.data; }},
                    {"v", [](args& a) -> const void* { return a.v.data; }},
                    {"gate", [](args& a) -> const void* { return a.gate.data; }},
                    {"beta", [](args& a) -> const void* { return a.beta.data; }},
                    {"conv_weight", [](args& a) -> const void* { return a.conv_weight.data; }},
                    {"conv_bias", [](args& a) -> const void* { return a.conv_bias.data; }},
                    {"output_gate", [](args& a) -> const void* { return a.output_gate.data; }},
                    {"norm_weight", [](args& a) -> const void* { return a.norm_weight.data; }},
                    {"modes", [](args& a) -> const void* { return a.modes.data; }},
                    {"a_log", [](args& a) -> const void* { return a.gate_params.a_log.data; }},
                    {"dt_bias", [](args& a) -> const void* { return a.gate_params.dt_bias.data; }},
                    {"offsets", [](args& a) -> const void* { return a.sequences.offsets.wide; }},
                    {"load_slots", [](args& a) -> const void* { return a.sequences.load_slots.wide; }},
                    {"has", [](args& a) -> const void* { return a.sequences.has_initial_state.data; }}};
  for (const auto& [name, memory] : read) {
    INFO(name);
    right.refuses(error::overlap, "y", [&, memory = memory](args& a) { write_to(a.y.data, memory(a)); });
    right.refuses(error::overlap, "states.data", [&, memory = memory](args& a) { write_to(a.states.data, memory(a)); });
    right.refuses(error::overlap, "conv_states.data",
                  [&, memory = memory](args& a) { write_to(a.conv_states.data, memory(a)); });
  }
  right.refuses(error::overlap, "y", [&](args& a) { write_to(a.y.data, a.states.data); });
  right.refuses(error::overlap, "y", [&](args& a) { write_to(a.y.data, a.conv_states.data); });
  right.refuses(error::overlap, "conv_states.data", [&](args& a) { write_to(a.conv_states.data, a.states.data); });
}

TEST_CASE("the two states of a slot may share a page of memory", "[step]") {
  // vLLM: one block per slot, convolution window first, recurrent state behind it
  using call = step_call<specs::kda_bounded>;
  call apart({continued(3, 1, 1), fresh(18, 2, 3)}, {kda::mode::decode, kda::mode::prefill}, call::states_of(4, 1),
             call::windows_of(4, 2));
  call shared = apart;
  apart.run();
  const index window = shared.conv_states.stride, page = window + shared.states.stride + 3;
  std::vector<float> pages(size(4 * page));
  for (index n = 0; n < 4; ++n) {
    std::copy_n(&shared.conv_states.cells[size(n * window)], window, &pages[size(n * page)]);
    std::copy_n(&shared.states.cells[size(n * shared.states.stride)], shared.states.stride,
                &pages[size(n * page + window)]);
  }
  auto a = shared.args();
  a.conv_states.data = pages.data();
  a.states.data = pages.data() + window;
  a.conv_states.slot_stride = a.states.slot_stride = page;
  throw_unless(shared.function()(a, scratch(2)));
  CHECK(same_bits(shared.y, apart.y));
  for (index n = 0; n < 4; ++n) {
    CHECK(std::equal(&pages[size(n * page)], &pages[size(n * page + window)],
                     &apart.conv_states.cells[size(n * window)]));
    CHECK(std::equal(&pages[size(n * page + window)], &pages[size(n * page + window + apart.states.stride)],
                     &apart.states.cells[size(n * apart.states.stride)]));
  }
}

}  // namespace testing
