// Pictures of a run as self-contained SVG that follows the reader's light or dark theme.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/train/metrics_log.h"

namespace vitrum {

// Panels over the epochs: loss, accuracy, learning rate. Unmeasured (NaN) points are left out.
std::string curves_svg(const std::vector<EpochMetrics>& rows);

// Heat map of counts[true class][predicted class], each row scaled to its own total. Up to 20
// classes show numbers.
std::string confusion_svg(const std::vector<std::vector<int64_t>>& counts,
                          const std::vector<std::string>& class_names);

}  // namespace vitrum
