// SPDX-License-Identifier: Apache-2.0
// Reads a checkpoint's config.json: the geometry, gate law, activations and layer list that the linear-attention
// kernels must be told. Opt-in, outside kda/kda.hpp: needs nlohmann/json (3.11) and the standard library, no
// exceptions, no RTTI.
//
//     auto config = kda::hf::load_config("GLM-5.3-Flash/config.json");
//     if (!config) return report(config.failure().message);
//     if (config->gate == kda::hf::gate_law::bounded) use(*config->lower_bound);
//
// Values are read, never defaulted. What a missing key means is settled per model_type in `detail::models` below, and
// only where every implementation agrees; otherwise the key is required, and its absence is an error that names it. A
// quantity that a file states twice must be the same both times.
#pragma once
#include "version.hpp"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace kda::inline v0::hf {

/// What one log decay covers: a key channel of a head (KDA), or the whole head (GDN).
enum class decay_kind { per_channel, per_head };

/// How the log decay follows from the projected x: lower_bound * sigmoid(exp(A_log) * (x + dt_bias)), or
/// -exp(A_log) * softplus(x + dt_bias).
enum class gate_law { bounded, softplus };

enum class activation { silu, sigmoid };

/// How a gate is projected from the hidden states: through a bottleneck of key_dim channels (two matrices), or by one
/// matrix.
enum class projection { low_rank, full_rank };

/// The linear-attention part of a config.json. All layers of a model share it.
struct linear_attention_config {
  std::string model_type;                     ///< of the file, as written
  std::ptrdiff_t hidden = 0;                  ///< X, width of the hidden states
  std::ptrdiff_t key_heads = 0;               ///< H, heads of q and k
  std::ptrdiff_t value_heads = 0;             ///< HV, heads of v, gates, state and output; a multiple of H
  std::ptrdiff_t key_dim = 0;                 ///< K, channels of a q or k head
  std::ptrdiff_t value_dim = 0;               ///< V, channels of a v head
  std::ptrdiff_t conv_width = 0;              ///< W, taps of the short convolution, the current token included
  decay_kind decay{};                         ///< one log decay per [HV, K] or per [HV]
  gate_law gate{};                            ///< bounded exactly when lower_bound has a value
  std::optional<float> lower_bound;           ///< finite and below 0: the scale of the bounded law, not a clamp
  activation conv_activation{};               ///< after the short convolution
  activation output_gate{};                   ///< on the gate of the gated RMS norm
  projection decay_projection{};              ///< of x in the gate law: f_a, f_b (KDA) or in_proj_a (GDN)
  projection output_gate_projection{};        ///< g_a, g_b or g_proj (KDA), in_proj_z (GDN)
  float rms_norm_eps = 0;                     ///< of the gated RMS norm, on the mean of squares; at least 0
  std::ptrdiff_t layers = 0;                  ///< decoder layers of every kind, without multi-token-prediction layers
  std::vector<std::ptrdiff_t> linear_layers;  ///< the linear-attention ones among them: rising, counted from 0
  std::vector<std::string> notes;  ///< one line each: what stands in the file and was not read, such as a legacy key
};

/// Why a config was refused.
struct error {
  std::string key;      ///< dotted path of the key at fault, text_config included; empty if the file itself is at fault
  std::string message;  ///< one line for a person: file (from load_config), key, what is wrong
};

/// A value, or the error that took its place.
template <class T> class [[nodiscard]] result {
 public:
  result(T value) : outcome_(std::move(value)) {}
  result(error failure) : outcome_(std::move(failure)) {}

  /// True if there is a value.
  explicit operator bool() const { return std::holds_alternative<T>(outcome_); }
  /// The value; there must be one.
  const T& operator*() const { return *std::get_if<T>(&outcome_); }
  const T* operator->() const { return std::get_if<T>(&outcome_); }
  /// The error; there must be no value.
  const error& failure() const { return *std::get_if<error>(&outcome_); }

 private:
  std::variant<T, error> outcome_;
};

namespace detail {

using json = nlohmann::json;

/// Where a quantity stands, as a dotted path: as checkpoints publish it, and as transformers' class spells it when it
/// saves.
struct spelling {
  const char* published = "";
  const char* saved = "";

