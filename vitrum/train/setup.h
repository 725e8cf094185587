// From a recipe to what a run works on: the data, the model as the recipe changes it, the
// precision.
#pragma once
#include <memory>
#include <string>

#include "vitrum/core/dtype.h"
#include "vitrum/data/augment.h"
#include "vitrum/data/dataset.h"
#include "vitrum/data/mix.h"
#include "vitrum/train/recipe.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

// The two sides of a run. With a holdout, `test` is what was taken from the training images (where
// a scan of learning rates does that, the run after it has the test images, if there are any); with
// a subset, both are cut down to it.
class TrainData {
 public:
  explicit TrainData(const Recipe& recipe);

  const Dataset& train() const { return some_train_ ? *some_train_ : all_train(); }
  const Dataset& test() const { return some_test_ ? *some_test_ : all_test(); }
  // Other than those held out.
  bool has_test_images() const { return splits_.test != nullptr; }

 private:
  const Dataset& all_train() const { return kept_ ? *kept_ : *splits_.train; }
  const Dataset& all_test() const { return held_ ? *held_ : *splits_.test; }

  DataSplits splits_;
  std::unique_ptr<Dataset> kept_, held_;             // views of splits_.train
  std::unique_ptr<Dataset> some_train_, some_test_;  // views of what is above
};

// The recipe's model, or that of its weights, with the recipe's size, classes, dropout and
// preprocessing; it fits the data or fails saying why not. Preprocessing that the recipe leaves
// open is the weights'.
ModelSpec model_for(const Recipe& recipe, const Dataset& data);
Augment augment_for(const Recipe& recipe, const ModelSpec& model);
MixConfig mix_for(const Recipe& recipe);
// The first epoch of a run of `epochs` in which crop and flip are all that is done.
int64_t strong_epochs(const Recipe& recipe, int64_t epochs);

// bf16 only where the recipe asks for it: it saves memory, and no backend of today is faster in it.
DType compute_for(const Recipe& recipe);

}  // namespace vitrum
