// Images through the model behind a handle.
#pragma once
#include <span>

#include "vitrum/c/model.h"

namespace vitrum::c {

// One image; logits (classes) and features (dimension) may be null. Calls that overlap are computed
// together where the model was loaded so.
void predict_image(vitrum_model& model, const Image& image, float* logits, float* features);

}  // namespace vitrum::c
