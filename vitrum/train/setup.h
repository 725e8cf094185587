// From a recipe to what a run works on: the data, the model as the recipe changes it, the
// precision.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vitrum/core/dtype.h"
#include "vitrum/data/augment.h"
#include "vitrum/data/dataset.h"
#include "vitrum/data/mix.h"
#include "vitrum/train/recipe.h"
#include "vitrum/train/skipped.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

struct TrainDataOptions {
  std::optional<std::vector<SkippedImage>> skipped = {};  // as an earlier part of the run has it
  int threads = 0;                                        // to look for bad images with; 0: all
  bool quiet = true;                                      // no progress of that
  DecodeOptions decode = {};
};

// The two sides of a run; the second may be empty where a run learns without labels. With a
// holdout, `test` is what was taken from the training images (where a scan of learning rates does
// that, the run after it has the test images, if there are any); with a subset, both are cut down
// to it.
class TrainData {
 public:
  explicit TrainData(const Recipe& recipe, const TrainDataOptions& options = {});

  const Dataset& train() const { return some_train_ ? *some_train_ : all_train(); }
  const Dataset& test() const { return some_test_ ? *some_test_ : all_test(); }
  // How to find the images again that were taken from those to train on.
  const HeldOut& held_out() const { return held_out_; }
  const std::vector<SkippedImage>& skipped() const { return skipped_; }

 private:
  const Dataset& good_train() const { return good_.train ? *good_.train : *splits_.train; }
  const Dataset& good_test() const { return good_.test ? *good_.test : *splits_.test; }
  const Dataset& all_train() const { return kept_ ? *kept_ : good_train(); }
  const Dataset& all_test() const { return held_ ? *held_ : good_test(); }
  void skip_bad(const TrainDataOptions& options);
  void hold_out(const Recipe& recipe);

  DataSplits splits_;
  DataSplits good_;  // views of splits_, where images are skipped
  std::vector<SkippedImage> skipped_;
  HeldOut held_out_;
  std::unique_ptr<Dataset> kept_, held_;             // views of the training images
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
