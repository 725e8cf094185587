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
  std::string crop_mode = "center";
  std::string note = {};  // for people: what it is, where the name does not say
};

std::span<const Preset> presets();
// By name or alias; null where there is none.
const Preset* preset_named(std::string_view name);
// The same; an unknown name is an error that offers the nearest one.
const Preset& find_preset(std::string_view name);

}  // namespace vitrum