  constexpr bool empty() const { return *published == '\0'; }
};

/// How a quantity is had. With an empty key the model's code fixes it to `absent`. Otherwise the key is read; if it is
/// missing or null the value is `absent`, and without an `absent` that is an error.
template <class T> struct rule {
  spelling key;
  std::optional<T> absent;
};
inline constexpr std::nullopt_t required = std::nullopt;
inline constexpr spelling no_key{};

struct geometry_keys {
  spelling key_heads, value_heads, key_dim, value_dim, conv_width;
};

/// Where the layer pattern stands, beside `layer_types`. All that a file gives must agree, and one must be there.
struct layer_keys {
  const char* linear_list = "";  ///< the linear-attention layers
  const char* full_list = "";    ///< the others: a check on linear_list, not enough by itself
  std::ptrdiff_t base = 0;       ///< the number that both lists give the first layer
  const char* interval = "";     ///< n: every n-th layer is not linear
};

struct model_rules {
  std::string_view model_type;       ///< of the file
  std::string_view text_model_type;  ///< of its text_config, or of a file that is nothing but that
  decay_kind decay;
  const geometry_keys* geometry;
  layer_keys layers;
  rule<gate_law> gate;   ///< the key holds the lower bound; null is the softplus law, unless safe_gate
  rule<bool> safe_gate;  ///< true: the file promises a bound
  rule<activation> conv_activation;
  rule<activation> output_gate;  ///< with an `absent`, some implementations ignore the key: it may say nothing else
  rule<projection> decay_projection;
  rule<projection> output_gate_projection;  ///< the key is true for full_rank
};

inline constexpr spelling hidden_size = {"hidden_size"};
inline constexpr spelling num_hidden_layers = {"num_hidden_layers"};
inline constexpr spelling rms_norm_eps = {"rms_norm_eps"};
inline constexpr spelling hidden_act = {"hidden_act"};
inline constexpr spelling lower_bound = {"linear_attn_config.gate_lower_bound", "linear_lower_bound"};
inline constexpr spelling legacy_lower_bound = {"linear_attn_config.lower_bound", "lower_bound"};
inline constexpr spelling safe_gate = {"linear_attn_config.safe_gate"};
inline constexpr spelling full_rank_gate = {"linear_attn_config.use_full_rank_gate"};
inline constexpr spelling output_gate_type = {"output_gate_type"};

inline constexpr geometry_keys kda_geometry = {
    .key_heads = {"linear_attn_config.num_heads", "linear_num_heads"},
    .value_heads = {"linear_attn_config.num_heads", "linear_num_heads"},
    .key_dim = {"linear_attn_config.head_dim", "linear_head_dim"},
    .value_dim = {"linear_attn_config.head_dim", "linear_head_dim"},
    .conv_width = {"linear_attn_config.short_conv_kernel_size", "linear_conv_kernel_dim"}};
inline constexpr geometry_keys gdn_geometry = {.key_heads = {"linear_num_key_heads"},
                                               .value_heads = {"linear_num_value_heads"},
                                               .key_dim = {"linear_key_head_dim"},
                                               .value_dim = {"linear_value_head_dim"},
                                               .conv_width = {"linear_conv_kernel_dim"}};

constexpr layer_keys kda_layers_from(std::ptrdiff_t base) {
  return {"linear_attn_config.kda_layers", "linear_attn_config.full_attn_layers", base};
}
inline constexpr layer_keys gdn_layers = {.interval = "full_attention_interval"};

/// A GDN model; they differ in name and output gate.
constexpr model_rules gdn(std::string_view model_type, std::string_view text_model_type,
                          std::optional<activation> absent_output_gate) {
  return {.model_type = model_type,
          .text_model_type = text_model_type,
          .decay = decay_kind::per_head,
          .geometry = &gdn_geometry,
          .layers = gdn_layers,
          .gate = {no_key, gate_law::softplus},
          .safe_gate = {no_key, false},
          .conv_activation = {hidden_act, required},
          .output_gate = {output_gate_type, absent_output_gate},
          .decay_projection = {no_key, projection::full_rank},
          .output_gate_projection = {no_key, projection::full_rank}};
}

/// Every model that is understood. A K3 file holds a text_config that calls itself kimi_linear; its hidden_act ("situ")
/// belongs to the MLP, and its convolution is silu in code.
inline constexpr model_rules models[] = {
    {.model_type = "glm5_next",
     .text_model_type = "glm5_next_text",
     .decay = decay_kind::per_channel,
     .geometry = &kda_geometry,
     .layers = kda_layers_from(0),
     .gate = {lower_bound, required},  // transformers would take -5, SGLang the softplus law
     .safe_gate = {safe_gate, true},   // transformers: a null bound without safe_gate is -5
     .conv_activation = {hidden_act, required},
     .output_gate = {no_key, activation::sigmoid},
     .decay_projection = {no_key, projection::low_rank},
     .output_gate_projection = {full_rank_gate, projection::low_rank}},
    {.model_type = "kimi_linear",
     .text_model_type = "kimi_linear",
     .decay = decay_kind::per_channel,
     .geometry = &kda_geometry,
     .layers = kda_layers_from(1),
     .gate = {lower_bound, gate_law::softplus},
     .safe_gate = {safe_gate, false},
     .conv_activation = {hidden_act, required},
     .output_gate = {no_key, activation::sigmoid},
     .decay_projection = {no_key, projection::low_rank},
     .output_gate_projection = {full_rank_gate, projection::low_rank}},
    {.model_type = "kimi_k3",
     .text_model_type = "kimi_linear",
     .decay = decay_kind::per_channel,
     .geometry = &kda_geometry,
     .layers = kda_layers_from(1),
     .gate = {lower_bound, required},
     .safe_gate = {safe_gate, false},
     .conv_activation = {no_key, activation::silu},
     .output_gate = {no_key, activation::sigmoid},
     .decay_projection = {no_key, projection::low_rank},
     .output_gate_projection = {full_rank_gate, required}},
    gdn("qwen3_next", "qwen3_next", activation::silu),
    gdn("qwen3_5", "qwen3_5_text", activation::silu),
    gdn("qwen3_5_moe", "qwen3_5_moe_text", activation::silu),
    gdn("qwen4_exp", "qwen4_exp_text", required),  // transformers would take hidden_act
};

/// A value as an error shows it: one line, short.
inline std::string shown(const json& value) {
  if (value.is_structured()) return value.is_array() ? "an array" : "an object";
  const std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  return text.size() <= 60 ? text : text.substr(0, 60) + "...";
}

// Conversions: nothing if the value is of another type or out of range.

inline std::optional<std::ptrdiff_t> integer(const json& value, std::ptrdiff_t low, std::ptrdiff_t high) {
  if (!value.is_number_integer()) return std::nullopt;
  const double number = value.get<double>();  // exact up to 2^53, far beyond `high`
  if (number < static_cast<double>(low) || number > static_cast<double>(high)) return std::nullopt;
  return static_cast<std::ptrdiff_t>(number);
}

inline std::optional<float> finite_float(const json& value) {
  if (!value.is_number()) return std::nullopt;
  const double number = value.get<double>();
  if (!(std::abs(number) <= static_cast<double>(std::numeric_limits<float>::max()))) return std::nullopt;
  return static_cast<float>(number);
}

inline std::optional<bool> boolean(const json& value) {
  return value.is_boolean() ? std::optional(value.get<bool>()) : std::nullopt;
}

inline std::optional<activation> activation_named(const json& value) {
  if (value == "silu" || value == "swish") return activation::silu;  // two names of one function
  if (value == "sigmoid") return activation::sigmoid;
  return std::nullopt;
}

/// True for linear attention, false for a kind of full attention, nothing for an unknown name.
inline std::optional<bool> is_linear_layer_type(const json& value) {
  if (value == "linear_attention") return true;
  for (const char* name : {"full_attention", "indexed_attention", "deepseek_sparse_attention", "qwen_sparse_attention"})
    if (value == name) return false;
  return std::nullopt;
}

/// Reads one text model by its rules. The first error is kept; what is read after it is thrown away.
class reader {
 public:
  reader(const json& text, std::string prefix, const model_rules& rules)
      : text_(text), prefix_(std::move(prefix)), rules_(rules) {}

