// SPDX-License-Identifier: Apache-2.0
// Batches of sequences over a pool of states, as a serving engine makes them. decode_call, prefill_call and conv_call
// have one interface, so that what holds for all three is said once:
//
//     Call x(batch, Call::pool_of(slots, seed));   x.run();   x.rows(n), x.states.slot(n)   and   alone<Call>(sequence,
//     states)
//
// A sequence's tensors come from its seed alone: the same sequence in another batch, or by itself, has the same inputs.
#pragma once
#include "delta_rule.hpp"

#include <cstring>
#include <iterator>
#include <memory>

namespace testing {

struct sequence {
  index tokens;
  std::uint64_t seed;
  std::int64_t load, store;
  bool has_state;
  std::int64_t position = 0;
};
/// A sequence that goes on in its slot, and one that starts there.
inline sequence continued(index tokens, std::uint64_t seed, std::int64_t slot) {
  return {tokens, seed, slot, slot, true};
}
inline sequence fresh(index tokens, std::uint64_t seed, std::int64_t slot) { return {tokens, seed, slot, slot, false}; }

/// A state that a call is to keep: after the token before this position of the whole prompt, in this slot.
struct kept {
  std::int64_t position, slot;
};

/// The arrays behind kda::sequences. What stands after has_state is left out unless a test fills it.
struct sequence_lists {
  std::vector<std::int64_t> offsets{0}, load, store, position;
  std::shared_ptr<bool[]> has_state;  // std::vector<bool> has no data()
  std::vector<std::int64_t> lengths{};
  std::shared_ptr<bool[]> frozen{};
  std::vector<std::int64_t> begin{}, kept_slots{}, kept_positions{};  // checkpoints
  std::int64_t interval = 0;                                          // instead of their positions
  std::vector<std::int64_t> accepted{}, table{};                      // speculation; table [N, columns]
  index columns = 0;
  bool rolling = false;

