// What people type who come from another framework.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "vitrum/core/nearest.h"

namespace vitrum {

// Verbs, options and their values of timm, torchvision, Keras, Ultralytics and transformers, for a
// message that offers ours.
std::span<const OtherName> other_verbs();
std::span<const OtherName> other_options();
std::span<const OtherName> other_values();

// Spellings that every verb takes for an option of its own, in the order in which they are tried:
// those beside `name`, or none.
std::vector<std::string> alike(const std::string& name);

}  // namespace vitrum
