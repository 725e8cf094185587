// What the head sees of every image, computed once: for runs that train the head alone and show
// each image the same way in every epoch.
#pragma once
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "vitrum/data/loader.h"
#include "vitrum/infer/evaluator.h"
#include "vitrum/train/setup.h"

namespace vitrum {

// By the image's name, so that runs over parts of the same data can share one.
using FeatureCache = std::unordered_map<std::string, std::vector<float>>;

// The same labels in the same order, but an "image" is one row of bytes: those of its features. So
// the loader that shuffles pixels shuffles features too.
class FeatureDataset final : public Dataset {
 public:
  FeatureDataset(const Dataset& images, int64_t dimension)
      : images_(images), dimension_(dimension) {}

  int64_t size() const override { return images_.size(); }
  ImageSize image_size() const override;
  const std::vector<std::string>& classes() const override { return images_.classes(); }
  int label(int64_t index) const override { return images_.label(index); }
  std::string name(int64_t index) const override { return images_.name(index); }
  void read_into(int64_t index, Image& image) const override;

  // Before anything is read: computes what the cache does not have. `config` is the one that
  // evaluation has for the images. Where `keep_going` says no, the rest is left undone and false
  // returned. The cache must outlive this.
  bool fill(FeatureCache& cache, const LoaderConfig& config, ModelProgram& program,
            const KeepGoing& keep_going);

 private:
  std::vector<int64_t> missing(const FeatureCache& cache) const;

  const Dataset& images_;
  int64_t dimension_;
  std::vector<const float*> rows_;
};

// How a loader reads such a data set: bytes as they are.
Preprocess feature_preprocess(int64_t dimension);

// Whether an image is the same in every epoch: nothing augments or mixes it.
bool shows_images_alike(const Recipe& recipe);
// The same, but that every second one is left-right: augment = "flip".
bool flips_images_alone(const Recipe& recipe);

// Whether the run may and should keep features: only the head learns, nothing is random about its
// images, each is seen in one way, and there is room.
bool keeps_features(const Recipe& recipe, const ModelSpec& model, const TrainData& data);

}  // namespace vitrum
