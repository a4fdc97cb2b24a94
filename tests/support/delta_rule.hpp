// SPDX-License-Identifier: Apache-2.0
// Problems for the delta rule: makes inputs, runs a table's prefill or decode, runs the double reference over the same
// rounded inputs, and compares.
#pragma once
#include "specs.hpp"

#include <kda/batch.hpp>
#include <kda/reference.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace testing {

using index = std::ptrdiff_t;
constexpr std::size_t size(index n) { return static_cast<std::size_t>(n); }

// ---- ISAs -----------------------------------------------------------------------------------------------------------

/// The ISA of this run: KDA_TEST_ISA, which tests/emulated/on.sh sets, or else the best that this CPU has.
inline kda::isa current_isa() {
  const char* wanted = std::getenv("KDA_TEST_ISA");
  if (wanted == nullptr) return kda::best_isa();
  for (const kda::isa i : kda::all_isas)
    if (std::string(wanted) == kda::name(i)) return i;
  throw std::runtime_error("KDA_TEST_ISA names no ISA");
}

/// Under the emulator, or as slow for another reason (sanitizers): a test should shrink its sizes.
inline bool emulated() { return std::getenv("KDA_EMULATED") != nullptr || std::getenv("KDA_TEST_SMALL") != nullptr; }

template <class Spec, class... Specs> const kda::table<Spec>* table_in(kda::kernel_list<Specs...> list, kda::isa isa) {
  const auto* t = kda::select_exactly(list, isa);
  return t == nullptr ? nullptr : &t->template get<Spec>();
}

template <class Spec>
inline constexpr bool has_products = std::is_base_of_v<kda::table<Spec>, kda::tables<KDA_PRODUCTS_SPECS>>;

/// The table of a spec for an ISA; null if it was not built, or this CPU lacks the ISA.
template <class Spec> const kda::table<Spec>* kernels_on(kda::isa isa) {
  if constexpr (has_products<Spec>)
    return table_in<Spec>(products_kernels, isa);
  else
    return table_in<Spec>(test_kernels, isa);
}
/// The same, forced to 1 x 1 blocking.
template <class Spec> const kda::table<Spec>* one_by_one_kernels_on(kda::isa isa) {
  if constexpr (has_products<Spec>)
    return table_in<Spec>(products_kernels_1x1, isa);
  else
    return table_in<Spec>(test_kernels_1x1, isa);
}

/// The table of a spec for the current ISA. Not having one is an error, never a skip.
template <class Spec> const kda::table<Spec>& kernels_of(bool one_by_one = false) {
  const kda::table<Spec>* t = one_by_one ? one_by_one_kernels_on<Spec>(current_isa()) : kernels_on<Spec>(current_isa());
  if (t == nullptr) throw std::runtime_error("no kernels for this ISA");
  return *t;
}

// ---- numbers --------------------------------------------------------------------------------------------------------

/// Reproducible numbers, the same with every compiler.
class random_numbers {
 public:
  explicit random_numbers(std::uint64_t seed) : state_(seed * 2 + 1) {}
  double uniform() {  // [0, 1)
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(state_ >> 11) * 0x1p-53;
  }
  float uniform(double low, double high) { return static_cast<float>(low + (high - low) * uniform()); }
  float normal() {
    const double u = 1 - uniform(), v = uniform();
    return static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v));
  }
  std::vector<float> normals(index n, double scale = 1) {
    std::vector<float> x(size(n));
    for (float& y : x) y = static_cast<float>(scale * static_cast<double>(normal()));
    return x;
  }
  std::vector<float> uniforms(index n, double low, double high) {
    std::vector<float> x(size(n));
    for (float& y : x) y = uniform(low, high);
    return x;
  }

 private:
  std::uint64_t state_;
};

template <class T> std::vector<T> rounded_to(const std::vector<float>& x) {
  std::vector<T> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = kda::round_to<T>(x[i]);
  return y;
}
template <class T> std::vector<double> widened(const std::vector<T>& x) {
  std::vector<double> y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = static_cast<double>(kda::to_float(x[i]));
  return y;
}
template <class T> std::vector<double> rounded_and_widened(const std::vector<float>& x) {
  return widened(rounded_to<T>(x));
}

