// Images through the model behind a handle.
#pragma once
#include <functional>

#include "vitrum/c/model.h"

namespace vitrum::c {

// One image, that `decode` gives; logits (classes) and features (dimension) may be null. Calls that
// overlap are computed together where the model was loaded so.
void predict_image(vitrum_model& model, const std::function<Image()>& decode, float* logits,
                   float* features);

}  // namespace vitrum::c
