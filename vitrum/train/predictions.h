// predictions.csv of a run: what the model made of every image at the last evaluation, so that
// mistakes can be shown later without the model.
#pragma once
#include <string>
#include <vector>

#include "vitrum/infer/evaluator.h"

namespace vitrum {

std::string predictions_path(const std::string& run);

void save_predictions(const std::string& run, const std::vector<SampleResult>& samples);

// Empty where the run has none. A torn last line is dropped; any other line that is not as
// save_predictions() writes it fails, naming it.
std::vector<SampleResult> load_predictions(const std::string& run);

}  // namespace vitrum
