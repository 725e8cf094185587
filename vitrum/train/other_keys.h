#pragma once
#include <span>

#include "vitrum/core/nearest.h"

namespace vitrum {

// What timm, torchvision, Keras, Ultralytics and transformers call keys of a recipe.
std::span<const OtherName> other_keys();

}  // namespace vitrum
