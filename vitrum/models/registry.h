// Models by name: presets, and the names other frameworks have for them.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/models/model.h"

namespace vitrum {

struct Preset {
  std::string name;
  std::string family;  // as family_of()
  ModelConfig config;
  std::vector<std::string> aliases;
  std::vector<float> mean, std;  // of the pixels in [0, 1]
  bool fixed_classes =
      false;  // the preset's number of classes is part of the model (vit_mnist: 100)
  std::string public_weights = {};  // hub id of known public weights, "" where there are none
  double crop_pct = 1;              // of preprocessing, as Preprocessing has it
};

std::span<const Preset> presets();
// By name or alias; an unknown name is a usage error that offers the nearest one.
const Preset& find_preset(std::string_view name);

}  // namespace vitrum