  explicit sequence_lists(const std::vector<sequence>& batch) : has_state(new bool[batch.size()]) {
    for (const sequence& s : batch) {
      has_state[std::ssize(load)] = s.has_state;
      offsets.push_back(offsets.back() + s.tokens);
      load.push_back(s.load);
      store.push_back(s.store);
      position.push_back(s.position);
    }
  }
  [[nodiscard]] kda::sequences views() const {
    const auto list = [](const std::vector<std::int64_t>& x) { return kda::indices(x.data(), std::ssize(x)); };
    const auto flags = [&](const std::shared_ptr<bool[]>& x) {
      return kda::packed(static_cast<const bool*>(x.get()), x == nullptr ? 0 : std::ssize(load));
    };
    return {.offsets = list(offsets),
            .lengths = list(lengths),
            .load_slots = list(load),
            .store_slots = list(store),
            .has_initial_state = flags(has_state),
            .frozen = flags(frozen),
            .first_position = list(position),
            .checkpoints = {.begin = list(begin),
                            .slots = list(kept_slots),
                            .positions = interval == 0 ? list(kept_positions) : kda::index_list{},
                            .interval = interval},
            .speculation = {.slots = columns == 0 ? kda::index_table{}
                                                  : kda::indices_table(table.data(), std::ssize(load), columns),
                            .num_accepted = list(accepted),
                            .rolling_windows = rolling}};
  }
  /// Checkpoints of each sequence in turn.
  void keep(const std::vector<std::vector<kept>>& states) {
    begin = {0}, kept_slots.clear(), kept_positions.clear();
    for (const std::vector<kept>& of_one : states) {
      for (const kept& k : of_one) kept_slots.push_back(k.slot), kept_positions.push_back(k.position);
      begin.push_back(std::ssize(kept_slots));
    }
  }
  void freeze(const std::vector<bool>& which) {
    frozen.reset(new bool[which.size()]);
    std::copy(which.begin(), which.end(), frozen.get());
  }
  /// Table of as many columns as its longest row; shorter ones end in -1.
  void speculate(const std::vector<std::int64_t>& accepted_, const std::vector<std::vector<std::int64_t>>& rows) {
    accepted = accepted_, table.clear(), columns = 1;
    for (const auto& row : rows) columns = std::max(columns, std::ssize(row));
    for (auto row : rows) {
      row.resize(size(columns), -1);
      table.insert(table.end(), row.begin(), row.end());
    }
  }
  /// What workspace_limits calls kept_states.
  [[nodiscard]] index kept_states() const { return std::ssize(kept_slots) + std::ssize(table); }
};

template <class T> void fill_bytes(std::vector<T>& x, int byte) {
  if (!x.empty()) std::memset(static_cast<void*>(x.data()), byte, x.size() * sizeof(T));
}
constexpr int nan_bytes = 0xff, canary_bytes = 0xa5;

template <class T> void put_nan(std::vector<T>& x, std::size_t first, std::size_t n) {
  std::fill_n(x.begin() + static_cast<index>(first), n, kda::round_to<T>(std::numeric_limits<float>::quiet_NaN()));
}

template <class T> bool all_zeros(const std::vector<T>& x) { return same_bits(x, std::vector<T>(x.size())); }

/// Slots of random states: each `rows` rows of `row` elements with a gap behind each row and a longer one behind each
/// slot, which nothing may touch.
template <class T> struct slot_pool {
  index slots, rows, row, row_stride, stride;
  std::vector<T> cells;

  slot_pool(index slots_, index rows_, index row_, index row_gap, std::uint64_t seed)
      : slots(slots_),
        rows(rows_),
        row(row_),
        row_stride(row_ + row_gap),
        stride(rows_ * row_stride + 7),
        cells(size(slots_ * stride)) {
    random_numbers r(seed);
    for (T& x : cells) x = kda::round_to<T>(r.uniform(-1, 1));
  }
  [[nodiscard]] std::vector<T> slot(std::int64_t n) const {
    std::vector<T> x;
    for (index r = 0; r < rows; ++r) x.insert(x.end(), &cells[at(n, r)], &cells[at(n, r)] + row);
    return x;
  }
  void set_slot(std::int64_t n, const std::vector<T>& x) {
    for (index r = 0; r < rows; ++r) std::copy_n(&x[size(r * row)], row, &cells[at(n, r)]);
  }
  /// Elements up to the last one of the last slot.
  [[nodiscard]] std::size_t reach() const { return at(slots - 1, rows - 1) + size(row); }
  /// Whether everything but the slots in `changed` has the bits of `before`, gaps included.
  [[nodiscard]] bool same_but(const std::vector<std::int64_t>& changed, slot_pool before) const {
    for (const std::int64_t n : changed) before.set_slot(n, slot(n));
    return same_bits(cells, before.cells);
  }

 private:
  [[nodiscard]] std::size_t at(std::int64_t n, index r) const { return size(n * stride + r * row_stride); }
};

template <class T> void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

/// The problem whose tokens are those of all sequences; parameters do not depend on them.
template <class Spec> problem joined_problem(const std::vector<sequence>& batch, const geometry& g) {
  problem all = ordinary_problem<Spec>({.T = 0, .H = g.H, .HV = g.HV, .K = g.K, .V = g.V}, 1);
  for (const sequence& s : batch) {
    const problem p = ordinary_problem<Spec>({.T = s.tokens, .H = g.H, .HV = g.HV, .K = g.K, .V = g.V}, s.seed);
    append(all.q, p.q);
    append(all.k, p.k);
    append(all.v, p.v);
    append(all.gate, p.gate);
    append(all.beta, p.beta);
    all.g.T += s.tokens;
  }
  return all;
}

inline void throw_unless(kda::status s) {
  if (!s) throw std::runtime_error(std::string(s.argument) + " " + kda::message(s.what));
}

/// What decode_call, prefill_call and conv_call share: lists, a pool, outputs full of canaries, `row` of them a token.
template <class Out, class State> struct batch_call {
  sequence_lists lists;
  slot_pool<State> states;
  index row;
  std::vector<Out> out;
  std::int64_t first_slot = 0;

  batch_call(const std::vector<sequence>& batch, slot_pool<State> states_, index row_)
      : lists(batch), states(std::move(states_)), row(row_), out(size(lists.offsets.back() * row_)) {
    fill_bytes(out, canary_bytes);
  }
  /// Outputs of sequence n.
  [[nodiscard]] std::vector<Out> rows(std::size_t n) const {
    return {out.begin() + lists.offsets[n] * row, out.begin() + lists.offsets[n + 1] * row};
  }
  [[nodiscard]] index sequences() const { return std::ssize(lists.load); }
};

template <class Spec, core Core>
struct delta_rule_call : batch_call<typename kda::types<Spec>::stage_out, typename kda::types<Spec>::state> {
  using spec = Spec;
  using t = kda::detail::traits<Spec>;
  using base = batch_call<typename t::stage::out, typename t::state::type>;
  using pool = slot_pool<typename t::state::type>;
  using shape = geometry;
  static constexpr shape usual{.T = 0, .H = 2, .HV = 4, .K = 20, .V = 19};
  packed_tensors<Spec> tensors;

  static pool pool_of(index slots, std::uint64_t seed, const shape& g = usual) {
    return pool(slots, 1, g.HV * g.K * g.V, 0, seed);
  }
  delta_rule_call(const std::vector<sequence>& batch, pool states_, const shape& g = usual)
      : base(batch, std::move(states_), g.HV * g.V), tensors(joined_problem<Spec>(batch, g)) {}

