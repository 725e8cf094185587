// Which output of a model each class of a data set is.
#pragma once
#include <string>
#include <vector>

#include "vitrum/data/dataset.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

struct LabelMatch {
  std::vector<int> outputs;  // by class of the data; -1 for a class without images and no match
  bool by_position = false;  // no name matched, but there are as many classes as outputs
};

// A class's name is a label of the model, one of the names in it ("tench, Tinca tinca"), a class id
// (n01440764) or an output's number, the first that fits; case, '_' and '-' do not matter where
// nothing fits exactly. A model without labels has its outputs in the order of the data's classes.
// Fails listing the classes that match nothing or several outputs.
LabelMatch match_labels(const Dataset& data, const ModelSpec& model);

// The output that a name means, in the same ways. One that means none or several is a usage error.
int output_of(const ModelSpec& model, const std::string& name);

}  // namespace vitrum
