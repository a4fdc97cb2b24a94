// SPDX-License-Identifier: Apache-2.0
// Reads golden_layer.hpp's files strictly: every member is there, has the right type and shape, and there is no other.
#include "golden_layer.hpp"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>

namespace engine {
namespace {

using json = nlohmann::json;

[[noreturn]] void refuse(const std::string& sentence) { throw std::runtime_error(sentence); }

/// A JSON object whose members are asked for one by one.
class object {
 public:
  object(const json& j, std::string name) : j_(j), name_(std::move(name)) {
    if (!j.is_object()) refuse(name_ + " is not an object");
  }

  [[nodiscard]] bool has(const char* key) const { return j_.contains(key); }

  const json& get(const char* key) {
    if (!has(key)) refuse(name_ + " has no \"" + key + "\"");
    asked_.insert(key);
    return j_[key];
  }
  std::string text(const char* key, std::initializer_list<const char*> choices = {}) {
    const json& j = get(key);
    if (!j.is_string()) refuse(path(key) + " is not a string");
    auto s = j.get<std::string>();
    if (choices.size() != 0 && std::find(choices.begin(), choices.end(), s) == choices.end())
      refuse(path(key) + " is \"" + s + "\", which this reader does not know");
    return s;
  }
  double number(const char* key) {
    const json& j = get(key);
    if (!j.is_number()) refuse(path(key) + " is not a number");
    return j.get<double>();
  }
  index size(const char* key) { return size(get(key), path(key)); }
  std::vector<index> sizes(const char* key) {
    const json& j = get(key);
    if (!j.is_array()) refuse(path(key) + " is not an array");
    std::vector<index> x;
    for (const json& n : j) x.push_back(size(n, path(key)));
    return x;
  }

  /// To be called last: nobody asked for what is left.
  void expect_no_other() const {
    for (const auto& member : j_.items())
      if (!asked_.contains(member.key())) refuse(name_ + " has an unexpected \"" + member.key() + "\"");
  }

  [[nodiscard]] std::string path(const char* key) const { return name_ + "." + key; }

 private:
  static index size(const json& j, const std::string& where) {
    constexpr index most = 1 << 20;
    if (!j.is_number_integer() || j.get<double>() < 1 || j.get<double>() > static_cast<double>(most))
      refuse(where + " is not a whole number from 1 to " + std::to_string(most));
    return j.get<index>();
  }