  [[nodiscard]] kda::delta_rule_args<Spec> args() {
    kda::delta_rule_args<Spec> a = tensors.args();
    a.out.data = this->out.data();
    a.sequences = this->lists.views();
    a.states = {.data = this->states.cells.data(),
                .slots = this->states.slots,
                .slot_stride = this->states.stride,
                .first_slot = this->first_slot};
    return a;
  }
  static auto function() { return call_of(kernels_of<Spec>(), Core); }
  [[nodiscard]] kda::status try_run(const kda::executor& e = kda::serial) {
    return function()(args(), scratch(this->sequences(), e.concurrency, this->lists.kept_states()), e);
  }
  void run(const kda::executor& e = kda::serial) { throw_unless(try_run(e)); }
};
template <class Spec> using decode_call = delta_rule_call<Spec, core::decode>;
template <class Spec> using prefill_call = delta_rule_call<Spec, core::prefill>;

struct conv_shape {
  index channels, width, columns;
};

/// The state has two columns more than it needs, and a gap behind each row.
template <class Spec>
struct conv_call : batch_call<typename kda::types<Spec>::stage_qkv, typename kda::types<Spec>::qkv> {
  using spec = Spec;
  using t = kda::detail::traits<Spec>;
  using type = typename t::io::qkv;
  using base = batch_call<typename t::stage::qkv, type>;
  using pool = slot_pool<type>;
  using shape = conv_shape;
  static constexpr shape usual{.channels = 277, .width = 4, .columns = 5};
  static constexpr bool channel_major = t::conv::order == kda::conv_state::channel_major;
  shape c;
  std::vector<type> x;
  std::vector<float> weight, bias;

