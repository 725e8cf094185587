// Names of edits, as tests/golden/augment.txt and tools/check/check_augment.py call them.
#pragma once
#include <algorithm>
#include <array>
#include <stdexcept>
#include <string>
#include <string_view>

#include "vitrum/data/edit.h"

namespace vitrum {

inline EditKind edit_kind(const std::string& name) {
  constexpr std::array<std::string_view, 13> kNames = {
      // in the order of the enumeration
      "affine", "auto-contrast", "equalize",   "invert",    "posterize", "solarize", "solarize-add",
      "color",  "contrast",      "brightness", "sharpness", "blur",      "hue"};
  const auto found = std::ranges::find(kNames, name);
  if (found == kNames.end()) throw std::runtime_error("no edit " + name);
  return static_cast<EditKind>(found - kNames.begin());
}

}  // namespace vitrum
