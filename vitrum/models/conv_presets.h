// Presets of Swin V2 and ConvNeXt. Internal to models/.
#pragma once
#include <vector>

#include "vitrum/models/registry.h"

namespace vitrum {

std::vector<Preset> swin_v2_presets();
std::vector<Preset> convnext_presets();

}  // namespace vitrum
