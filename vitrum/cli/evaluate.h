#pragma once
#include "vitrum/cli/verbs.h"
#include "vitrum/infer/evaluator.h"
#include "vitrum/infer/match_labels.h"
#include "vitrum/infer/predictor.h"
#include "vitrum/infer/tta.h"

namespace vitrum {

class ZeroShot;

// Accuracy over a whole data set, with progress on stderr; by words, where there are some, else by
// the model's head.
Evaluation evaluate(Predictor& predictor, const Dataset& data, const LabelMatch& match,
                    const CommonOptions& common, const ZeroShot* words = nullptr,
                    Tta tta = Tta::kNone);

}  // namespace vitrum