  static pool pool_of(index slots, std::uint64_t seed, const shape& c = usual) {
    return channel_major ? pool(slots, c.channels, c.columns, 3, seed) : pool(slots, c.columns, c.channels, 3, seed);
  }
  conv_call(const std::vector<sequence>& batch, pool states_, const shape& c_ = usual)
      : base(batch, std::move(states_), c_.channels),
        c(c_),
        weight(random_numbers(1).normals(c.channels * c.width)),
        bias(random_numbers(2).normals(c.channels)) {
    for (const sequence& s : batch) append(x, rounded_to<type>(random_numbers(s.seed).normals(s.tokens * c.channels)));
  }
  [[nodiscard]] kda::conv_args<Spec> args() {
    const index tokens = this->lists.offsets.back();
    return {.x = kda::packed(static_cast<const type*>(x.data()), tokens, c.channels),
            .weight = kda::packed(static_cast<const float*>(weight.data()), c.channels, c.width),
            .bias = kda::packed(static_cast<const float*>(bias.data()), c.channels),
            .y = kda::packed(this->out.data(), tokens, c.channels),
            .sequences = this->lists.views(),
            .states = {.data = this->states.cells.data(),
                       .slots = this->states.slots,
                       .slot_stride = this->states.stride,
                       .columns = c.columns,
                       .stride = this->states.row_stride,
                       .first_slot = this->first_slot}};
  }
  static auto function() { return kernels_of<Spec>().conv; }
  [[nodiscard]] kda::status try_run(const kda::executor& e = kda::serial) {
    return function()(args(), scratch(this->sequences(), e.concurrency, this->lists.kept_states()), e);
  }
  void run(const kda::executor& e = kda::serial) { throw_unless(try_run(e)); }
};

/// Tokens [first, first + n) of a sequence in a call of its own, from the same states. The others belong to nobody.
template <class Call>
Call alone_from(const sequence& s, index first, index n, const typename Call::pool& states,
                const typename Call::shape& shape = Call::usual) {
  Call x({s}, states, shape);
  x.lists.offsets = {first, first + n};
  x.lists.position = {s.position + first};
  x.run();
  return x;
}

/// f(array) for every tensor of a call that has tokens.
template <class Call, class F> void for_each_tensor(Call& x, const F& f) {
  if constexpr (requires { x.tensors; })
    f(x.tensors.q), f(x.tensors.k), f(x.tensors.v), f(x.tensors.gate), f(x.tensors.beta);
  else
    f(x.x);
}
/// Makes NaN of tokens [first, first + n).
template <class Call> void poison_tokens(Call& x, index first, index n) {
  const auto tokens = size(x.lists.offsets.back());
  for_each_tensor(x, [&](auto& tensor) {
    const std::size_t row = tensor.size() / tokens;
    put_nan(tensor, size(first) * row, size(n) * row);
  });
}

/// The same sequence in a call of its own, from the same states.
template <class Call>
Call alone(const sequence& s, const typename Call::pool& states, const typename Call::shape& shape = Call::usual) {
  Call x({s}, states, shape);
  x.run();
  return x;
}

// ---- operations on tokens, and what all arguments have in common ----------------------------------------------------

/// gate, beta, l2norm and norm of a spec that has them all: tensors and arguments.
template <class Spec> struct token_operations {
  using out_type = typename kda::detail::traits<Spec>::io::out;
  packed_tensors<Spec> in;
  std::vector<float> g, beta, y, weight;
  std::vector<out_type> norm_gate, normed;

  explicit token_operations(const geometry& shape)
      : in(ordinary_problem<Spec>(shape, 1)),
        g(in.gate.size()),
        beta(in.beta.size()),
        y(in.q.size()),
        weight(random_numbers(2).normals(shape.V)),
        norm_gate(rounded_to<out_type>(random_numbers(3).normals(std::ssize(in.v)))),
        normed(in.v.size()) {
    for (auto* x : {&g, &beta, &y}) fill_bytes(*x, canary_bytes);
    fill_bytes(normed, canary_bytes);
  }
  /// f(call, args) for each.
  template <class F> void for_each(const F& f) {
    const auto& kernels = kernels_of<Spec>();
    const kda::delta_rule_args<Spec> a = in.args();
    kda::gate_args<Spec> gate_args{.x = a.gate, .gate_params = a.gate_params};
    gate_args.g.data = g.data();
    std::copy(std::begin(a.gate.shape), std::end(a.gate.shape), gate_args.g.shape);
    std::copy(std::begin(a.gate.stride), std::end(a.gate.stride), gate_args.g.stride);
    const auto [T, H, HV, K, V] = in.g;
    f(kernels.gate, gate_args);
    f(kernels.beta, kda::beta_args<Spec>{.b = a.beta, .beta = kda::packed(beta.data(), T, HV)});
    f(kernels.l2norm,
      kda::l2norm_args<Spec>{.x = a.q, .eps = 1e-6f, .scale = 0.5f, .y = kda::packed(y.data(), T, H, K)});
    f(kernels.norm, kda::norm_args<Spec>{.x = a.v,
                                         .gate = kda::packed(static_cast<const out_type*>(norm_gate.data()), T, HV, V),
                                         .weight = kda::packed(static_cast<const float*>(weight.data()), V),
                                         .eps = 1e-5f,
                                         .y = kda::packed(normed.data(), T, HV, V)});
  }
};

/// f(array) for every view and list that a call reads, pools aside.
template <class Args, class F> void for_each_input(Args& a, const F& f) {
  if constexpr (requires { a.q; }) f(a.q), f(a.k), f(a.v), f(a.beta);
  if constexpr (requires { a.x; }) f(a.x);
  if constexpr (requires { a.b; }) f(a.b);
  if constexpr (requires { a.gate.data; }) f(a.gate);
  if constexpr (requires { a.weight; }) f(a.weight);
  if constexpr (requires { a.bias; }) f(a.bias);
  if constexpr (requires { a.gate_params.a_log; }) f(a.gate_params.a_log), f(a.gate_params.dt_bias);
  if constexpr (requires { a.sequences; }) {
    kda::sequences& s = a.sequences;
    f(s.offsets), f(s.load_slots), f(s.store_slots), f(s.has_initial_state), f(s.first_position);
  }
}
/// The view that a call writes.
template <class Args> auto& output_of(Args& a) {
  if constexpr (requires { a.out; })
    return a.out;
  else if constexpr (requires { a.y; })
    return a.y;
  else if constexpr (requires { a.g; })
    return a.g;
  else
    return a.beta;
}
template <class Args> constexpr const char* output_name() {
  return requires(Args a) { a.out; }
  ? "out" : requires(Args a) { a.y; }
  ? "y" : requires(Args a) { a.g; }
  ? "g" : "beta";
}

/// Elements of a view without gaps.
template <class T, std::size_t Rank> std::size_t elements_of(const kda::view<T, Rank>& v) {
  std::size_t n = 1;
  for (const index extent : v.shape) n *= size(extent);
  return n;
}

}  // namespace testing

/// For TEMPLATE_TEST_CASE: everything that has sequences and states, in every layout and storage type.
#define KDA_TEST_CALLS                                                                                               \
  testing::decode_call<specs::kda_given_key>, testing::prefill_call<specs::kda_given_key>,                           \
      testing::decode_call<specs::kda_bounded>, testing::prefill_call<specs::kda_bounded>,                           \
      testing::decode_call<specs::gdn_softplus>, testing::prefill_call<specs::gdn_softplus>,                         \
      testing::decode_call<specs::kda_bf16_key>, testing::prefill_call<specs::kda_bf16_key>,                         \
      testing::decode_call<specs::kda_bf16_value>, testing::prefill_call<specs::kda_bf16_value>,                     \
      testing::decode_call<specs::qwen>, testing::prefill_call<specs::qwen>, testing::conv_call<specs::kda_bounded>, \
      testing::conv_call<specs::gdn_softplus>, testing::conv_call<specs::glm>, testing::conv_call<specs::qwen>,      \
      testing::conv_call<specs::kda_f16>
