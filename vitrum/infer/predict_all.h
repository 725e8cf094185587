// A whole data set through a model: images are decoded and preprocessed on threads of their own
// while the model computes, a few batches ahead and no more.
#pragma once
#include <functional>
#include <span>
#include <string_view>

#include "vitrum/data/dataset.h"
#include "vitrum/infer/predictor.h"
#include "vitrum/infer/tta.h"

namespace vitrum {

struct PredictedSample {
  int64_t index = 0;                        // in the data set
  std::span<const float> logits, features;  // (classes), (dimension)
  std::span<const std::span<const float>> taps;
  std::string_view error;  // why there are none, for images that cannot be read
};

struct PredictAllOptions {
  int threads = 0;        // for decoding; 0: every core this process may use
  bool tolerant = false;  // go on after an unreadable image, rather than fail with its error
  Tta tta = Tta::kNone;   // logits and features are then means; of a predictor without taps
};

// Calls `each` for every image, in order. `each` returns false to stop.
void predict_all(Predictor& predictor, const Dataset& dataset, const PredictAllOptions& options,
                 const std::function<bool(const PredictedSample&)>& each);

}  // namespace vitrum