  result<linear_attention_config> read(std::string model_type) {
    const geometry_keys& geometry = *rules_.geometry;
    linear_attention_config config;
    config.model_type = std::move(model_type);
    config.hidden = positive(hidden_size);
    config.key_heads = positive(geometry.key_heads);
    config.value_heads = positive(geometry.value_heads);
    config.key_dim = positive(geometry.key_dim);
    config.value_dim = positive(geometry.value_dim);
    config.conv_width = positive(geometry.conv_width);
    config.decay = rules_.decay;
    read_gate(config);
    config.conv_activation = read_activation(rules_.conv_activation, true);
    config.output_gate = read_activation(rules_.output_gate, rules_.output_gate.absent == activation::silu);
    config.decay_projection = read_projection(rules_.decay_projection);
    config.output_gate_projection = read_projection(rules_.output_gate_projection);
    config.rms_norm_eps = read_eps();
    config.layers = positive(num_hidden_layers, max_layers);
    if (!error_ && config.value_heads % config.key_heads != 0)
      fail(geometry.value_heads.published, "must be a multiple of " + std::string(geometry.key_heads.published) + " (" +
                                               std::to_string(config.key_heads) + "), not " +
                                               std::to_string(config.value_heads));
    if (!error_) config.linear_layers = read_layers(config.layers);
    if (error_) return *std::move(error_);
    return config;
  }

