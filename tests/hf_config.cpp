// SPDX-License-Identifier: Apache-2.0
// hf_config.hpp: what it reads from each model's config.json, what it refuses, and that a refusal names the key. The
// files under data/configs hold the published values of the keys that matter. The only test that compiles
// nlohmann/json.
#include "support/kda_catch.hpp"

#include <kda/hf_config.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <unistd.h>
#include <utility>
#include <vector>

namespace {

using nlohmann::json;
namespace hf = kda::hf;
using outcome = hf::result<hf::linear_attention_config>;
using layer_list = std::vector<std::ptrdiff_t>;

constexpr auto per_channel = hf::decay_kind::per_channel;
constexpr auto per_head = hf::decay_kind::per_head;
constexpr auto bounded = hf::gate_law::bounded;
constexpr auto softplus = hf::gate_law::softplus;
constexpr auto silu = hf::activation::silu;
constexpr auto sigmoid = hf::activation::sigmoid;
constexpr auto low_rank = hf::projection::low_rank;
constexpr auto full_rank = hf::projection::full_rank;
constexpr std::nullopt_t none = std::nullopt;

constexpr const char* glm = "glm_5_3_flash";
constexpr const char* kimi = "kimi_linear_48b_a3b";
constexpr const char* k3 = "kimi_k3";
constexpr const char* next_80b = "qwen3_next_80b_a3b";
constexpr const char* qwen_0_8b = "qwen3_5_0_8b";
constexpr const char* qwen_4b = "qwen3_5_4b";
constexpr const char* qwen_9b = "qwen3_5_9b";
constexpr const char* qwen_27b = "qwen3_5_27b";
constexpr const char* qwen_moe = "qwen3_5_35b_a3b";
constexpr const char* qwen_exp = "qwen3_8_flash_next";
constexpr const char* every_file[] = {glm,     kimi,    k3,       next_80b, qwen_0_8b,
                                      qwen_4b, qwen_9b, qwen_27b, qwen_moe, qwen_exp};

std::string path_of(const std::string& name) {
  return (std::filesystem::path(__FILE__).parent_path() / "data" / "configs" / (name + ".json")).string();
}

std::string text_of(const std::string& name) {
  std::ifstream file(path_of(name), std::ios::binary);
  REQUIRE(file.good());
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

json parsed(const std::string& name) { return json::parse(text_of(name)); }

/// What an error puts before a key of the text model.
std::string prefix_of(const json& file) { return file.contains("text_config") ? "text_config." : ""; }

json::json_pointer pointer_to(std::string dotted) {
  std::replace(dotted.begin(), dotted.end(), '.', '/');
  return json::json_pointer("/" + dotted);
}

/// The file with changes to its text model: "key=value; key=; ..." sets dotted keys to JSON values, and removes those
/// without one. A key that begins with ^ is one of the file itself.
json changed(const std::string& name, const std::string& changes) {
  json file = parsed(name);
  std::istringstream list(changes);
  for (std::string change; std::getline(list >> std::ws, change, ';');) {
    const std::size_t equals = change.find('=');
    REQUIRE(equals != std::string::npos);
    const bool of_file = change[0] == '^';
    const std::string key = of_file ? change.substr(1, equals - 1) : prefix_of(file) + change.substr(0, equals);
    const std::string value = change.substr(equals + 1);
    const json::json_pointer where = pointer_to(key);
    if (value.empty())
      file[where.parent_pointer()].erase(where.back());
    else
      file[where] = json::parse(value);
  }
  return file;
}

bool contains(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

/// Refused because of `key`, in one line that names it and holds `words`.
void check_refused(const outcome& config, const std::string& key, const std::string& words) {
  REQUIRE_FALSE(config);
  INFO(config.failure().message);
  CHECK(config.failure().key == key);
  CHECK(contains(config.failure().message, key));
  CHECK(contains(config.failure().message, words));
  CHECK_FALSE(contains(config.failure().message, "\n"));
}

hf::linear_attention_config require_read(const outcome& config) {
  INFO((config ? "" : config.failure().message));
  REQUIRE(config);
  return *config;
}

struct refusal {
  const char* file;
  const char* changes;
  const char* key;  // of the text model, or with ^ of the file
  const char* words;
};

void check_refusals(const std::vector<refusal>& refusals) {
  for (const refusal& r : refusals) {
    INFO(r.file << ": " << r.changes);
    const json file = changed(r.file, r.changes);
    check_refused(hf::read_config(file), r.key[0] == '^' ? r.key + 1 : prefix_of(file) + r.key, r.words);
  }
}

layer_list all_but(std::ptrdiff_t layers, const layer_list& full) {
  layer_list rest;
  for (std::ptrdiff_t layer = 0; layer < layers; ++layer)
    if (std::find(full.begin(), full.end(), layer) == full.end()) rest.push_back(layer);
  return rest;
}

layer_list every_fourth(std::ptrdiff_t layers) {
  layer_list full;
  for (std::ptrdiff_t layer = 3; layer < layers; layer += 4) full.push_back(layer);
  return full;
}

const layer_list kimi_full = {3, 7, 11, 15, 19, 23, 26};
const layer_list k3_full = {3,  7,  11, 15, 19, 23, 27, 31, 35, 39, 43, 47,
                            51, 55, 59, 63, 67, 71, 75, 79, 83, 87, 91, 92};

}  // namespace

TEST_CASE("each model's config.json is read as published", "[hf_config]") {
  struct model {
    const char* file;
    const char* model_type;
    std::ptrdiff_t hidden, key_heads, value_heads;
    hf::decay_kind decay;
    hf::gate_law gate;
    std::optional<float> lower_bound;
    hf::activation output_gate;
    hf::projection decay_projection, output_gate_projection;
    float eps;
    std::ptrdiff_t layers;
    layer_list full;
    std::size_t linear;  // as the model's authors count them
  };
  const model models[] = {
      {glm, "glm5_next", 4096, 64, 64, per_channel, bounded, -5.f, sigmoid, low_rank, low_rank, 1e-5f, 45,
       every_fourth(45), 34},
      {kimi, "kimi_linear", 2304, 32, 32, per_channel, softplus, none, sigmoid, low_rank, low_rank, 1e-5f, 27,
       kimi_full, 20},
      {k3, "kimi_k3", 7168, 96, 96, per_channel, bounded, -5.f, sigmoid, low_rank, full_rank, 1e-5f, 93, k3_full, 69},
      {next_80b, "qwen3_next", 2048, 16, 32, per_head, softplus, none, silu, full_rank, full_rank, 1e-6f, 48,
       every_fourth(48), 36},
      {qwen_0_8b, "qwen3_5", 1024, 16, 16, per_head, softplus, none, silu, full_rank, full_rank, 1e-6f, 24,
       every_fourth(24), 18},
      {qwen_4b, "qwen3_5", 2560, 16, 32, per_head, softplus, none, silu, full_rank, full_rank, 1e-6f, 32,
       every_fourth(32), 24},
      {qwen_9b, "qwen3_5", 4096, 16, 32, per_head, softplus, none, silu, full_rank, full_rank, 1e-6f, 32,
       every_fourth(32), 24},
      {qwen_27b, "qwen3_5", 5120, 16, 48, per_head, softplus, none, silu, full_rank, full_rank, 1e-6f, 64,
       every_fourth(64), 48},
      {qwen_moe, "qwen3_5_moe", 2048, 16, 32, per_head, softplus, none, silu, full_rank, full_rank, 1e-6f, 40,
       every_fourth(40), 30},
      {qwen_exp, "qwen4_exp", 2560, 16, 48, per_head, softplus, none, sigmoid, full_rank, full_rank, 1e-6f, 48,
       every_fourth(48), 36},
  };
  CHECK(std::size(models) == std::size(every_file));

  for (const model& m : models) {
    INFO(m.file);
    const auto config = require_read(hf::load_config(path_of(m.file)));
    CHECK(config.model_type == m.model_type);
    CHECK(config.hidden == m.hidden);
    CHECK(config.key_heads == m.key_heads);
    CHECK(config.value_heads == m.value_heads);
    CHECK(config.key_dim == 128);
    CHECK(config.value_dim == 128);
    CHECK(config.conv_width == 4);
    CHECK(config.decay == m.decay);
    CHECK(config.gate == m.gate);
    CHECK(config.lower_bound == m.lower_bound);
    CHECK(config.conv_activation == silu);
    CHECK(config.output_gate == m.output_gate);
    CHECK(config.decay_projection == m.decay_projection);
    CHECK(config.output_gate_projection == m.output_gate_projection);
    CHECK(config.rms_norm_eps == m.eps);
    CHECK(config.layers == m.layers);
    CHECK(config.linear_layers == all_but(m.layers, m.full));
    CHECK(config.linear_layers.size() == m.linear);
    CHECK(config.notes.empty());
  }
}

TEST_CASE("values come from the file, not from what the published models share", "[hf_config]") {
  SECTION("KDA") {
    const auto config = require_read(hf::read_config(
        changed(glm,
                "hidden_size=40; rms_norm_eps=0.25; linear_attn_config.num_heads=3; linear_attn_config.head_dim=24;"
                "linear_attn_config.short_conv_kernel_size=2; linear_attn_config.gate_lower_bound=-2.5;"
                "linear_attn_config.use_full_rank_gate=true")));
    CHECK(config.hidden == 40);
    CHECK(config.rms_norm_eps == 0.25f);
    CHECK(config.key_heads == 3);
    CHECK(config.value_heads == 3);
    CHECK(config.key_dim == 24);
    CHECK(config.value_dim == 24);
    CHECK(config.conv_width == 2);
    CHECK(config.lower_bound == -2.5f);
    CHECK(config.decay_projection == low_rank);
    CHECK(config.output_gate_projection == full_rank);
  }
  SECTION("GDN") {
    const auto config = require_read(
        hf::read_config(changed(qwen_9b,
                                "linear_num_key_heads=5; linear_num_value_heads=15; linear_key_head_dim=16;"
                                "linear_value_head_dim=24; linear_conv_kernel_dim=3; rms_norm_eps=0")));
    CHECK(config.key_heads == 5);
    CHECK(config.value_heads == 15);
    CHECK(config.key_dim == 16);
    CHECK(config.value_dim == 24);
    CHECK(config.conv_width == 3);
    CHECK(config.rms_norm_eps == 0.f);
  }
}

TEST_CASE("a required key that is missing or null is an error that names it", "[hf_config]") {
  const std::vector<std::string> shared = {"hidden_size", "num_hidden_layers", "rms_norm_eps"};
  const std::vector<std::string> kda = {"linear_attn_config.num_heads", "linear_attn_config.head_dim",
                                        "linear_attn_config.short_conv_kernel_size"};
  const std::vector<std::string> gdn = {"hidden_act",          "linear_num_key_heads",  "linear_num_value_heads",
                                        "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"};
  const std::pair<const char*, std::vector<std::vector<std::string>>> models[] = {
      {glm, {shared, kda, {"hidden_act"}}},
      {kimi, {shared, kda, {"hidden_act"}}},
      {k3, {shared, kda, {"linear_attn_config.use_full_rank_gate"}}},
      {next_80b, {shared, gdn}},
      {qwen_9b, {shared, gdn}},
      {qwen_moe, {shared, gdn}},
      {qwen_exp, {shared, gdn, {"output_gate_type"}}}};
  for (const auto& [file, groups] : models)
    for (const auto& group : groups)
      for (const std::string& key : group) {
        INFO(file << ": " << key);
        const std::string full_key = prefix_of(parsed(file)) + key;
        check_refused(hf::read_config(changed(file, key + "=")), full_key, "is missing");
        check_refused(hf::read_config(changed(file, key + "=null")), full_key, "not null");
      }
  check_refusals({
      {glm, "linear_attn_config.gate_lower_bound=", "linear_attn_config.gate_lower_bound", "is missing"},
      {glm, "linear_attn_config.gate_lower_bound=; linear_attn_config.safe_gate=false",
       "linear_attn_config.gate_lower_bound", "is missing"},
      {k3, "linear_attn_config.gate_lower_bound=", "linear_attn_config.gate_lower_bound", "is missing"},
      {kimi, "linear_attn_config=", "linear_attn_config.num_heads", "is missing"},
      {kimi, "linear_attn_config=null", "linear_attn_config.num_heads", "is missing"},
      {glm, "^model_type=", "^model_type", "is missing"},
      {glm, "^model_type=null", "^model_type", "not null"},
  });
}

TEST_CASE("what the gate keys mean when missing, null or false is settled per model", "[hf_config]") {
  struct gate {
    const char* file;
    const char* changes;
    std::optional<float> lower_bound;
  };
  const gate gates[] = {
      {kimi, "", none},
      {kimi, "linear_attn_config.gate_lower_bound=null", none},
      {kimi, "linear_attn_config.gate_lower_bound=-3", -3.f},
      {kimi, "linear_attn_config.safe_gate=false", none},
      {glm, "linear_attn_config.gate_lower_bound=null; linear_attn_config.safe_gate=false", none},
      {glm, "linear_attn_config.safe_gate=false", -5.f},
      {glm, "linear_attn_config.safe_gate=true", -5.f},
      {k3, "linear_attn_config.gate_lower_bound=null", none},
      {k3, "linear_attn_config.gate_lower_bound=-1e-3", -1e-3f},
      {next_80b, "linear_lower_bound=-5", none},  // GDN has no bound, whatever stands in the file
  };
  for (const gate& g : gates) {
    INFO(g.file << ": " << g.changes);
    const auto config = require_read(hf::read_config(changed(g.file, g.changes)));
    CHECK(config.lower_bound == g.lower_bound);
    CHECK(config.gate == (g.lower_bound ? bounded : softplus));
  }

  struct rank {
    const char* file;
    const char* changes;
    hf::projection output_gate;
  };
  const rank ranks[] = {
      {kimi, "", low_rank},
      {kimi, "linear_attn_config.use_full_rank_gate=null", low_rank},
      {kimi, "linear_attn_config.use_full_rank_gate=false", low_rank},
      {kimi, "linear_attn_config.use_full_rank_gate=true", full_rank},
      {k3, "linear_attn_config.use_full_rank_gate=false", low_rank},
  };
  for (const rank& r : ranks) {
    INFO(r.file << ": " << r.changes);
    const auto config = require_read(hf::read_config(changed(r.file, r.changes)));
    CHECK(config.output_gate_projection == r.output_gate);
    CHECK(config.decay_projection == low_rank);
  }

  struct activations {
    const char* file;
    const char* changes;
    hf::activation output_gate;
  };
  const activations names[] = {
      {qwen_9b, R"(output_gate_type=null; hidden_act="swish")", silu},
      {qwen_9b, R"(output_gate_type="silu")", silu},
      {qwen_27b, R"(output_gate_type="swish")", silu},
      {qwen_exp, R"(output_gate_type="swish")", silu},
  };
  for (const activations& a : names) {
    INFO(a.file << ": " << a.changes);
    const auto config = require_read(hf::read_config(changed(a.file, a.changes)));
    CHECK(config.output_gate == a.output_gate);
    CHECK(config.conv_activation == silu);
  }
}

TEST_CASE("the legacy lower_bound is reported and never taken", "[hf_config]") {
  struct legacy {
    const char* file;
    const char* changes;
    std::optional<float> lower_bound;
    const char* noted;
  };
  const legacy cases[] = {
      {glm, "linear_attn_config.lower_bound=-4", -5.f, "text_config.linear_attn_config.lower_bound: is -4;"},
      {kimi, "linear_attn_config.lower_bound=-4", none, "linear_attn_config.lower_bound: is -4;"},
      {kimi, "lower_bound=-4", none, "lower_bound: is -4;"},
      {kimi, R"(lower_bound="a\nb")", none, R"(lower_bound: is "a\nb";)"},
  };
  for (const legacy& l : cases) {
    INFO(l.file << ": " << l.changes);
    const auto config = require_read(hf::read_config(changed(l.file, l.changes)));
    CHECK(config.lower_bound == l.lower_bound);
    REQUIRE(config.notes.size() == 1);
    CHECK(config.notes[0].rfind(l.noted, 0) == 0);
    CHECK_FALSE(contains(config.notes[0], "\n"));
  }
  check_refusals({
      {glm, "linear_attn_config.lower_bound=-4; linear_attn_config.gate_lower_bound=",
       "linear_attn_config.gate_lower_bound", "text_config.linear_attn_config.lower_bound (-4)"},
      {k3, "lower_bound=-4; linear_attn_config.gate_lower_bound=", "linear_attn_config.gate_lower_bound",
       "text_config.lower_bound (-4)"},
  });
}

TEST_CASE("a number of the wrong type or out of range is an error that names its key", "[hf_config]") {
  const std::pair<const char*, std::vector<std::string>> integers[] = {
      {glm,
       {"hidden_size", "num_hidden_layers", "linear_attn_config.num_heads", "linear_attn_config.head_dim",
        "linear_attn_config.short_conv_kernel_size"}},
      {qwen_9b,
       {"hidden_size", "num_hidden_layers", "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
        "linear_value_head_dim", "linear_conv_kernel_dim"}}};
  for (const auto& [file, keys] : integers)
    for (const std::string& key : keys)
      for (const std::string value :
           {"0", "-64", "1.5", "64.0", "\"64\"", "true", "[64]", "{}", "4294967297", "1e300", "2147483648",
            "9223372036854775807", "18446744073709551615", "-9223372036854775808"}) {
        INFO(file << ": " << key << " = " << value);
        check_refused(hf::read_config(changed(file, key + "=" + value)), "text_config." + key, "integer from 1 to");
      }

  const char* bound = "linear_attn_config.gate_lower_bound";
  check_refusals({
      {glm, "linear_attn_config.gate_lower_bound=0", bound, "below 0"},
      {glm, "linear_attn_config.gate_lower_bound=-0.0", bound, "below 0"},
      {glm, "linear_attn_config.gate_lower_bound=5.0", bound, "not 5.0"},
      {glm, "linear_attn_config.gate_lower_bound=\"-5\"", bound, "not \"-5\""},
      {glm, "linear_attn_config.gate_lower_bound=true", bound, "not true"},
      {glm, "linear_attn_config.gate_lower_bound=[-5]", bound, "not an array"},
      {glm, "linear_attn_config.gate_lower_bound=-1e300", bound, "finite"},    // past float
      {glm, "linear_attn_config.gate_lower_bound=-1e-300", bound, "below 0"},  // -0 as float
      {kimi, "linear_attn_config.gate_lower_bound=1", bound, "below 0"},
      {k3, "linear_attn_config.gate_lower_bound=0", bound, "below 0"},
      {next_80b, "num_hidden_layers=65536", "num_hidden_layers", "from 1 to 65535"},
      {glm, "rms_norm_eps=-1e-5", "rms_norm_eps", "at least 0"},
      {glm, "rms_norm_eps=1e300", "rms_norm_eps", "finite"},
      {next_80b, "rms_norm_eps=\"1e-6\"", "rms_norm_eps", "not \"1e-6\""},
      {qwen_9b, "linear_num_value_heads=24", "linear_num_value_heads", "multiple of linear_num_key_heads (16), not 24"},
      {next_80b, "linear_num_value_heads=8", "linear_num_value_heads", "multiple of linear_num_key_heads (16), not 8"},
  });

  // What JSON text cannot hold, in a value built by hand.
  for (const double value :
       {std::nan(""), std::numeric_limits<double>::infinity(), -std::numeric_limits<double>::infinity()}) {
    json file = parsed(kimi);
    file["linear_attn_config"]["gate_lower_bound"] = value;
    check_refused(hf::read_config(file), "linear_attn_config.gate_lower_bound", "finite");
    file = parsed(kimi);
    file["rms_norm_eps"] = value;
    check_refused(hf::read_config(file), "rms_norm_eps", "finite");
  }
}

TEST_CASE("a safe_gate without a bound is an error that names the bound", "[hf_config]") {
  const char* bound = "linear_attn_config.gate_lower_bound";
  check_refusals({
      {glm, "linear_attn_config.gate_lower_bound=null; linear_attn_config.safe_gate=true", bound,
       "text_config.linear_attn_config.safe_gate is true"},
      {glm, "linear_attn_config.gate_lower_bound=null", bound, "safe_gate is not false"},
      {glm, "linear_attn_config.gate_lower_bound=null; linear_attn_config.safe_gate=null", bound,
       "safe_gate is not false"},
      {k3, "linear_attn_config.gate_lower_bound=null; linear_attn_config.safe_gate=true", bound, "safe_gate is true"},
      {kimi, "linear_attn_config.gate_lower_bound=null; linear_attn_config.safe_gate=true", bound, "is null"},
      {kimi, "linear_attn_config.safe_gate=true", bound, "is missing"},
      {kimi, "linear_attn_config.safe_gate=1", "linear_attn_config.safe_gate", "true or false, not 1"},
  });
}

TEST_CASE("names and objects that are not known are errors that name the key", "[hf_config]") {
  check_refusals({
      {glm, R"(hidden_act="gelu")", "hidden_act", R"(must be "silu", not "gelu")"},
      {kimi, R"(hidden_act="situ")", "hidden_act", R"(must be "silu", not "situ")"},
      {qwen_9b, R"(hidden_act="sigmoid")", "hidden_act", R"(must be "silu", not "sigmoid")"},
      {qwen_9b, "hidden_act=1", "hidden_act", "not 1"},
      {qwen_9b, R"(output_gate_type="sigmoid")", "output_gate_type", R"(must be "silu", not "sigmoid")"},
      {next_80b, "output_gate_type=true", "output_gate_type", "not true"},
      {qwen_exp, R"(output_gate_type="tanh")", "output_gate_type", R"(must be "silu" or "sigmoid", not "tanh")"},
      {k3, "linear_attn_config.use_full_rank_gate=1", "linear_attn_config.use_full_rank_gate", "true or false, not 1"},
      {glm, "linear_attn_config=3", "linear_attn_config", "object, not 3"},
      {kimi, "linear_attn_config=[]", "linear_attn_config", "object, not an array"},
      {glm, "^text_config=[]", "^text_config", "object, not an array"},
      {glm, "^text_config=\"x\"", "^text_config", "object, not \"x\""},
      {glm, R"(model_type="qwen3_5_text")", "model_type", "must be glm5_next_text"},
      {qwen_9b, R"(model_type="qwen3_5_moe_text")", "model_type", "must be qwen3_5_text"},
      {k3, "model_type=3", "model_type", "not 3"},
      {kimi, "model_type=7", "model_type", "not 7"},
      {kimi, R"(model_type="llama")", "model_type",
       "glm5_next, kimi_linear, kimi_k3, qwen3_next, qwen3_5, qwen3_5_moe, qwen4_exp, not \"llama\""},
      {kimi, R"(model_type="two\nlines")", "model_type", R"(two\nlines)"},
  });
  json file = parsed(kimi);
  file["model_type"] = "not \xff UTF-8";
  check_refused(hf::read_config(file), "model_type", "UTF-8");
  file["model_type"] = std::string(1000, 'x');
  check_refused(hf::read_config(file), "model_type", "...");
  CHECK(hf::read_config(file).failure().message.size() < 300);
}

TEST_CASE("the linear layers come from any statement of them", "[hf_config]") {
  std::string kimi_types;
  for (std::ptrdiff_t layer = 0; layer < 27; ++layer)
    kimi_types += std::string(layer == 0 ? "layer_types=[" : ", ") +
                  (std::find(kimi_full.begin(), kimi_full.end(), layer) == kimi_full.end() ? "\"linear_attention\""
                                                                                           : "\"full_attention\"");
  kimi_types += "]";
  const std::string only_kimi_types = kimi_types + "; linear_attn_config.kda_layers=";

  struct statement {
    const char* file;
    std::string changes;
    layer_list layers;
  };
  const layer_list glm_layers = all_but(45, every_fourth(45));
  const layer_list kimi_layers = all_but(27, kimi_full);
  const layer_list qwen_layers = all_but(32, every_fourth(32));
  const layer_list sevenths = all_but(48, {6, 13, 20, 27, 34, 41});
  const statement statements[] = {
      {glm, "linear_attn_config.kda_layers=; linear_attn_config.full_attn_layers=", glm_layers},
      {glm, "layer_types=", glm_layers},
      {glm, "layer_types=null; linear_attn_config.full_attn_layers=null", glm_layers},
      {glm, R"(layer_types.3="indexed_attention"; layer_types.7="full_attention")", glm_layers},
      {qwen_exp, R"(layer_types.3="qwen_sparse_attention")", all_but(48, every_fourth(48))},
      {kimi, kimi_types, kimi_layers},
      {kimi, only_kimi_types, kimi_layers},
      {kimi, "linear_attn_config.full_attn_layers=", kimi_layers},
      {kimi, "linear_attn_config.kda_layers.0=2; linear_attn_config.kda_layers.1=1", kimi_layers},
      {qwen_9b, "full_attention_interval=", qwen_layers},
      {qwen_9b, "layer_types=", qwen_layers},
      {next_80b, "full_attention_interval=7", sevenths},
      {next_80b, "full_attention_interval=49", all_but(48, {})},
      {next_80b, "full_attention_interval=1", {}},
      {next_80b, "num_hidden_layers=65535; full_attention_interval=65536", all_but(65535, {})},
  };
  for (const statement& s : statements) {
    INFO(s.file << ": " << s.changes);
    CHECK(require_read(hf::read_config(changed(s.file, s.changes))).linear_layers == s.layers);
  }
}

TEST_CASE("a layer list that is missing, malformed or disputed is an error that names it", "[hf_config]") {
  const char* kda = "linear_attn_config.kda_layers";
  const char* full = "linear_attn_config.full_attn_layers";
  check_refusals({
      // missing
      {glm, "layer_types=; linear_attn_config.kda_layers=", kda, "so is text_config.layer_types"},
      {kimi, "linear_attn_config.kda_layers=null", kda, "is missing"},
      {qwen_9b, "layer_types=; full_attention_interval=", "full_attention_interval", "layer_types"},
      // numbers
      {kimi, "linear_attn_config.kda_layers.0=0", "linear_attn_config.kda_layers[0]", "from 1 to 27, not 0"},
      {kimi, "linear_attn_config.kda_layers.2=28", "linear_attn_config.kda_layers[2]", "not 28"},
      {kimi, "linear_attn_config.kda_layers.2=-1", "linear_attn_config.kda_layers[2]", "not -1"},
      {kimi, "linear_attn_config.kda_layers.2=3.0", "linear_attn_config.kda_layers[2]", "not 3.0"},
      {kimi, "linear_attn_config.kda_layers.2=\"3\"", "linear_attn_config.kda_layers[2]", "not \"3\""},
      {kimi, "linear_attn_config.kda_layers.2=2", "linear_attn_config.kda_layers[2]", "layer 2 a second time"},
      {kimi, "linear_attn_config.kda_layers=3", kda, "array"},
      {kimi, "linear_attn_config.full_attn_layers.0=28", "linear_attn_config.full_attn_layers[0]", "not 28"},
      {kimi, "linear_attn_config.full_attn_layers.1=4", "linear_attn_config.full_attn_layers[1]", "second time"},
      {kimi, "linear_attn_config.full_attn_layers={}", full, "array"},
      {glm, "linear_attn_config.kda_layers.33=45", "linear_attn_config.kda_layers[33]", "from 0 to 44, not 45"},
      {glm, "linear_attn_config.kda_layers.0=-1", "linear_attn_config.kda_layers[0]", "from 0 to 44, not -1"},
      // names
      {glm, "layer_types=[\"linear_attention\"]", "layer_types", "45 layers, not of 1"},
      {glm, "num_hidden_layers=44", "layer_types", "44 layers, not of 45"},
      {glm, "layer_types=\"linear_attention\"", "layer_types", "array"},
      {glm, "layer_types.7=\"mamba\"", "layer_types[7]", "not \"mamba\""},
      {qwen_9b, "layer_types.0=0", "layer_types[0]", "not 0"},
      // interval
      {next_80b, "full_attention_interval=0", "full_attention_interval", "at least 1, not 0"},
      {next_80b, "full_attention_interval=4.0", "full_attention_interval", "not 4.0"},
      {next_80b, "full_attention_interval=\"4\"", "full_attention_interval", "not \"4\""},
      // two statements that differ
      {glm, "layer_types.3=\"linear_attention\"", kda, "layer 3 (counted from 0) full"},
      {glm, "layer_types.44=\"full_attention\"", kda, "layer 44 (counted from 0) linear"},
      {glm, "layer_types=; linear_attn_config.full_attn_layers.0=2", full, "layer 2 (counted from 0) full"},
      {kimi, "linear_attn_config.full_attn_layers.0=3", full, "layer 2 (counted from 0) full"},
      {kimi, "linear_attn_config.full_attn_layers=[]", full, "layer 3 (counted from 0) linear"},
      {qwen_9b, "full_attention_interval=2", "full_attention_interval", "layer 1 (counted from 0) full"},
  });
}

TEST_CASE("lists counted from the other base are refused", "[hf_config]") {
  json glm_as_kimi = parsed(glm)["text_config"];
  glm_as_kimi["model_type"] = "kimi_linear";
  glm_as_kimi.erase("layer_types");
  check_refused(hf::read_config(glm_as_kimi), "linear_attn_config.kda_layers[0]", "from 1 to 45, not 0");

  json kimi_as_glm = parsed(kimi);
  kimi_as_glm["model_type"] = "glm5_next";
  kimi_as_glm["linear_attn_config"]["gate_lower_bound"] = -5;
  check_refused(hf::read_config(kimi_as_glm), "linear_attn_config.full_attn_layers[6]", "from 0 to 26, not 27");
}

TEST_CASE("a text model alone reads like the file that nests it", "[hf_config]") {
  for (const char* name : {glm, qwen_0_8b, qwen_moe, qwen_exp}) {
    INFO(name);
    const auto nested = require_read(hf::load_config(path_of(name)));
    json text = parsed(name)["text_config"];
    for (const std::string& type : {text["model_type"].get<std::string>(), nested.model_type}) {
      text["model_type"] = type;
      const auto alone = require_read(hf::read_config(text));
      CHECK(alone.model_type == type);
      CHECK(alone.hidden == nested.hidden);
      CHECK(alone.value_heads == nested.value_heads);
      CHECK(alone.lower_bound == nested.lower_bound);
      CHECK(alone.output_gate == nested.output_gate);
      CHECK(alone.linear_layers == nested.linear_layers);
      text["text_config"] = nullptr;  // counts as none
    }
  }
  CHECK(require_read(hf::read_config(changed(glm, "model_type="))).hidden == 4096);
  // A K3 text model alone calls itself kimi_linear, whose convolution has the activation that hidden_act names.
  check_refused(hf::read_config(parsed(k3)["text_config"]), "hidden_act", "situ");
}

TEST_CASE("only the text model's keys count", "[hf_config]") {
  REQUIRE(parsed(glm)["vision_config"]["hidden_size"] == 1024);
  const auto config = require_read(hf::read_config(changed(glm, "^hidden_size=1; ^rms_norm_eps=1; ^lower_bound=-1")));
  CHECK(config.hidden == 4096);
  CHECK(config.rms_norm_eps == 1e-5f);
  CHECK(config.notes.empty());
}

TEST_CASE("the key names that transformers saves are read, and must agree with the published ones", "[hf_config]") {
  json saved = parsed(glm)["text_config"];
  saved.erase("linear_attn_config");
  saved["linear_num_heads"] = 8;
  saved["linear_head_dim"] = 16;
  saved["linear_conv_kernel_dim"] = 3;
  saved["linear_lower_bound"] = -2.5;
  const auto config = require_read(hf::read_config(saved));
  CHECK(config.key_heads == 8);
  CHECK(config.value_heads == 8);
  CHECK(config.key_dim == 16);
  CHECK(config.value_dim == 16);
  CHECK(config.conv_width == 3);
  CHECK(config.lower_bound == -2.5f);

  saved["linear_lower_bound"] = nullptr;  // and no linear_attn_config that could promise a bound
  CHECK(require_read(hf::read_config(saved)).gate == softplus);
  saved["linear_attn_config"] = nullptr;
  CHECK(require_read(hf::read_config(saved)).gate == softplus);
  saved["linear_attn_config"] = json::object();
  check_refused(hf::read_config(saved), "linear_lower_bound", "safe_gate is not false");
  saved["linear_head_dim"] = 1.5;
  check_refused(hf::read_config(saved), "linear_head_dim", "not 1.5");

  CHECK(hf::read_config(
      changed(glm, "linear_num_heads=64; linear_head_dim=128; linear_conv_kernel_dim=4; linear_lower_bound=-5")));
  check_refusals({
      {glm, "linear_num_heads=32", "linear_num_heads", "is 32, but text_config.linear_attn_config.num_heads is 64"},
      {glm, "linear_head_dim=64", "linear_head_dim", "but text_config.linear_attn_config.head_dim is 128"},
      {glm, "linear_conv_kernel_dim=3", "linear_conv_kernel_dim", "linear_attn_config.short_conv_kernel_size is 4"},
      {glm, "linear_lower_bound=null", "linear_lower_bound", "linear_attn_config.gate_lower_bound is -5.0"},
      {glm, "linear_num_heads=0; linear_attn_config.num_heads=0", "linear_attn_config.num_heads", "not 0"},
      {kimi, "linear_num_heads=64", "linear_num_heads", "is 64, but linear_attn_config.num_heads is 32"},
  });
}

TEST_CASE("text that is not a whole JSON object is an error at every length", "[hf_config]") {
  for (const char* name : {kimi, next_80b}) {
    std::string text = text_of(name);
    text.erase(text.find_last_of('}') + 1);
    CHECK(hf::parse_config(text));
    CHECK_FALSE(hf::parse_config("// a comment\n" + text));
    for (std::size_t length = 0; length < text.size(); ++length) {
      const auto config = hf::parse_config(std::string_view(text).substr(0, length));
      REQUIRE_FALSE(config);
      REQUIRE(contains(config.failure().message, "JSON"));
    }
  }
  for (const char* text : {"", "null", "3", "\"glm5_next\"", "[]", "{} {}", "{\"model_type\": glm5_next}", "{,}",
                           "\x01", "{\"rms_norm_eps\": NaN}", "{\"rms_norm_eps\": 1e999}"}) {
    INFO(text);
    const auto config = hf::parse_config(text);
    REQUIRE_FALSE(config);
    CHECK(config.failure().key.empty());
    CHECK_FALSE(config.failure().message.empty());
  }
  const std::string deep(100000, '[');
  CHECK_FALSE(hf::parse_config(deep));
  CHECK_FALSE(hf::parse_config(deep + std::string(deep.size(), ']')));
}

TEST_CASE("every error of a file names the file", "[hf_config]") {
  namespace fs = std::filesystem;
  const fs::path directory = fs::temp_directory_path() / ("kda_hf_config_" + std::to_string(::getpid()));
  fs::create_directories(directory);
  const auto write = [&directory](const char* name, const std::string& text) {
    std::ofstream(directory / name, std::ios::binary) << text;
    return (directory / name).string();
  };
  const auto with_bound = [](const char* bound) {
    std::string text = text_of(glm);
    return text.replace(text.find("-5.0"), 4, bound);
  };
  const std::string whole = text_of(glm);
  struct bad_file {
    std::string path, key, words;
  };
  const bad_file files[] = {
      {(directory / "missing.json").string(), "", "cannot be opened"},
      {directory.string(), "", "cannot be read"},
      {write("empty.json", ""), "", "JSON"},
      {write("truncated.json", whole.substr(0, whole.size() / 2)), "", "JSON"},
      {write("number.json", with_bound("+5.0")), "", "JSON"},
      {write("array.json", "[]"), "", "object"},
      {write("bound.json", with_bound("5.0")), "text_config.linear_attn_config.gate_lower_bound", "below 0"},
  };
  for (const bad_file& f : files) {
    const auto config = hf::load_config(f.path);
    check_refused(config, f.key, f.words);
    CHECK(config.failure().message.rfind(f.path + ": ", 0) == 0);
  }
  CHECK(hf::load_config(write("whole.json", whole)));
  CHECK(hf::load_config(write("long.json", std::string(10000, ' ') + whole)));
  fs::remove_all(directory);
}

TEST_CASE("any value in any place is read or refused in one line", "[hf_config]") {
  const std::vector<json> values = {nullptr,
                                    true,
                                    false,
                                    0,
                                    1,
                                    -1,
                                    3,
                                    1e300,
                                    -2.5,
                                    "",
                                    "silu",
                                    "two\nlines",
                                    json::array(),
                                    json::array({0}),
                                    json::object(),
                                    json::binary({1, 2})};
  std::size_t read = 0;
  std::size_t refused = 0;
  for (const char* name : every_file) {
    const json file = parsed(name);
    const json leaves = file.flatten();
    for (const auto& leaf : leaves.items())
      for (json::json_pointer where(leaf.key()); !where.empty(); where.pop_back())
        for (const json& value : values) {
          json other = file;
          other[where] = value;
          const auto config = hf::read_config(other);
          ++(config ? read : refused);
          if (config) {
            REQUIRE(config->hidden > 0);
            REQUIRE(config->value_heads % config->key_heads == 0);
            REQUIRE((config->gate == bounded) == config->lower_bound.has_value());
            REQUIRE((!config->lower_bound || (std::isfinite(*config->lower_bound) && *config->lower_bound < 0)));
          } else {
            INFO(name << ' ' << where.to_string() << ' ' << config.failure().message);
            REQUIRE_FALSE(config.failure().message.empty());
            REQUIRE_FALSE(contains(config.failure().message, "\n"));
            REQUIRE(contains(config.failure().message, config.failure().key));
          }
        }
  }
  CHECK(read > 1000);
  CHECK(refused > 1000);
}