/// max |got - want| / max |want|; infinite if anything is NaN or infinite, or the sizes differ.
template <class T> double relative_error(const std::vector<T>& got, const std::vector<double>& want) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double worst = 0, largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double g = static_cast<double>(kda::to_float(got[i]));
    if (!std::isfinite(g) || !std::isfinite(want[i])) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, std::abs(g - want[i]));
    largest = std::max(largest, std::abs(want[i]));
  }
  return largest > 0 ? worst / largest : worst;
}

// ---- problems -------------------------------------------------------------------------------------------------------

struct geometry {
  index T, H, HV, K, V;
};

/// Inputs of one sequence, before rounding to the spec's types. gate is [T, HV, K], [T, HV] or empty; state is [HV, K,
/// V].
struct problem {
  geometry g{};
  std::vector<float> q{}, k{}, v{}, gate{}, beta{}, state{}, a_log{}, dt_bias{};
  float lower_bound = -5, scale = 0;
  bool fresh = false;
};

template <class Spec>
inline constexpr bool has_law =
    kda::detail::is_decaying<Spec> && !std::is_same_v<typename kda::detail::traits<Spec>::gate, kda::gate::given>;
template <class Spec> constexpr index gates(const geometry& g) {
  return kda::detail::is_per_channel<Spec> ? g.HV * g.K : kda::detail::is_decaying<Spec> ? g.HV : 0;
}

/// Ordinary inputs: q, k, v, state normal; gate logits normal, or log decays uniform in (-2, 0); beta logits normal, or
/// beta uniform in (0, 1). q and k are normalised here if the spec takes them as given.
template <class Spec> problem ordinary_problem(const geometry& g, std::uint64_t seed) {
  using t = kda::detail::traits<Spec>;
  random_numbers r(seed);
  problem p{.g = g};
  p.q = r.normals(g.T * g.H * g.K);
  p.k = r.normals(g.T * g.H * g.K);
  if constexpr (std::is_same_v<typename t::qk, kda::qk::as_given>) {
    for (auto* x : {&p.q, &p.k}) {
      const auto y = kda::reference::l2norm_rows(widened(*x), g.T * g.H, g.K, 1e-6, 1);
      std::transform(y.begin(), y.end(), x->begin(), [](double e) { return static_cast<float>(e); });
    }
  }
  p.v = r.normals(g.T * g.HV * g.V);
  p.gate = has_law<Spec> ? r.normals(g.T * gates<Spec>(g)) : r.uniforms(g.T * gates<Spec>(g), -2, 0);
  p.beta = std::is_same_v<typename t::beta, kda::beta::given> ? r.uniforms(g.T * g.HV, 0, 1) : r.normals(g.T * g.HV);
  p.state = r.normals(g.HV * g.K * g.V);
  if (has_law<Spec>) {
    p.a_log = r.normals(g.HV, 0.5);
    p.dt_bias = r.normals(gates<Spec>(g), 0.5);
  }
  return p;
}

/// Outputs of a run: out as the spec's stages hand it on, state [HV, K, V] as the spec stores it.
template <class Spec> struct outcome {
  std::vector<typename kda::types<Spec>::stage_out> out;
  std::vector<typename kda::types<Spec>::state> state;
};

enum class core { decode, prefill };

template <class Spec> auto call_of(const kda::table<Spec>& table, core c) {
  return c == core::decode ? table.decode : table.prefill;
}

/// Moves a [HV, K, V] state into the spec's layout and back.
template <class Spec, class T> std::vector<T> to_layout(const std::vector<T>& key_major, const geometry& g) {
  if (kda::detail::traits<Spec>::state::order == kda::layout::key_major) return key_major;
  std::vector<T> s(key_major.size());
  for (index h = 0; h < g.HV; ++h)
    for (index k = 0; k < g.K; ++k)
      for (index v = 0; v < g.V; ++v) s[size((h * g.V + v) * g.K + k)] = key_major[size((h * g.K + k) * g.V + v)];
  return s;
}
template <class Spec, class T> std::vector<T> from_layout(const std::vector<T>& stored, const geometry& g) {
  if (kda::detail::traits<Spec>::state::order == kda::layout::key_major) return stored;
  std::vector<T> s(stored.size());
  for (index h = 0; h < g.HV; ++h)
    for (index k = 0; k < g.K; ++k)
      for (index v = 0; v < g.V; ++v) s[size((h * g.K + k) * g.V + v)] = stored[size((h * g.V + v) * g.K + k)];
  return s;
}

