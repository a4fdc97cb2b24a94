// SPDX-License-Identifier: Apache-2.0
// Memory that two arguments share: inputs stay as they are, an output that touches anything else is refused before
// anything is written, and what merely lies between each other's rows is accepted.
#include "support/batches.hpp"
#include "support/kda_catch.hpp"

#include <functional>
#include <sys/mman.h>

using namespace testing;

namespace {

struct piece {
  unsigned char* data;
  std::size_t bytes;
};
template <class T> piece piece_of(const T* data, std::size_t n) {
  return {reinterpret_cast<unsigned char*>(const_cast<T*>(data)), data == nullptr ? 0 : n * sizeof(T)};
}
template <class T, std::size_t Rank> piece piece_of(const kda::view<T, Rank>& v) {
  return piece_of(v.data, elements_of(v));
}
piece piece_of(const kda::index_list& l) { return piece_of(l.wide, size(l.size)); }

using snapshot = std::vector<std::vector<unsigned char>>;
void add(snapshot& s, const piece& p) { s.emplace_back(p.data, p.data + p.bytes); }

// Room for arrays two megabytes apart, so that a workspace fits between any two; only what is touched costs memory.
class arena {
 public:
  static constexpr std::size_t apart = std::size_t{1} << 21, room = 40 * apart;
  arena() {
    void* p = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    base_ = next_ = static_cast<unsigned char*>(p);
  }
  arena(const arena&) = delete;
  arena& operator=(const arena&) = delete;
  ~arena() { munmap(base_, room); }

  piece reserve(std::size_t bytes) {
    next_ += apart;
    if (2 * bytes >= apart + apart / 2 || next_ + 2 * apart > base_ + room)
      throw std::runtime_error("the arena is too small");
    return {next_, bytes};
  }
  piece copy(const piece& from) {
    const piece p = reserve(from.bytes);
    if (from.bytes != 0) std::memcpy(p.data, from.data, from.bytes);
    return p;
  }

 private:
  unsigned char *base_, *next_;
};

void point(kda::index_list& l, unsigned char* to) { l.wide = reinterpret_cast<const std::int64_t*>(to); }
template <class T, std::size_t Rank> void point(kda::view<T, Rank>& v, unsigned char* to) {
  v.data = reinterpret_cast<T*>(to);
}

// Something that a call writes: its place, and how to put it elsewhere.
struct output {
  const char* name;
  piece home;
  std::size_t element;
  std::function<void(unsigned char*)> place;
};

// Every output against every input and every other output. To begin where the other begins, in its last element, or to
// end in its first one is refused; to end where it begins, or begin where it ends, is not.
void check_overlaps(const std::vector<piece>& inputs, const std::vector<output>& outputs,
                    const std::function<kda::status()>& call) {
  const output& scratch = outputs.back();
  const auto try_at = [&](const output& o, const piece& other, unsigned char* where, const char* refusal) {
    const auto memory = [&] {  // all of it but what a workspace lies on
      snapshot s;
      for (const piece& p : inputs)
        if (&o != &scratch) add(s, p);
      for (const output& p : outputs)
        if (&p != &scratch) add(s, p.home);
      if (&o != &scratch) add(s, {where, o.home.bytes});
      return s;
    };
    o.place(where);
    const snapshot before = memory();
    const kda::status s = call();
    CAPTURE(where - other.data, o.home.bytes, other.bytes, s.argument);
    if (refusal == nullptr) {
      CHECK(s);
    } else {
      CHECK(s.what == kda::error::overlap);
      CHECK(std::string(s.argument) == refusal);
      CHECK((memory() == before));
    }
    o.place(o.home.data);
  };
  const auto try_around = [&](const output& o, const piece& other, const char* name) {
    if (other.bytes == 0) return;
    const std::size_t whole = (other.bytes + o.element - 1) / o.element * o.element;
    try_at(o, other, other.data, name);
    try_at(o, other, other.data + (whole - o.element), name);
    try_at(o, other, other.data - (o.home.bytes - o.element), name);
    try_at(o, other, other.data + whole, nullptr);
    try_at(o, other, other.data - o.home.bytes, nullptr);
  };
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    for (std::size_t j = 0; j < inputs.size(); ++j) {
      INFO(outputs[i].name << " and input " << j);
      try_around(outputs[i], inputs[j], outputs[i].name);
    }
    for (std::size_t j = 0; j < outputs.size(); ++j) {
      INFO(outputs[i].name << " and " << outputs[j].name);
      const bool with_scratch = std::max(i, j) + 1 == outputs.size();
      if (i != j) try_around(outputs[i], outputs[j].home, with_scratch ? scratch.name : outputs[std::min(i, j)].name);
    }
  }
}

