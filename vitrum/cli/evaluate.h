#pragma once
#include "vitrum/cli/verbs.h"
#include "vitrum/infer/evaluator.h"
#include "vitrum/infer/match_labels.h"
#include "vitrum/infer/predictor.h"

namespace vitrum {

// Accuracy over a whole data set, with progress on stderr.
Evaluation evaluate(Predictor& predictor, const Dataset& data, const LabelMatch& match,
                    const CommonOptions& common);

}  // namespace vitrum