/// Arguments for a problem whose tensors are packed; the caller adds sequences and states.
template <class Spec> struct packed_tensors {
  using t = kda::detail::traits<Spec>;
  geometry g;
  std::vector<typename t::stage::qkv> q, k, v;
  std::vector<typename t::io::gate> gate;
  std::vector<typename t::io::beta> beta;
  std::vector<typename t::stage::out> out;
  std::vector<float> a_log, dt_bias;
  float lower_bound, scale;

  explicit packed_tensors(const problem& p)
      : g(p.g),
        q(rounded_to<typename t::stage::qkv>(p.q)),
        k(rounded_to<typename t::stage::qkv>(p.k)),
        v(rounded_to<typename t::stage::qkv>(p.v)),
        gate(rounded_to<typename t::io::gate>(p.gate)),
        beta(rounded_to<typename t::io::beta>(p.beta)),
        out(size(p.g.T * p.g.HV * p.g.V)),
        a_log(p.a_log),
        dt_bias(p.dt_bias),
        lower_bound(p.lower_bound),
        scale(p.scale) {}

  kda::delta_rule_args<Spec> args() {
    kda::delta_rule_args<Spec> a{.q = kda::packed(q.data(), g.T, g.H, g.K),
                                 .k = kda::packed(k.data(), g.T, g.H, g.K),
                                 .v = kda::packed(v.data(), g.T, g.HV, g.V),
                                 .beta = kda::packed(beta.data(), g.T, g.HV),
                                 .out = kda::packed(out.data(), g.T, g.HV, g.V),
                                 .gate_params = params(),
                                 .scale = scale};
    if constexpr (kda::detail::is_per_channel<Spec>)
      a.gate = kda::packed(gate.data(), g.T, g.HV, g.K);
    else if constexpr (kda::detail::is_decaying<Spec>)
      a.gate = kda::packed(gate.data(), g.T, g.HV);
    return a;
  }

  kda::detail::gate_params_of<Spec> params() const {
    using P = kda::detail::gate_params_of<Spec>;
    const kda::view<const float, 1> a = kda::packed(a_log.data(), std::ssize(a_log));
    const kda::view<const float, 1> d = kda::packed(dt_bias.data(), std::ssize(dt_bias));
    if constexpr (std::is_same_v<P, kda::bounded_gate_params>)
      return {.lower_bound = lower_bound, .a_log = a, .dt_bias = d};
    else if constexpr (std::is_same_v<P, kda::softplus_gate_params>)
      return {.a_log = a, .dt_bias = d};
    else
      return {};
  }
};

/// Scratch of the right size, filled with NaN.
class scratch {
 public:
  explicit scratch(index sequences, index concurrency = 1, index kept_states = 0)
      : bytes_(size(kda::workspace_bytes(
                   {.sequences = sequences, .kept_states = kept_states, .concurrency = concurrency})),
               0xff) {}
  operator kda::workspace() { return {.data = bytes_.data(), .bytes = std::ssize(bytes_)}; }

 private:
  std::vector<unsigned char> bytes_;
};

/// Runs the problem's tokens in calls of the given lengths (all in one if empty); `cores` says how each call is run,
/// the last entry also for all calls after it. The state goes from call to call through one slot.
template <class Spec>
outcome<Spec> run(const problem& p, std::vector<core> cores, std::vector<index> lengths = {},
                  const kda::table<Spec>& table = kernels_of<Spec>()) {
  using state_type = typename kda::detail::traits<Spec>::state::type;
  packed_tensors<Spec> t(p);
  const geometry& g = p.g;
  if (lengths.empty()) lengths = {g.T};
  std::vector<state_type> pool = to_layout<Spec>(rounded_to<state_type>(p.state), g);
  scratch w(1);
  std::int64_t first = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::int64_t offsets[] = {first, first + lengths[i]};
    const std::int32_t slot[] = {0};
    const bool has[] = {!p.fresh || i > 0};
    kda::delta_rule_args<Spec> a = t.args();
    a.sequences = {.offsets = kda::indices(offsets, 2),
                   .load_slots = kda::indices(slot, 1),
                   .store_slots = kda::indices(slot, 1),
                   .has_initial_state = kda::packed(has, 1),
                   .first_position = kda::indices(&offsets[0], 1)};
    a.states = {.data = pool.data(), .slots = 1, .slot_stride = g.HV * g.K * g.V};
    const kda::status s = call_of(table, cores[std::min(i, cores.size() - 1)])(a, w, kda::serial);
    if (!s) throw std::runtime_error(std::string(s.argument) + " " + kda::message(s.what));
    first += lengths[i];
  }
  return {t.out, from_layout<Spec>(pool, g)};
}

