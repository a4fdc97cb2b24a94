// SPDX-License-Identifier: Apache-2.0
// The kernels of one ISA as plain functions from vectors to vectors, on whichever test spec has the wanted options.
#pragma once
#include "support/delta_rule.hpp"

#include <limits>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

namespace golden {

namespace ref = kda::reference;
using testing::index;
using testing::size;
using floats = std::vector<float>;

/// All tables of one ISA.
struct engine {
  std::string isa;
  const std::remove_pointer_t<decltype(kda::select_exactly(test_kernels, kda::isa::scalar))>* tables;

  template <class Spec> [[nodiscard]] const kda::table<Spec>& of() const { return tables->template get<Spec>(); }
};

inline void accept(const kda::status& s) {
  if (!s) throw std::runtime_error(std::string(s.argument) + " " + kda::message(s.what));
}

inline floats rounded(const std::vector<double>& x) {
  floats y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) y[i] = static_cast<float>(x[i]);
  return y;
}
inline floats poison(index n) { return floats(size(n), std::numeric_limits<float>::quiet_NaN()); }

/// Columns [first, first + width) of a [rows, columns] matrix.
inline floats columns_of(const floats& x, index columns, index first, index width) {
  floats y;
  for (auto row = x.begin(); row != x.end(); row += columns) y.insert(y.end(), row + first, row + first + width);
  return y;
}

/// [m, n] to [n, m].
inline floats transposed(const floats& x, index m, index n) {
  floats y(x.size());
  for (index i = 0; i < m; ++i)
    for (index j = 0; j < n; ++j) y[size(j * m + i)] = x[size(i * n + j)];
  return y;
}

inline auto view_of(const floats& x) { return kda::packed(x.data(), std::ssize(x)); }

template <class Spec>
floats l2norm(const engine& e, const floats& x, index T, index H, index K, double eps, double scale) {
  floats y = poison(std::ssize(x));
  accept(e.of<Spec>().l2norm({.x = kda::packed(x.data(), T, H, K),
                              .eps = static_cast<float>(eps),
                              .scale = static_cast<float>(scale),
                              .y = kda::packed(y.data(), T, H, K)},
                             testing::scratch(0), kda::serial));
  return y;
}

struct gate_parameters {
  bool bounded;
  double lower_bound;  // 0 if not bounded
  floats a_log, dt_bias;
};

template <class Spec> kda::detail::gate_params_of<Spec> params_of(const gate_parameters& p) {
  if constexpr (std::is_same_v<kda::detail::gate_params_of<Spec>, kda::bounded_gate_params>)
    return {.lower_bound = static_cast<float>(p.lower_bound), .a_log = view_of(p.a_log), .dt_bias = view_of(p.dt_bias)};
  else
    return {.a_log = view_of(p.a_log), .dt_bias = view_of(p.dt_bias)};
}

/// Log decay [T, HV, K] for a per-channel spec, [T, HV] for a per-head one.
template <class Spec>
floats gate(const engine& e, const floats& x, const gate_parameters& p, index T, index HV, index K) {
  floats g = poison(std::ssize(x));
  const auto call = [&](const auto& logits, const auto& result) {
    accept(e.of<Spec>().gate({.x = logits, .gate_params = params_of<Spec>(p), .g = result}, testing::scratch(0),
                             kda::serial));
  };
  if constexpr (kda::detail::is_per_channel<Spec>)
    call(kda::packed(x.data(), T, HV, K), kda::packed(g.data(), T, HV, K));
  else
    call(kda::packed(x.data(), T, HV), kda::packed(g.data(), T, HV));
  return g;
}

template <class Spec> floats beta(const engine& e, const floats& logits, index T, index HV) {
  floats beta = poison(std::ssize(logits));
  accept(e.of<Spec>().beta({.b = kda::packed(logits.data(), T, HV), .beta = kda::packed(beta.data(), T, HV)},
                           testing::scratch(0), kda::serial));
  return beta;
}

struct convolved {
  floats y, state;  // [T, C], [W - 1, C]
};

