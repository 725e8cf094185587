// A model that is loaded, in the words that programs ask for.
#pragma once
#include "vitrum/core/json_text.h"
#include "vitrum/infer/predictor.h"

namespace vitrum {

// Fields of the object that `json` is in: architecture, parameters, shapes, precision, device.
void describe(JsonWriter& json, Predictor& predictor);
// ["tench", ..]; empty where the model has no labels.
void describe_labels(JsonWriter& json, const Predictor& predictor);

}  // namespace vitrum
