// How much a model's answers change when it computes in another precision.
#pragma once
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "vitrum/data/dataset.h"
#include "vitrum/infer/predictor.h"

namespace vitrum {

struct Agreement {
  static constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();

  int64_t images = 0;
  bool has_head = false;
  int64_t same = 0;           // images with the same most probable class, where it has
  double error = 0;           // of logits, or features: root mean square, relative to theirs
  double largest_change = 0;  // of a probability
  double top1_before = kUnknown, top1_after = kUnknown;  // where classes are known
};

// `outputs` says which output each class of the data is (infer/match_labels.h); empty: not known. A
// model without a head is compared by its features. `progress` is told how many images are done.
Agreement compare_answers(Predictor& before, Predictor& after, const Dataset& data,
                          const std::vector<int>& outputs,
                          const std::function<void(int64_t)>& progress = {});

}  // namespace vitrum
