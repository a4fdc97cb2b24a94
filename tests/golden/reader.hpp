// SPDX-License-Identifier: Apache-2.0
// Golden files as golden/README.md lays them down, read strictly: whatever is missing, unexpected, of another kind or
// another shape is a fault that names the key. An operation asks for what it needs, in its own order, and then calls
// done().
#pragma once
#include <cmath>
#include <cstddef>
#include <exception>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace golden {

using nlohmann::json;
using index = std::ptrdiff_t;

/// What is wrong with a file, in one line that names the key. (Sentences start as std::string where a temporary
/// follows: gcc 12 takes a literal before one for an overlapping copy at -O3.)
struct fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// An extent that the tensor itself settles, where a shape is expected.
inline constexpr index any = -1;

enum class domain { numbers, log_decays };  // log decays may be minus infinity

struct tensor {
  std::vector<index> shape;
  std::vector<float> data;  // row-major
};

/// An output and how far from it a result may be: max_abs + max_rel max|data|.
struct stored_output : tensor {
  double max_abs, max_rel;
};

/// An object of the file. Its keys are asked for one by one; done() refuses those that were not.
class object {
 public:
  object() = default;
  object(const json& value, std::string path) : value_(&value), path_(std::move(path)) {
    if (!value.is_object()) throw fault(name() + " is not an object");
  }

  [[nodiscard]] bool has(const std::string& key) const { return value_->contains(key); }

  const json& at(const std::string& key) {
    if (!has(key)) throw fault(name() + " lacks " + key);
    asked_.insert(key);
    return value_->at(key);
  }

  void done() const {
    for (const auto& [key, unused] : value_->items())
      if (!asked_.contains(key)) throw fault(name() + " has the unexpected key " + json(key).dump());
  }

  object child(const std::string& key) { return {at(key), path_of(key)}; }

  std::string text(const std::string& key) {
    const json& value = at(key);
    require(value.is_string(), key, "is not a string");
    return value.get<std::string>();
  }
  /// The place of the value among `choices`.
  std::size_t choice(const std::string& key, std::initializer_list<const char*> choices) {
    const std::string value = text(key);
    std::string listed;
    std::size_t place = 0;
    for (const char* c : choices) {
      if (value == c) return place;
      listed += place++ == 0 ? "" : " or ";
      listed += c;
    }
    throw fault(path_of(key) + " is " + json(value).dump() + ", not " + listed);
  }
  bool flag(const std::string& key) {
    const json& value = at(key);
    require(value.is_boolean(), key, "is neither true nor false");
    return value.get<bool>();
  }
  double number(const std::string& key) {
    const json& value = at(key);
    require(is_float(value), key, "is not a number of float32's range");
    return value.get<double>();
  }
  double at_least_zero(const std::string& key) {
    const double value = number(key);
    require(value >= 0, key, "is below 0");
    return value;
  }
  index count(const std::string& key, index least = 1) {
    const json& value = at(key);
    require(is_extent(value) && value.get<index>() >= least, key, "is not a count");
    return value.get<index>();
  }
  std::vector<index> counts(const std::string& key) {
    const json& value = at(key);
    require(value.is_array(), key, "is not a list");
    std::vector<index> list;
    for (const json& n : value) {
      require(is_extent(n), key, "holds something that is not a count");
      list.push_back(n.get<index>());
    }
    return list;
  }

  /// Tensor of the shape that `shape` says.
  golden::tensor tensor(const std::string& key, std::initializer_list<index> shape, domain d = domain::numbers) {
    object members = child(key);
    golden::tensor t = members.elements(shape, d);
    members.done();
    return t;
  }
  stored_output output(const std::string& key, std::initializer_list<index> shape, domain d = domain::numbers) {
    object members = child(key);
    stored_output t{members.elements(shape, d), members.at_least_zero("max_abs"), members.at_least_zero("max_rel")};
    members.done();
    return t;
  }

 private:
  [[nodiscard]] std::string name() const { return path_.empty() ? "the file" : path_; }
  [[nodiscard]] std::string path_of(const std::string& key) const { return path_.empty() ? key : path_ + "." + key; }
  void require(bool holds, const std::string& key, const char* sentence) const {
    if (!holds) throw fault(path_of(key) + " " + sentence);
  }

  static bool is_extent(const json& value) {  // below 2^30, so that sums of products of two fit
    return value.is_number_integer() && value.get<double>() >= 0 && value.get<double>() < 0x1p30;
  }
  static bool is_float(const json& value) {
    constexpr auto largest = static_cast<double>(std::numeric_limits<float>::max());
    return value.is_number() && std::abs(value.get<double>()) <= largest;
  }

  golden::tensor elements(std::initializer_list<index> expected, domain d) {
    golden::tensor t{.shape = counts("shape"), .data = {}};
    bool same = t.shape.size() == expected.size();
    std::string wanted;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const index extent = expected.begin()[i];
      same = same && (extent == any || t.shape[i] == extent);
      wanted += i == 0 ? "" : ",";
      wanted += extent == any ? "?" : std::to_string(extent);
    }
    if (!same) throw fault(path_of("shape") + " is " + at("shape").dump() + ", not [" + wanted + "]");

    const json& data = at("data");
    require(data.is_array(), "data", "is not a list");
    double elements = 1;  // exact wherever it can equal a size
    for (const index extent : t.shape) elements *= static_cast<double>(extent);
    if (static_cast<double>(data.size()) != elements)
      throw fault(path_of("data") + " holds " + std::to_string(data.size()) + " elements for the shape " +
                  at("shape").dump());
    t.data.reserve(data.size());
    for (const json& x : data) {
      if (is_float(x))
        t.data.push_back(x.get<float>());
      else if (d == domain::log_decays && x == "-inf")
        t.data.push_back(-std::numeric_limits<float>::infinity());
      else
        throw fault(path_of("data") + " holds " + x.dump().substr(0, 40) + " at " + std::to_string(t.data.size()));
    }
    return t;
  }

  const json* value_ = nullptr;
  std::string path_;
  std::set<std::string> asked_;
};

/// The JSON text of a file, in which no object has a key twice.
inline json parse(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw fault("cannot be opened");
  std::vector<std::set<std::string>> open;
  const auto once = [&open](int, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::object_start) open.emplace_back();
    if (event == json::parse_event_t::object_end) open.pop_back();
    if (event == json::parse_event_t::key && !open.back().insert(value.get<std::string>()).second)
      throw fault(std::string("the key ") + value.dump() + " is there twice");
    return true;
  };
  try {
    return json::parse(file, once);
  } catch (const fault&) {
    throw;
  } catch (const std::exception& e) {  // json::exception, or the stream's own
    throw fault(std::string("cannot be read: ") + e.what());
  }
}

/// One case, its frame already checked; params, inputs and outputs are the operation's to ask for.
class golden_file {
 public:
  std::string name, op;
  object params, inputs, outputs;

  explicit golden_file(const std::filesystem::path& path) : text_(parse(path)) {
    object file(text_, "");
    file.choice("format", {"kda-golden"});
    if (file.at("version") != 1) throw fault(std::string("version is ") + file.at("version").dump() + ", not 1");
    name = file.text("name");
    op = file.text("op");
    file.child("origin");  // which may hold anything
    params = file.child("params");
    inputs = file.child("inputs");
    outputs = file.child("outputs");
    file.done();
  }
  golden_file(const golden_file&) = delete;
  golden_file& operator=(const golden_file&) = delete;

  /// Everything has been asked for.
  void done() const {
    for (const object* o : {&params, &inputs, &outputs}) o->done();
  }

 private:
  json text_;  // which the objects look into
};

}  // namespace golden