/// x [T, C] in calls of the given lengths, from `state` [W - 1, C], or from nothing if it is empty. The state passes
/// from call to call through the two slots of a pool, which hold NaN where nothing was put.
template <class Spec>
convolved conv(const engine& e, const floats& x, const floats& weight, const floats& state, index T, index C, index W,
               const std::vector<index>& lengths) {
  constexpr bool time_major = kda::detail::traits<Spec>::conv::order == kda::conv_state::time_major;
  const index block = (W - 1) * C;
  const bool fresh = state.empty();
  floats y = poison(T * C), pool = poison(2 * block);
  if (!fresh) {
    const floats stored = time_major ? state : transposed(state, W - 1, C);
    std::copy(stored.begin(), stored.end(), pool.begin());
  }
  std::int64_t first = 0;
  std::int32_t slots[] = {0, 1};
  bool has_state = !fresh;
  for (const index length : lengths) {
    const std::int64_t offsets[] = {first, first + length};
    accept(e.of<Spec>().conv({.x = kda::packed(x.data(), T, C),
                              .weight = kda::packed(weight.data(), C, W),
                              .y = kda::packed(y.data(), T, C),
                              .sequences = {.offsets = kda::indices(offsets, 2),
                                            .load_slots = kda::indices(&slots[0], 1),
                                            .store_slots = kda::indices(&slots[1], 1),
                                            .has_initial_state = kda::packed(&has_state, 1)},
                              .states = {.data = pool.data(),
                                         .slots = 2,
                                         .slot_stride = block,
                                         .columns = W - 1,
                                         .stride = time_major ? C : W - 1}},
                             testing::scratch(1), kda::serial));
    std::swap(slots[0], slots[1]);
    first += length;
    has_state = true;
  }
  const auto last = pool.begin() + slots[0] * block;
  const floats stored(last, last + block);
  return {y, time_major ? stored : transposed(stored, C, W - 1)};
}

template <class Spec>
floats norm(const engine& e, const floats& x, const floats& gate, const floats& weight, index T, index HV, index V,
            double eps) {
  floats y = poison(std::ssize(x));
  accept(e.of<Spec>().norm({.x = kda::packed(x.data(), T, HV, V),
                            .gate = kda::packed(gate.data(), T, HV, V),
                            .weight = view_of(weight),
                            .eps = static_cast<float>(eps),
                            .y = kda::packed(y.data(), T, HV, V)},
                           testing::scratch(0), kda::serial));
  return y;
}

// ---- options that a file chooses -----------------------------------------------------------------------------------

inline floats gate_per_channel(const engine& e, const floats& x, const gate_parameters& p, index T, index HV, index K) {
  return p.bounded ? gate<specs::kda_bounded>(e, x, p, T, HV, K) : gate<specs::kda_softplus>(e, x, p, T, HV, K);
}
inline floats gate_per_head(const engine& e, const floats& x, const gate_parameters& p, index T, index HV) {
  return p.bounded ? gate<specs::gdn_bounded>(e, x, p, T, HV, 1) : gate<specs::gdn_softplus>(e, x, p, T, HV, 1);
}

enum class conv_order { time_major, channel_major };

inline convolved conv(const engine& e, ref::activation_kind a, conv_order order, const floats& x, const floats& weight,
                      const floats& state, index T, index C, index W, const std::vector<index>& lengths) {
  const auto call = [&]<class Spec>(Spec) { return conv<Spec>(e, x, weight, state, T, C, W, lengths); };
  const bool silu = a == ref::activation_kind::silu;
  if (order == conv_order::time_major) return silu ? call(specs::kda_bounded{}) : call(specs::gdn_bounded{});
  return silu ? call(specs::gdn_softplus{}) : call(specs::kda_softplus{});
}

/// In float the weight's place makes no difference, so one order does for sigmoid.
inline floats norm(const engine& e, ref::activation_kind a, bool weight_after_cast, const floats& x, const floats& gate,
                   const floats& weight, index T, index HV, index V, double eps) {
  if (a == ref::activation_kind::sigmoid) return norm<specs::kda_bounded>(e, x, gate, weight, T, HV, V, eps);
  return weight_after_cast ? norm<specs::gdn_softplus>(e, x, gate, weight, T, HV, V, eps)
                           : norm<specs::kda_softplus>(e, x, gate, weight, T, HV, V, eps);
}

}  // namespace golden