  const json& j_;
  std::string name_;
  std::set<std::string> asked_;
};

std::vector<float> tensor_data(object& tensor, const std::string& name, const std::vector<index>& shape) {
  index count = 1;
  std::string wanted;
  for (const index n : shape) {
    count *= n;
    wanted += (wanted.empty() ? "[" : ", ") + std::to_string(n);
  }
  if (tensor.sizes("shape") != shape) refuse(name + " does not have the shape " + wanted + "]");
  const json& data = tensor.get("data");
  if (!data.is_array() || std::ssize(data) != count)
    refuse(name + " does not hold " + std::to_string(count) + " values");
  std::vector<float> x;
  for (const json& value : data) {
    x.push_back(value.is_number() ? static_cast<float>(value.get<double>()) : NAN);
    if (!std::isfinite(x.back())) refuse(name + " holds something that is not a finite number");
  }
  return x;
}

std::vector<float> input(object& inputs, const char* key, const std::vector<index>& shape) {
  object tensor(inputs.get(key), inputs.path(key));
  auto x = tensor_data(tensor, inputs.path(key), shape);
  tensor.expect_no_other();
  return x;
}

expected output(object& outputs, const char* key, const std::vector<index>& shape) {
  object tensor(outputs.get(key), outputs.path(key));
  expected e{.data = tensor_data(tensor, outputs.path(key), shape),
             .max_abs = tensor.number("max_abs"),
             .max_rel = tensor.number("max_rel")};
  if (!(e.max_abs >= 0) || !(e.max_rel >= 0)) refuse(outputs.path(key) + " has a negative bound");
  tensor.expect_no_other();
  return e;
}

matrix<float> to_matrix(index rows, index columns, std::vector<float> data) {
  matrix<float> m;
  m.rows = rows, m.columns = columns, m.data = std::move(data);
  return m;
}

golden_layer read_layer(object& file) {
  golden_layer l;
  l.name = file.text("name");

  object params(file.get("params"), "params");
  layer_shape& s = l.shape;
  s.hidden = params.size("hidden");
  s.heads = params.size("heads");
  s.head_dim = params.size("head_dim");
  s.conv_width = params.size("conv_width");
  s.rms_eps = static_cast<float>(params.number("rms_eps"));
  l.conv_silu = params.text("conv_activation", {"silu", "none"}) == "silu";
  l.bounded = params.text("law", {"bounded", "softplus"}) == "bounded";
  if (l.bounded)
    s.lower_bound = static_cast<float>(params.number("lower_bound"));
  else if (!params.get("lower_bound").is_null())
    refuse("params.lower_bound is not null, although the law is softplus");
  l.calls = params.sizes("splits");
  params.expect_no_other();

  index T = 0;
  for (const index n : l.calls) T += n;
  const index X = s.hidden, H = s.heads, D = s.head_dim, Q = s.Q(), W = s.conv_width;
  object inputs(file.get("inputs"), "inputs");
  s.f_rank = inputs.has("f") ? 0 : D;
  s.g_rank = inputs.has("g") ? 0 : D;
  l.hidden = input(inputs, "hidden_states", {T, X});
  std::vector<float> in;
  const auto append = [&](const char* key, index rows) {
    const auto x = input(inputs, key, {rows, X});
    in.insert(in.end(), x.begin(), x.end());
  };
  for (const char* key : {"q_proj", "k_proj", "v_proj"}) append(key, Q);
  append("b_proj", H);
  s.f_rank == 0 ? append("f", Q) : append("f_a", D);
  s.g_rank == 0 ? append("g", Q) : append("g_a", D);
  l.weights.in = to_matrix(s.projected(), X, std::move(in));
  if (s.f_rank != 0) l.weights.f_b = to_matrix(Q, D, input(inputs, "f_b", {Q, D}));
  if (s.g_rank != 0) l.weights.g_b = to_matrix(Q, D, input(inputs, "g_b", {Q, D}));
  l.weights.out = to_matrix(X, Q, input(inputs, "o_proj", {X, Q}));
  l.weights.conv = to_matrix(3 * Q, W, input(inputs, "conv_weight", {3 * Q, W}));
  l.weights.a_log = input(inputs, "A_log", {H});
  l.weights.dt_bias = input(inputs, "dt_bias", {H, D});
  l.weights.norm = input(inputs, "norm_weight", {D});
  inputs.expect_no_other();

  object outputs(file.get("outputs"), "outputs");
  l.y = output(outputs, "y", {T, X});
  l.state = output(outputs, "state_out", {H, D, D});
  l.conv_state = output(outputs, "conv_state_out", {W - 1, 3 * Q});
  outputs.expect_no_other();
  file.expect_no_other();
  return l;
}

/// The file's layer, or none if it holds something else.
std::optional<golden_layer> read_file(const std::filesystem::path& path) {
  std::ifstream stream(path, std::ios::binary);
  if (!stream) refuse("cannot be opened");
  json j;
  try {
    j = json::parse(stream);
  } catch (const json::exception& e) {
    refuse(std::string("cannot be read as JSON: ") + e.what());
  }
  object file(j, "the file");
  file.text("format", {"kda-golden"});
  if (file.number("version") != 1) refuse("has a version other than 1");
  const bool is_layer = file.text("op") == "kda_layer";
  const bool is_glm = object(file.get("origin"), "origin").has("module") &&
                      file.get("origin")["module"].dump().find("glm5_next") != std::string::npos;
  if (!is_layer || !is_glm) return std::nullopt;
  return read_layer(file);
}

}

std::vector<golden_layer> read_golden_layers(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    if (entry.path().extension() == ".json") paths.push_back(entry.path());
  if (error) refuse(folder.string() + ": " + error.message());
  std::sort(paths.begin(), paths.end());

  std::vector<golden_layer> layers;
  for (const auto& path : paths) {
    try {
      if (auto l = read_file(path)) layers.push_back(std::move(*l)), layers.back().file = path;
    } catch (const std::exception& e) {
      refuse(path.string() + ": " + e.what());
    }
  }
  if (layers.empty()) refuse(folder.string() + ": no kda_layer file from transformers' glm5_next");
  return layers;
}

}
