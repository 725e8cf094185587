#pragma once
#include <algorithm>
#include <cmath>
#include <span>

namespace vitrum {

inline bool all_finite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

}  // namespace vitrum
