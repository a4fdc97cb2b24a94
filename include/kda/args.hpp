// SPDX-License-Identifier: Apache-2.0
// Arguments of the kernels: aggregates, to be filled by name. Letters: T tokens of the packed batch, N sequences, H q/k
// heads, HV value heads (a multiple of H), K key channels, V value channels, C convolution channels, W convolution
// width.
//
// Every tensor may be a strided view (view.hpp): token and head strides are free, channels lie side by side. A call
// that finds a wrong argument returns a status that names it, before it has written anything. Outputs, states
// and workspace may not share memory with each other or with inputs.
#pragma once
#include "batch.hpp"
#include "spec.hpp"
#include "view.hpp"

#include <type_traits>

namespace kda::inline v0 {

namespace detail {
template <class> inline constexpr bool left_out = false;
}

/// A member that must be given: leaving it out is a sentence from the compiler, not a silent zero.
template <class T> struct required {
  T value;
  template <class U = T> constexpr required() : value{} {
    static_assert(detail::left_out<U>,
                  "kda: a required member was left out: lower_bound, eps and scale have no default");
  }
  KDA_INLINE constexpr required(T v) : value(v) {}
};

/// Parameters of gate::bounded: g = lower_bound sigmoid(exp(A_log) (x + dt_bias)).
struct bounded_gate_params {
  required<float> lower_bound;     ///< finite and below 0; a factor, not a clamp (GLM-5.3-Flash, Kimi K3: -5)
  view<const float, 1> a_log{};    ///< [>= HV], later entries are ignored; left out: 0
  view<const float, 1> dt_bias{};  ///< [HV * K], head-major (per_channel), or [HV] (per_head); left out: 0
};

/// Parameters of gate::softplus: g = -exp(A_log) softplus(x + dt_bias).
struct softplus_gate_params {
  view<const float, 1> a_log{};    ///< [>= HV], later entries are ignored
  view<const float, 1> dt_bias{};  ///< [HV * K], head-major (per_channel), or [HV] (per_head); left out: 0
};

/// gate::given and decay::none have no parameters.
struct no_gate_params {};

namespace detail {
struct no_gate {};

// Gate logits: [T, HV, K] with per-channel, [T, HV] with per-head decay.
template <class Spec, class T>
using gate_view =
    std::conditional_t<!is_decaying<Spec>, no_gate, std::conditional_t<is_per_channel<Spec>, view<T, 3>, view<T, 2>>>;

template <class Spec>
using gate_params_of =
    std::conditional_t<std::is_same_v<typename traits<Spec>::gate, gate::bounded>, bounded_gate_params,
                       std::conditional_t<std::is_same_v<typename traits<Spec>::gate, gate::softplus>,
                                          softplus_gate_params, no_gate_params>>;
}  // namespace detail

/// The types of a spec's tensors, for code that builds arguments.
template <class Spec> struct types {
  using t = detail::traits<Spec>;
  using qkv = typename t::io::qkv;           ///< raw projections: conv's x, step's q, k, v, convolution states
  using stage_qkv = typename t::stage::qkv;  ///< conv's y; q, k, v of prefill and decode
  using gate = typename t::io::gate;         ///< gate logits
  using beta = typename t::io::beta;         ///< beta's logits, or beta
  using stage_out = typename t::stage::out;  ///< what prefill and decode write; norm's x
  using out = typename t::io::out;           ///< output gate; what norm and step write
  using state = typename t::state::type;     ///< recurrent states
  using gate_params = detail::gate_params_of<Spec>;
};

/// Value heads [first, first + count); count 0: all from `first` on.
struct head_range {
  std::ptrdiff_t first = 0, count = 0;
};

/// How step takes a sequence through the delta rule. The caller chooses: bits never depend on how long a sequence is.
enum class mode : unsigned char {
  decode,   ///< token by token, as kernels::decode
  prefill,  ///< in chunks, as kernels::prefill
};

/// Arguments of prefill (chunked) and decode (recurrent). Per sequence, value head and token
///
///     S <- diag(exp g) S;   d = beta (v - S^T k);   S <- S + k d^T;   out = S^T q
///
/// (Kimi Linear, arXiv 2510.26692; Gated Delta Networks, arXiv 2412.06464), with q and k normalised and q scaled as
/// the spec says.
template <class Spec> struct delta_rule_args {
  using t = detail::traits<Spec>;
  view<const typename t::stage::qkv, 3> q{};                   ///< [T, H, K]
  view<const typename t::stage::qkv, 3> k{};                   ///< [T, H, K]
  view<const typename t::stage::qkv, 3> v{};                   ///< [T, HV, V]
  detail::gate_view<Spec, const typename t::io::gate> gate{};  ///< [T, HV, K] or [T, HV]: logits, or log decay if given
  view<const typename t::io::beta, 2> beta{};                  ///< [T, HV], both strides free
  view<typename t::stage::out, 3> out{};                       ///< [T, HV, V]; left out: only states are wanted
  detail::gate_params_of<Spec> gate_params{};
  float scale = 0;  ///< multiplies q: positive and finite; 0 stands for K^-1/2
  /// Only these value heads: nothing of the others is read or written. Bits are those of a call over all.
  head_range heads{};
  kda::sequences sequences{};
  state_pool<typename t::state::type> states{};
};

/// Arguments of conv: y[t, c] = act(bias[c] + sum over j < W of weight[c, j] x[t - W + 1 + j, c]), where x before the
/// sequence's first token comes from its state, or is 0 if it is fresh. Sums in fp32, one rounding. q | k | v side by
/// side in one call, or each in its own with its own columns of the state.
template <class Spec> struct conv_args {
  using t = detail::traits<Spec>;
  view<const typename t::io::qkv, 2> x{};  ///< [T, C] raw projections
  view<const float, 2> weight{};           ///< [C, W], W from 2 to 4; weight[c, W - 1] meets the current token
  view<const float, 1> bias{};             ///< [C]; left out: 0
  view<typename t::stage::qkv, 2> y{};     ///< [T, C]; left out: only states are wanted
  kda::sequences sequences{};
  conv_pool<typename t::io::qkv> states{};
};

/// Arguments of gate, the law alone: g from logits, as prefill and decode take it.
template <class Spec> struct gate_args {
  using t = detail::traits<Spec>;
  detail::gate_view<Spec, const typename t::io::gate> x{};  ///< [T, HV, K] or [T, HV]
  detail::gate_params_of<Spec> gate_params{};
  detail::gate_view<Spec, float> g{};  ///< as x: natural logarithm of the decay
};

/// Arguments of beta, alone: beta from logits, as prefill and decode take it.
template <class Spec> struct beta_args {
  using t = detail::traits<Spec>;
  view<const typename t::io::beta, 2> b{};  ///< [T, HV]
  view<float, 2> beta{};                    ///< [T, HV]
};

/// Arguments of l2norm: y = scale x / sqrt(sum over K of x^2 + eps). Prefill and decode do it with eps = 1e-6.
template <class Spec> struct l2norm_args {
  using t = detail::traits<Spec>;
  view<const typename t::stage::qkv, 3> x{};  ///< [T, H, K]
  required<float> eps;                        ///< finite, at least 0
  required<float> scale;                      ///< finite
  view<float, 3> y{};                         ///< [T, H, K]
};

/// Arguments of norm: y = x / sqrt(mean over V of x^2 + eps) weight act(gate), rounded as the spec's norm option says.
template <class Spec> struct norm_args {
  using t = detail::traits<Spec>;
  view<const typename t::stage::out, 3> x{};  ///< [T, HV, V] output of the delta rule
  view<const typename t::io::out, 3> gate{};  ///< [T, HV, V] output gate before its activation
  view<const float, 1> weight{};              ///< [V]
  required<float> eps;                        ///< finite, at least 0
  view<typename t::io::out, 3> y{};           ///< [T, HV, V]
};

/// Arguments of step: a layer between its projections, in one call. Per sequence, conv of q, k and v, then prefill or
/// decode as its mode says, then norm; every number is the one that these calls give one by one.
template <class Spec> struct step_args {
  using t = detail::traits<Spec>;
  view<const typename t::io::qkv, 3> q{};                      ///< [T, H, K] raw projections: before the convolution
  view<const typename t::io::qkv, 3> k{};                      ///< [T, H, K]
  view<const typename t::io::qkv, 3> v{};                      ///< [T, HV, V], V at most 256
  view<const float, 2> conv_weight{};                          ///< [2 H K + HV V, W]: channels of q, then k, then v
  view<const float, 1> conv_bias{};                            ///< [2 H K + HV V]; left out: 0
  detail::gate_view<Spec, const typename t::io::gate> gate{};  ///< [T, HV, K] or [T, HV], see delta_rule_args
  view<const typename t::io::beta, 2> beta{};                  ///< [T, HV]
  view<const typename t::io::out, 3> output_gate{};            ///< [T, HV, V]; left out with y
  view<const float, 1> norm_weight{};                          ///< [V]
  required<float> norm_eps;                                    ///< finite, at least 0
  view<typename t::io::out, 3> y{};                            ///< [T, HV, V]; left out: only states are wanted
  detail::gate_params_of<Spec> gate_params{};
  float scale = 0;  ///< see delta_rule_args
  /// Only these value heads and the convolution channels of their own and of their q/k heads. All value heads of a q/k
  /// head belong into one call, since the call moves the q/k head's convolution window.
  head_range heads{};
  view<const mode, 1> modes{};  ///< [N]
  kda::sequences sequences{};   ///< slots are those of both pools
  state_pool<typename t::state::type> states{};
  conv_pool<typename t::io::qkv> conv_states{};  ///< 2 H K + HV V channels; first_slot as in `states`
};

}  // namespace kda::inline v0