template <class Call, class Args>
void check_call(Call call, Args args, testing::index sequences, std::size_t pool_elements = 0) {
  arena memory;
  std::vector<piece> inputs;
  for_each_input(args, [&](auto& input) {
    inputs.push_back(memory.copy(piece_of(input)));
    point(input, inputs.back().data);
  });
  std::vector<output> outputs;
  auto& out = output_of(args);
  outputs.push_back(
      {output_name<Args>(), memory.copy(piece_of(out)), sizeof(*out.data), [&](unsigned char* to) { point(out, to); }});
  if constexpr (requires { args.states; }) {
    using type = std::remove_pointer_t<decltype(args.states.data)>;
    outputs.push_back({"states.data", memory.copy(piece_of(args.states.data, pool_elements)), sizeof(type),
                       [&](unsigned char* to) { args.states.data = reinterpret_cast<type*>(to); }});
  }
  kda::workspace w{.data = nullptr, .bytes = kda::workspace_bytes({.sequences = sequences})};
  outputs.push_back({"workspace", memory.reserve(size(w.bytes)), 1, [&](unsigned char* to) { w.data = to; }});
  for (const output& o : outputs) o.place(o.home.data);
  check_overlaps(inputs, outputs, [&] { return call(args, w, kda::serial); });
}

const std::vector<sequence> batch{
    continued(5, 1, 1), {3, 2, 2, 0, true}, fresh(1, 3, 3), continued(0, 4, 5), continued(2, 5, -1)};

}  // namespace

TEMPLATE_TEST_CASE("inputs stay as they are", "[aliasing]", KDA_TEST_CALLS) {
  TestType x(batch, TestType::pool_of(6, 1));
  auto args = x.args();
  const auto inputs = [&] {
    snapshot s;
    for_each_input(args, [&](auto& input) { add(s, piece_of(input)); });
    return s;
  };
  const snapshot before = inputs();
  CHECK(before.size() >= 8);
  REQUIRE(TestType::function()(args, scratch(std::ssize(batch)), kda::serial));
  CHECK((inputs() == before));
}

TEMPLATE_TEST_CASE("inputs of gate, beta, l2norm and norm stay as they are", "[aliasing]", specs::kda_bounded,
                   specs::kda_softplus, specs::gdn_softplus, specs::qwen) {
  token_operations<TestType> x({.T = 19, .H = 2, .HV = 4, .K = 20, .V = 19});
  x.for_each([](auto call, auto args) {
    const auto inputs = [&] {
      snapshot s;
      for_each_input(args, [&](auto& input) { add(s, piece_of(input)); });
      return s;
    };
    const snapshot before = inputs();
    REQUIRE(call(args, scratch(0), kda::serial));
    CHECK((inputs() == before));
  });
}

TEMPLATE_TEST_CASE("an output that touches anything else is refused", "[aliasing]", decode_call<specs::kda_bounded>,
                   prefill_call<specs::kda_bounded>, decode_call<specs::gdn_softplus>,
                   prefill_call<specs::gdn_softplus>, decode_call<specs::kda_bf16_key>, prefill_call<specs::kda_mixed>,
                   decode_call<specs::delta_key>, conv_call<specs::kda_bounded>, conv_call<specs::gdn_softplus>,
                   conv_call<specs::glm>) {
  TestType x(batch, TestType::pool_of(6, 1));
  check_call(TestType::function(), x.args(), std::ssize(batch), x.states.reach());
}

TEMPLATE_TEST_CASE("an output of gate, beta, l2norm or norm that touches anything else is refused", "[aliasing]",
                   specs::kda_bounded, specs::kda_softplus, specs::gdn_softplus, specs::qwen) {
  token_operations<TestType> x({.T = 19, .H = 2, .HV = 4, .K = 20, .V = 19});
  x.for_each([](auto call, auto args) { check_call(call, args, 0); });
}

TEST_CASE("columns of one matrix share nothing unless they meet", "[aliasing]") {
  // q [T, 2, 20] in columns 5 to 44 of a matrix 100 wide, out [T, 4, 7] in 28 columns after it.
  using call = decode_call<specs::kda_given_key>;
  constexpr geometry g{.T = 0, .H = 2, .HV = 4, .K = 20, .V = 7};
  call x({continued(6, 1, 0)}, call::pool_of(1, 1, g), g);
  std::vector<float> matrix(8 * 100);
  auto args = x.args();
  args.q.data = matrix.data() + 100 + 5;
  args.q.stride[0] = args.out.stride[0] = 100;
  const auto with_out_at = [&](testing::index column) {
    args.out.data = matrix.data() + 100 + column;
    return call::function()(args, scratch(1), kda::serial);
  };
  const auto refused = [&](testing::index column) {
    const kda::status s = with_out_at(column);
    return s.what == kda::error::overlap && std::string(s.argument) == "out";
  };
  CHECK(refused(44));
  CHECK(with_out_at(45));
  CHECK(with_out_at(72));
  CHECK(with_out_at(77));  // on into columns 0 to 4 of the next row
  CHECK(refused(78));      // on into q of the next row
  CHECK(refused(5));
  CHECK(refused(-22));  // begins before q, in the row above
  CHECK(with_out_at(-23));
  CHECK(with_out_at(-28));

  // Other strides, other rows: whatever meets is taken to overlap, even if no element does.
  args.out.stride[0] = 101;
  CHECK(refused(45));
}