 private:
  static constexpr std::ptrdiff_t max_integer = 0x7fffffff;
  static constexpr std::ptrdiff_t max_layers = 0xffff;  // keeps what a hostile file can make us allocate small

  struct entry {
    const char* path;
    const json* value;  ///< null pointer if the key is missing
  };

  /// Which layers are linear, by one of the file's statements.
  struct pattern {
    const char* path;
    std::vector<bool> linear;
  };

  void fail(const std::string& path, const std::string& what) {
    if (!error_) error_ = error{prefix_ + path, prefix_ + path + ": " + what};
  }

  const json* find(std::string_view path) {
    const json* node = &text_;
    for (std::size_t begin = 0; begin < path.size();) {
      if (node->is_null()) return nullptr;
      if (!node->is_object()) {
        fail(std::string(path.substr(0, begin - 1)), "must be an object, not " + shown(*node));
        return nullptr;
      }
      const std::size_t end = std::min(path.find('.', begin), path.size());
      const auto child = node->find(std::string(path.substr(begin, end - begin)));
      if (child == node->end()) return nullptr;
      node = &*child;
      begin = end + 1;
    }
    return node;
  }

  /// The value of an optional key; null counts as missing.
  const json* find_optional(const char* path) {
    const json* value = *path == '\0' ? nullptr : find(path);
    return value != nullptr && value->is_null() ? nullptr : value;
  }

  entry find(const spelling& key) {
    const json* published = find(key.published);
    const json* saved = *key.saved == '\0' ? nullptr : find(key.saved);
    if (published != nullptr && saved != nullptr && *published != *saved)
      fail(key.saved, "is " + shown(*saved) + ", but " + prefix_ + key.published + " is " + shown(*published));
    if (published == nullptr && saved != nullptr) return {key.saved, saved};
    return {key.published, published};
  }

  /// The value by its rule; `convert` gives nothing for what is not `expected`.
  template <class T, class Convert> T read(const rule<T>& r, const std::string& expected, Convert convert) {
    if (r.key.empty()) return *r.absent;
    const entry e = find(r.key);
    if (r.absent && (e.value == nullptr || e.value->is_null())) return *r.absent;
    if (e.value == nullptr) {
      fail(e.path, "is missing; it must be " + expected);
      return T{};
    }
    if (const std::optional<T> value = convert(*e.value)) return *value;
    fail(e.path, "must be " + expected + ", not " + shown(*e.value));
    return T{};
  }

  std::ptrdiff_t positive(const spelling& key, std::ptrdiff_t high = max_integer) {
    return read(rule<std::ptrdiff_t>{key, required}, "an integer from 1 to " + std::to_string(high),
                [high](const json& value) { return integer(value, 1, high); });
  }

  float read_eps() {
    return read(rule<float>{rms_norm_eps, required}, "a finite number, at least 0", [](const json& value) {
      const std::optional<float> number = finite_float(value);
      return number && *number >= 0 ? number : std::nullopt;
    });
  }

  activation read_activation(const rule<activation>& r, bool only_silu) {
    return read(r, only_silu ? "\"silu\"" : "\"silu\" or \"sigmoid\"", [only_silu](const json& value) {
      const std::optional<activation> named = activation_named(value);
      return only_silu && named != activation::silu ? std::nullopt : named;
    });
  }