struct exact {
  std::vector<double> out, state;
};

/// The double recurrence over the problem's inputs as the spec rounds them.
template <class Spec> exact reference_of(const problem& p) {
  using t = kda::detail::traits<Spec>;
  namespace ref = kda::reference;
  const geometry& g = p.g;
  std::vector<double> gate = rounded_and_widened<typename t::io::gate>(p.gate);
  std::vector<double> beta = rounded_and_widened<typename t::io::beta>(p.beta);
  const std::vector<double> a_log = widened(p.a_log), dt_bias = widened(p.dt_bias);
  const index D = kda::detail::is_per_channel<Spec> ? g.K : 1;
  if constexpr (has_law<Spec>) {
    if constexpr (std::is_same_v<typename t::gate, kda::gate::bounded>)
      gate = ref::bounded_gate(gate, a_log, dt_bias, static_cast<double>(p.lower_bound), g.T, g.HV, D);
    else
      gate = ref::unbounded_gate(gate, a_log, dt_bias, g.T, g.HV, D);
  }
  if constexpr (std::is_same_v<typename t::beta, kda::beta::logits>) beta = ref::sigmoid(beta, 1);
  if constexpr (std::is_same_v<typename t::beta, kda::beta::logits_doubled>) beta = ref::sigmoid(beta, 2);
  const ref::delta_shape shape{.tokens = g.T,
                               .key_heads = g.H,
                               .value_heads = g.HV,
                               .key_dim = g.K,
                               .value_dim = g.V,
                               .decay = kda::detail::is_per_channel<Spec> ? ref::decay_kind::per_channel
                                        : kda::detail::is_decaying<Spec>  ? ref::decay_kind::per_head
                                                                          : ref::decay_kind::none,
                               .head_map = std::is_same_v<typename t::head_map, kda::head_map::tiled>
                                               ? ref::head_map_kind::tiled
                                               : ref::head_map_kind::interleaved};
  const double scale = p.scale > 0 ? static_cast<double>(p.scale) : 1 / std::sqrt(static_cast<double>(g.K));
  exact e;
  e.state = p.fresh ? std::vector<double>(p.state.size()) : rounded_and_widened<typename t::state::type>(p.state);
  using qkv = typename t::stage::qkv;
  const auto q = rounded_and_widened<qkv>(p.q), k = rounded_and_widened<qkv>(p.k), v = rounded_and_widened<qkv>(p.v);
  const bool normalized = std::is_same_v<typename t::qk, kda::qk::l2_normalized>;
  e.out = normalized ? ref::recurrent(q, k, v, gate, beta, e.state, shape, scale)
                     : ref::recurrent_prenorm(q, k, v, gate, beta, e.state, shape, scale);
  return e;
}

struct errors {
  double out, state;
  [[nodiscard]] double worst() const { return std::max(out, state); }
};

/// Worst errors, relative to the largest entry of each tensor, of one way of running the problem.
template <class Spec> errors errors_of(const problem& p, core c, const exact& e) {
  const outcome<Spec> o = run<Spec>(p, {c});
  return {relative_error(o.out, e.out), relative_error(o.state, e.state)};
}
template <class Spec> errors errors_of(const problem& p, core c) {
  return errors_of<Spec>(p, c, reference_of<Spec>(p));
}

/// Bounds of the contract.
inline constexpr double ordinary_bound = 3e-6, hard_bound = 1e-5;

template <class T> bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(), [](T x, T y) {
           using bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
           return __builtin_bit_cast(bits, x) == __builtin_bit_cast(bits, y);
         });
}
template <class A, class B> bool same_bits(const outcome<A>& a, const outcome<B>& b) {
  return same_bits(a.out, b.out) && same_bits(a.state, b.state);
}

}  // namespace testing
