// SPDX-License-Identifier: Apache-2.0
// What an engine needs, said once: spec<options...>, options in any order. It has no ISA, so every translation unit of
// a program means the same type by it.
#pragma once
#include "bf16.hpp"
#include "config.hpp"
#include "f16.hpp"

#include <cstddef>
#include <type_traits>

namespace kda::inline v0 {

namespace option_kind {
struct decay;
struct gate;
struct beta;
struct qk;
struct head_map;
struct io;
struct intermediate;
struct state;
struct products;
struct dims;
struct conv;
struct norm;
}  // namespace option_kind

/// How the state forgets, per value head: S <- diag(exp g) S.
namespace decay {
struct per_channel {  ///< g in R^K: Kimi Delta Attention
  using kind = option_kind::decay;
};
struct per_head {  ///< g a number: Gated DeltaNet
  using kind = option_kind::decay;
};
struct none {  ///< g = 0: the plain delta rule; takes no gate
  using kind = option_kind::decay;
};
}  // namespace decay

/// Where the log decay g comes from. x is the gate's logit; a = exp(A_log), per value head.
namespace gate {
struct bounded {  ///< g = lower_bound sigmoid(a (x + dt_bias)): GLM-5.3-Flash, Kimi K3, Ling-3.0
  using kind = option_kind::gate;
};
struct softplus {  ///< g = -a softplus(x + dt_bias): Kimi-Linear, Qwen3-Next, Qwen3.5
  using kind = option_kind::gate;
};
struct given {  ///< g is passed in, anywhere in [-inf, 0]
  using kind = option_kind::gate;
};
}  // namespace gate

/// Strength of the update, one number per token and value head.
namespace beta {
struct logits {  ///< beta = sigmoid(b)
  using kind = option_kind::beta;
};
struct logits_doubled {  ///< beta = 2 sigmoid(b), in (0, 2): FLA's allow_neg_eigval
  using kind = option_kind::beta;
};
struct given {  ///< beta is passed in
  using kind = option_kind::beta;
};
}  // namespace beta

/// What happens to q and k. The scale (K^-1/2 unless given) multiplies q either way.
namespace qk {
struct l2_normalized {  ///< the kernel divides each by sqrt(sum of squares + 1e-6)
  using kind = option_kind::qk;
};
struct as_given {  ///< the caller has normalised them, or wants none; they are never normalised twice
  using kind = option_kind::qk;
};
}  // namespace qk

/// Which q/k head serves value head hv when there are more value heads than q/k heads (HV a multiple of H).
namespace head_map {
struct interleaved {  ///< hv / (HV / H): transformers, FLA, vLLM (the default)
  using kind = option_kind::head_map;
};
struct tiled {  ///< hv % H: ggml, GGUF files
  using kind = option_kind::head_map;
};
}  // namespace head_map

/// Types of the tensors (float, bf16 or f16). A_log, dt_bias, convolution and norm weights are always float.
template <class QKV, class Gate = QKV, class Beta = QKV, class Out = QKV> struct io { using kind = option_kind::io; };

/// Type of the tensors between the stages (float, bf16 or f16): what conv writes, what the delta rule reads as q, k, v
/// and writes, what norm reads. Left out: the types of io, as transformers and vLLM round. `step` rounds between its
/// stages as the calls of the same spec do, one by one.
template <class T> struct intermediate { using kind = option_kind::intermediate; };

/// Order of the two dimensions of a head's state in memory. Equal K and V hide a mix-up: name it from the engine's
/// documents.
enum class layout {
  key_major,    ///< [K, V]: transformers, FLA, Atlas
  value_major,  ///< [V, K]: vLLM, SGLang, FlashKDA, ggml
};

/// How states are stored (float or bf16); arithmetic is fp32 either way. With bf16, decode rounds the state after each
/// token, prefill once, at the end of the call. There is no f16 state: it would drift.
template <class T, layout Layout> struct state { using kind = option_kind::state; };

/// What prefill may round the factors of its large products to: float (the default), or bf16, for S, keys and updates
/// against each other, where the ISA has an instruction for that (avx512_bf16; the others compute as with float). Sums,
/// the state, gates, the relations of a chunk's tokens and all of decode stay fp32. Error: docs/numerics.md.
template <class T> struct products { using kind = option_kind::products; };

/// Dimensions known when compiling; 0: at run time (K from 1 to 256, any V).
template <std::ptrdiff_t K = 0, std::ptrdiff_t V = 0> struct dims { using kind = option_kind::dims; };

/// Functions of convolution and output gate.
enum class activation { none, silu, sigmoid };

/// Order of the convolution state within a slot, see conv_pool.
enum class conv_state {
  time_major,     ///< [W - 1, C]: vLLM's default
  channel_major,  ///< [C, W - 1]: transformers (which keeps W columns), FLA
};

/// Short causal convolution of q, k and v; activation silu or none.
template <activation Activation, conv_state Layout> struct conv { using kind = option_kind::conv; };

/// When the norm's weight multiplies, relative to the rounding to the output type.
enum class weight {
  before_cast,  ///< all in fp32, one rounding at the end: GLM-5.3-Flash, Kimi-Linear
  after_cast,   ///< round, multiply, round, gate, round: Qwen3-Next, Qwen3.5
};

/// Gated RMS norm of the output; activation sigmoid or silu.
template <activation Activation, weight Order> struct norm { using kind = option_kind::norm; };

/// The options of one kind of linear attention. Required: decay, gate (unless decay::none), beta, qk, io, state.
/// Optional: head_map (interleaved), dims (at run time), intermediate (as io), products (float), conv and norm (without
/// them, the set has no such kernel; step needs both).
template <class... Options> struct spec {};

namespace detail {

template <class T>
concept option = requires {
  typename T::kind;
};

template <class Option, class Kind> consteval int is_of() {
  if constexpr (option<Option>)
    return std::is_same_v<typename Option::kind, Kind> ? 1 : 0;
  else
    return 0;
}
template <class Kind, class... Options> inline constexpr int count = (0 + ... + is_of<Options, Kind>());

// The first option of a kind, or the fallback.
template <class Kind, class Fallback, class... Options> struct find { using type = Fallback; };
template <class Kind, class Fallback, class First, class... Rest> struct find<Kind, Fallback, First, Rest...> {
  using type = typename std::conditional_t<is_of<First, Kind>() == 1, std::type_identity<First>,
                                           find<Kind, Fallback, Rest...>>::type;
};

enum class mistake {
  none,
  not_option,
  no_decay,
  two_decays,
  no_gate,
  needless_gate,
  two_gates,
  no_beta,
  two_betas,
  no_qk,
  two_qks,
  two_head_maps,
  no_io,
  two_ios,
  two_intermediates,
  no_state,
  two_states,
  two_products,
  two_dims,
  two_convs,
  two_norms,
  io_type,
  intermediate_type,
  state_type,
  products_type,
  dims_range,
  conv_activation,
  norm_activation,
};

template <class T> inline constexpr bool storable = std::is_same_v<T, float> || std::is_same_v<T, bf16>;
template <class T> inline constexpr bool is_tensor_type = storable<T> || std::is_same_v<T, f16>;

template <class Io> struct io_types;
template <class QKV, class Gate, class Beta, class Out> struct io_types<io<QKV, Gate, Beta, Out>> {
  using qkv = QKV;
  using gate = Gate;
  using beta = Beta;
  using out = Out;
  static constexpr bool valid =
      is_tensor_type<QKV> && is_tensor_type<Gate> && is_tensor_type<Beta> && is_tensor_type<Out>;
};
struct no_intermediate {};
template <class Intermediate, class Io> struct stage_types {
  using qkv = typename Io::qkv;
  using out = typename Io::out;
  static constexpr bool valid = true;
};
template <class T, class Io> struct stage_types<intermediate<T>, Io> {
  using qkv = T;
  using out = T;
  static constexpr bool valid = is_tensor_type<T>;
};
template <class State> struct state_types;
template <class T, layout L> struct state_types<state<T, L>> {
  using type = T;
  static constexpr layout order = L;
};
template <class Products> struct products_types;
template <class T> struct products_types<products<T>> {
  using type = T;
  static constexpr bool valid = std::is_same_v<T, float> || std::is_same_v<T, bf16>;
};
template <class Dims> struct dims_values;
template <std::ptrdiff_t K, std::ptrdiff_t V> struct dims_values<dims<K, V>> {
  static constexpr std::ptrdiff_t key = K, value = V;
};
struct no_conv {};
template <class Conv> struct conv_values {
  static constexpr bool present = false;
  static constexpr activation act = activation::none;
  static constexpr conv_state order = conv_state::time_major;
};
template <activation A, conv_state L> struct conv_values<conv<A, L>> {
  static constexpr bool present = true;
  static constexpr activation act = A;
  static constexpr conv_state order = L;
};
struct no_norm {};
template <class Norm> struct norm_values {
  static constexpr bool present = false;
  static constexpr activation act = activation::sigmoid;
  static constexpr weight order = weight::before_cast;
};
template <activation A, weight W> struct norm_values<norm<A, W>> {
  static constexpr bool present = true;
  static constexpr activation act = A;
  static constexpr weight order = W;
};

// The options after defaults, and the first mistake in them.
template <class... O> struct resolve {
  using decay = typename find<option_kind::decay, decay::per_channel, O...>::type;
  using gate = typename find<option_kind::gate, gate::given, O...>::type;
  using beta = typename find<option_kind::beta, beta::given, O...>::type;
  using qk = typename find<option_kind::qk, qk::as_given, O...>::type;
  using head_map = typename find<option_kind::head_map, head_map::interleaved, O...>::type;
  using io = io_types<typename find<option_kind::io, kda::io<float>, O...>::type>;
  using stage = stage_types<typename find<option_kind::intermediate, no_intermediate, O...>::type, io>;
  using state = state_types<typename find<option_kind::state, kda::state<float, layout::key_major>, O...>::type>;
  using products = products_types<typename find<option_kind::products, kda::products<float>, O...>::type>;
  using dims = dims_values<typename find<option_kind::dims, kda::dims<>, O...>::type>;
  using conv = conv_values<typename find<option_kind::conv, no_conv, O...>::type>;
  using norm = norm_values<typename find<option_kind::norm, no_norm, O...>::type>;

  static consteval mistake first_mistake() {
    if (!(option<O> && ...)) return mistake::not_option;
    if (count<option_kind::decay, O...> == 0) return mistake::no_decay;
    if (count < option_kind::decay, O... >> 1) return mistake::two_decays;
    if (std::is_same_v<decay, kda::decay::none>) {
      if (count<option_kind::gate, O...> != 0) return mistake::needless_gate;
    } else if (count<option_kind::gate, O...> == 0) {
      return mistake::no_gate;
    }
    if (count < option_kind::gate, O... >> 1) return mistake::two_gates;
    if (count<option_kind::beta, O...> == 0) return mistake::no_beta;
    if (count < option_kind::beta, O... >> 1) return mistake::two_betas;
    if (count<option_kind::qk, O...> == 0) return mistake::no_qk;
    if (count < option_kind::qk, O... >> 1) return mistake::two_qks;
    if (count < option_kind::head_map, O... >> 1) return mistake::two_head_maps;
    if (count<option_kind::io, O...> == 0) return mistake::no_io;
    if (count < option_kind::io, O... >> 1) return mistake::two_ios;
    if (count < option_kind::intermediate, O... >> 1) return mistake::two_intermediates;
    if (count<option_kind::state, O...> == 0) return mistake::no_state;
    if (count < option_kind::state, O... >> 1) return mistake::two_states;
    if (count < option_kind::products, O... >> 1) return mistake::two_products;
    if (count < option_kind::dims, O... >> 1) return mistake::two_dims;
    if (count < option_kind::conv, O... >> 1) return mistake::two_convs;
    if (count < option_kind::norm, O... >> 1) return mistake::two_norms;
    if (!io::valid) return mistake::io_type;
    if (!stage::valid) return mistake::intermediate_type;
    if (!storable<typename state::type>) return mistake::state_type;
    if (!products::valid) return mistake::products_type;
    if (dims::key < 0 || dims::key > 256 || dims::value < 0) return mistake::dims_range;
    if (conv::act == activation::sigmoid) return mistake::conv_activation;
    if (norm::act == activation::none) return mistake::norm_activation;
    return mistake::none;
  }
};

// One sentence per mistake. A function: clang takes no more names from a class whose static_assert has failed.
template <mistake M> consteval bool say() {
  static_assert(M != mistake::not_option,
                "kda::spec: every argument must be a kda option, such as kda::decay::per_channel");
  static_assert(M != mistake::no_decay,
                "kda::spec: name the decay: kda::decay::per_channel (KDA), per_head (GDN) or none");
  static_assert(M != mistake::two_decays, "kda::spec: two decay options");
  static_assert(M != mistake::no_gate, "kda::spec: name the gate law: kda::gate::bounded, softplus or given");
  static_assert(M != mistake::needless_gate, "kda::spec: decay::none has no gate; leave the gate option out");
  static_assert(M != mistake::two_gates, "kda::spec: two gate options");
  static_assert(M != mistake::no_beta, "kda::spec: name the form of beta: kda::beta::logits, logits_doubled or given");
  static_assert(M != mistake::two_betas, "kda::spec: two beta options");
  static_assert(M != mistake::no_qk,
                "kda::spec: say whether the kernel normalises q and k: kda::qk::l2_normalized or as_given");
  static_assert(M != mistake::two_qks, "kda::spec: two qk options");
  static_assert(M != mistake::two_head_maps, "kda::spec: two head_map options");
  static_assert(M != mistake::no_io, "kda::spec: name the tensor types: kda::io<kda::bf16> or kda::io<float>");
  static_assert(M != mistake::two_ios, "kda::spec: two io options");
  static_assert(M != mistake::two_intermediates, "kda::spec: two intermediate options");
  static_assert(M != mistake::no_state,
                "kda::spec: name the state: kda::state<float, kda::layout::key_major> or value_major");
  static_assert(M != mistake::two_states, "kda::spec: two state options");
  static_assert(M != mistake::two_products, "kda::spec: two products options");
  static_assert(M != mistake::two_dims, "kda::spec: two dims options");
  static_assert(M != mistake::two_convs, "kda::spec: two conv options");
  static_assert(M != mistake::two_norms, "kda::spec: two norm options");
  static_assert(M != mistake::io_type, "kda::io: tensors are float, kda::bf16 or kda::f16");
  static_assert(M != mistake::intermediate_type,
                "kda::intermediate: tensors between stages are float, kda::bf16 or kda::f16");
  static_assert(
      M != mistake::state_type,
      "kda::state: states are stored as float or kda::bf16; kda::f16 is for tensors, a state would drift in it");
  static_assert(M != mistake::products_type, "kda::products: factors are float or rounded to kda::bf16");
  static_assert(M != mistake::dims_range, "kda::dims: K is at most 256 and neither is negative (0: known at run time)");
  static_assert(M != mistake::conv_activation, "kda::conv: the activation is silu or none");
  static_assert(M != mistake::norm_activation, "kda::norm: the activation is sigmoid or silu");
  return M == mistake::none;
}

// After a mistake the defaults stand in, so that one sentence is all the compiler says.
template <class Spec> struct traits : resolve<> {
  static_assert(std::is_void_v<Spec>, "kda: the template argument must be a kda::spec<...>");
};
template <class... O>
struct traits<spec<O...>> : std::conditional_t<say<resolve<O...>::first_mistake()>(), resolve<O...>, resolve<>> {};

template <class Spec>
inline constexpr bool is_per_channel = std::is_same_v<typename traits<Spec>::decay, decay::per_channel>;
template <class Spec> inline constexpr bool has_step = traits<Spec>::conv::present&& traits<Spec>::norm::present;
template <class Spec> inline constexpr bool is_decaying = !std::is_same_v<typename traits<Spec>::decay, decay::none>;

}  // namespace detail
}  // namespace kda::inline v0