  projection read_projection(const rule<projection>& r) {
    return read(r, "true or false", [](const json& value) -> std::optional<projection> {
      const std::optional<bool> full = boolean(value);
      if (!full) return std::nullopt;
      return *full ? projection::full_rank : projection::low_rank;
    });
  }

  void read_gate(linear_attention_config& config) {
    config.gate = gate_law::softplus;
    if (rules_.gate.key.empty()) return;

    std::string legacy;
    for (const char* path : {legacy_lower_bound.published, legacy_lower_bound.saved})
      if (const json* value = find(path)) {
        legacy = "; the legacy key " + prefix_ + path + " (" + shown(*value) + ") does not stand in for it";
        config.notes.push_back(prefix_ + path + ": is " + shown(*value) + "; a legacy key, not read: the bound is " +
                               prefix_ + rules_.gate.key.published);
      }

    const entry bound = find(rules_.gate.key);
    if (bound.value != nullptr && !bound.value->is_null()) {
      config.gate = gate_law::bounded;
      config.lower_bound = finite_float(*bound.value);
      if (!config.lower_bound || !(*config.lower_bound < 0))
        fail(bound.path, "must be a finite number below 0, or null, not " + shown(*bound.value));
      return;
    }
    if (bound.value == nullptr && !rules_.gate.absent)
      return fail(bound.path, "is missing; it must be a finite number below 0, or null" + legacy);
    // Without linear_attn_config, as transformers may save a model, nothing promises a bound.
    const bool safe = find_optional("linear_attn_config") != nullptr &&
                      read(rules_.safe_gate, "true or false", [](const json& value) { return boolean(value); });
    if (safe)
      fail(bound.path, std::string("is ") + (bound.value == nullptr ? "missing" : "null") + " although " + prefix_ +
                           safe_gate.published +
                           (find_optional(safe_gate.published) != nullptr ? " is true" : " is not false") +
                           "; it must be a finite number below 0" + legacy);
  }

  std::vector<std::ptrdiff_t> read_layers(std::ptrdiff_t layers) {
    const layer_keys& keys = rules_.layers;
    std::vector<pattern> patterns;
    read_layer_types(layers, patterns);
    read_layer_list(keys.linear_list, true, layers, patterns);
    read_interval(layers, patterns);
    if (patterns.empty())
      fail(*keys.linear_list != '\0' ? keys.linear_list : keys.interval,
           "is missing, and so is " + prefix_ + "layer_types: one must tell which layers are linear attention");
    read_layer_list(keys.full_list, false, layers, patterns);
    if (error_) return {};

    const pattern& first = patterns.front();
    std::vector<std::ptrdiff_t> linear_layers;
    for (std::ptrdiff_t layer = 0; layer < layers; ++layer) {
      const bool linear = first.linear[static_cast<std::size_t>(layer)];
      for (const pattern& other : patterns)
        if (other.linear[static_cast<std::size_t>(layer)] != linear)
          fail(other.path, std::string("makes layer ") + std::to_string(layer) + " (counted from 0) " +
                               (linear ? "full" : "linear") + " attention, and " + prefix_ + first.path + " " +
                               (linear ? "linear" : "full"));
      if (linear) linear_layers.push_back(layer);
    }
    return linear_layers;
  }

  void read_layer_types(std::ptrdiff_t layers, std::vector<pattern>& patterns) {
    const char* path = "layer_types";
    const json* types = find_optional(path);
    if (types == nullptr) return;
    if (!types->is_array() || types->size() != static_cast<std::size_t>(layers))
      return fail(path, "must be an array with one name for each of the " + std::to_string(layers) + " layers, not " +
                            (types->is_array() ? "of " + std::to_string(types->size()) : shown(*types)));
    std::vector<bool> linear;
    for (const json& type : *types) {
      const std::optional<bool> is_linear = is_linear_layer_type(type);
      if (!is_linear)
        return fail(path + ("[" + std::to_string(linear.size()) + "]"),
                    "must be \"linear_attention\" or a known full attention, not " + shown(type));
      linear.push_back(*is_linear);
    }
    patterns.push_back({path, std::move(linear)});
  }

