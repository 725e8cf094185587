#pragma once
#include <string>

#include "vitrum/infer/predictor.h"
#include "vitrum/report/run.h"

namespace vitrum {

// Draws the attention rollout of the model in directory `model` over images. Fails for a model
// without attention.
Overlay attention_overlay(const std::string& model, const PredictorOptions& options);

// Whether overlays of a whole report are a matter of a second on two cores.
bool cheap_attention(const ReportRun& run);

}  // namespace vitrum
