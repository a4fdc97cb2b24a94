// SPDX-License-Identifier: Apache-2.0
// Layers of GLM-5.3-Flash's kind from golden/: weights, inputs, and what transformers computed from them.
#pragma once
#include "layer.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace engine {

/// A stored output. A result passes when all its elements are within max_abs + max_rel * (largest stored magnitude).
struct expected {
  std::vector<float> data;
  double max_abs = 0, max_rel = 0;
};

struct golden_layer {
  std::filesystem::path file;
  std::string name;
  layer_shape shape;
  bool bounded = false;      ///< else softplus
  bool conv_silu = false;    ///< else no activation
  std::vector<index> calls;  ///< tokens of each; a call of one token decodes
  layer_weights<float> weights;
  std::vector<float> hidden;      ///< [T, X]
  expected y, state, conv_state;  ///< [T, X], [H, D, D] key-major, [W - 1, 3 Q]
};

/// Every kda_layer file in `folder` that came from transformers' glm5_next, by name. Throws std::runtime_error with one
/// line that names the file and what is wrong with it; finding no layer is an error too.
std::vector<golden_layer> read_golden_layers(const std::filesystem::path& folder);

}
