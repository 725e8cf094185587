// The plots of a run.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "vitrum/infer/evaluator.h"
#include "vitrum/train/metrics_log.h"
#include "vitrum/train/picture.h"

namespace vitrum {

struct RunCurves {
  std::string name;  // of use where there are several
  std::span<const EpochMetrics> rows;
};
enum class CurvePanel : uint8_t { kLoss, kAccuracy, kLearningRate, kThroughput };

// Panels over the epochs, beside each other. Unmeasured (NaN) points are left out. One run has a
// colour for training and one for test; of several each has its own, the training side dotted.
Picture draw_curves(std::span<const RunCurves> runs, std::span<const CurvePanel> panels);
// Whether anything that the panel shows was measured.
bool has_points(CurvePanel panel, std::span<const RunCurves> runs);
// Loss, accuracy (where there is one) and learning rate of one run.
Picture draw_curves(std::span<const EpochMetrics> rows);

// Heat map of counts by true class and predicted class, each row scaled to its own total. Up to 20
// classes show numbers; beyond a thousand several neighbours share a row.
Picture draw_confusion(const Confusion& counts, size_t classes,
                       const std::vector<std::string>& class_names);

}  // namespace vitrum