  void read_layer_list(const char* path, bool holds_linear, std::ptrdiff_t layers, std::vector<pattern>& patterns) {
    const json* list = find_optional(path);
    if (list == nullptr) return;
    if (!list->is_array()) return fail(path, "must be an array of layer numbers, not " + shown(*list));
    const std::ptrdiff_t base = rules_.layers.base;
    std::vector<bool> linear(static_cast<std::size_t>(layers), !holds_linear);
    for (std::size_t i = 0; i < list->size(); ++i) {
      const json& value = (*list)[i];
      const std::string item = path + ("[" + std::to_string(i) + "]");
      const std::optional<std::ptrdiff_t> number = integer(value, base, base + layers - 1);
      if (!number)
        return fail(item, "must be a layer number from " + std::to_string(base) + " to " +
                              std::to_string(base + layers - 1) + ", not " + shown(value));
      const auto layer = static_cast<std::size_t>(*number - base);
      if (linear[layer] == holds_linear) return fail(item, "names layer " + shown(value) + " a second time");
      linear[layer] = holds_linear;
    }
    patterns.push_back({path, std::move(linear)});
  }

  void read_interval(std::ptrdiff_t layers, std::vector<pattern>& patterns) {
    const char* path = rules_.layers.interval;
    const json* value = find_optional(path);
    if (value == nullptr) return;
    const std::optional<std::ptrdiff_t> interval = integer(*value, 1, max_integer);
    if (!interval) return fail(path, "must be an integer, at least 1, not " + shown(*value));
    std::vector<bool> linear;
    for (std::ptrdiff_t layer = 0; layer < layers; ++layer) linear.push_back((layer + 1) % *interval != 0);
    patterns.push_back({path, std::move(linear)});
  }

  const json& text_;
  std::string prefix_;  ///< "text_config." if the text model is nested
  const model_rules& rules_;
  std::optional<error> error_;
};

}  // namespace detail

/// Reads a parsed config.json: the whole file, whose text model may be nested in `text_config`, or a text model alone.
inline result<linear_attention_config> read_config(const nlohmann::json& file) {
  using detail::shown;
  if (!file.is_object()) return error{"", "the file must hold an object, not " + shown(file)};

  const auto type = file.find("model_type");
  if (type == file.end()) return error{"model_type", "model_type: is missing; it must be a string"};
  const detail::model_rules* rules = nullptr;
  std::string known;
  for (const detail::model_rules& candidate : detail::models) {
    if (rules == nullptr && (*type == candidate.model_type || *type == candidate.text_model_type)) rules = &candidate;
    known += (known.empty() ? "" : ", ") + std::string(candidate.model_type);
  }
  if (rules == nullptr) return error{"model_type", "model_type: must be one of " + known + ", not " + shown(*type)};
  const std::string model_type = type->get<std::string>();

  const auto nested = file.find("text_config");
  if (nested == file.end() || nested->is_null()) return detail::reader(file, "", *rules).read(model_type);

  if (!nested->is_object()) return error{"text_config", "text_config: must be an object, not " + shown(*nested)};
  const auto text_type = nested->find("model_type");
  if (text_type != nested->end() && *text_type != rules->text_model_type && *text_type != rules->model_type)
    return error{"text_config.model_type", "text_config.model_type: must be " + std::string(rules->text_model_type) +
                                               " in a file of model_type " + model_type + ", not " + shown(*text_type)};
  return detail::reader(*nested, "text_config.", *rules).read(model_type);
}

/// Parses the text of a config.json and reads it. Text that is not JSON, or stops too early, is an error.
inline result<linear_attention_config> parse_config(std::string_view text) {
  const nlohmann::json file = nlohmann::json::parse(text.begin(), text.end(), nullptr, false);
  if (file.is_discarded()) return error{"", "is not JSON, or only the beginning of it"};
  return read_config(file);
}

/// Loads the file at `path`. Every error names the file.
inline result<linear_attention_config> load_config(const std::string& path) {
  const auto fail = [&path](error e) {
    e.message = path + ": " + e.message;
    return e;
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (file == nullptr) return fail({"", std::string("cannot be opened: ") + std::strerror(errno)});
  std::string text;
  char block[4096];
  while (const std::size_t n = std::fread(block, 1, sizeof block, file.get())) text.append(block, n);
  if (std::ferror(file.get()) != 0) return fail({"", std::string("cannot be read: ") + std::strerror(errno)});

  result<linear_attention_config> config = parse_config(text);
  if (!config) return fail(config.failure());
  return config;
}

}  // namespace kda::inline v0::hf
