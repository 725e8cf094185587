#include "vitrum/train/feature_cache.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "vitrum/infer/tta.h"

namespace vitrum {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kMostBytes = int64_t{1} << 30;  // of features; beyond it they are computed anew
constexpr int64_t kWidest = 1 << 12;              // floats: the widest row that a loader takes

// Keys that change an image from epoch to epoch, where they are set.
constexpr std::array<std::string_view, 9> kRandomKeys = {"augment", "crop_padding", "scale",
                                                         "ratio",   "color_jitter", "erase",
                                                         "repeat",  "mixup",        "cutmix"};

}  // namespace

bool shows_images_alike(const Recipe& recipe) {
  Recipe plain;
  if (recipe.augment) set_key(plain, "augment", "none", "augment");
  for (const std::string& key : changed_keys(plain, recipe))
    if (std::find(kRandomKeys.begin(), kRandomKeys.end(), key) != kRandomKeys.end()) return false;
  return true;
}

bool flips_images_alone(const Recipe& recipe) {
  Recipe rest = recipe;
  rest.augment.reset();
  return recipe.augment == "flip" && shows_images_alike(rest);
}

ImageSize FeatureDataset::image_size() const {
  return {.channels = 1, .height = 1, .width = static_cast<int>(dimension_ * kFloat)};
}

void FeatureDataset::read_into(int64_t index, Image& image) const {
  image.reshape(1, 1, static_cast<int>(dimension_ * kFloat));
  std::memcpy(image.pixels.data(), rows_[static_cast<size_t>(index)], image.pixels.size());
}

std::vector<int64_t> FeatureDataset::missing(const FeatureCache& cache) const {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < size(); ++i)
    if (!cache.contains(name(i))) indices.push_back(i);
  return indices;
}

bool FeatureDataset::fill(FeatureCache& cache, const LoaderConfig& config, ModelProgram& program,
                          const KeepGoing& keep_going) {
  if (const auto wanted = missing(cache); !wanted.empty()) {
    const auto images = select_images(images_, wanted);
    Loader loader(*images, config);
    loader.start(0);
    std::vector<float> features(static_cast<size_t>(program.batch() * dimension_));
    Batch batch;
    for (int64_t done = 0; keep_going(done) && loader.next(batch); ++done) {
      program.run(batch.pixels().data());
      program.read_features(features.data());
      for (int64_t i = 0; i < batch.count; ++i) {
        const auto row = features.begin() + i * dimension_;
        cache[images->name(batch.indices[static_cast<size_t>(i)])].assign(row, row + dimension_);
      }
    }
  }
  for (int64_t i = 0; i < size(); ++i) {
    const auto row = cache.find(name(i));
    if (row == cache.end()) return false;
    rows_.push_back(row->second.data());
  }
  return true;
}

Preprocess feature_preprocess(int64_t dimension) {
  return {.channels = 1, .height = 1, .width = static_cast<int>(dimension * kFloat)};
}

bool keeps_features(const Recipe& recipe, const ModelSpec& model, const TrainData& data) {
  const int64_t dimension = feature_width(model.config);
  const int64_t bytes = (data.train().size() + data.test().size()) * dimension * kFloat;
  return recipe.head_only && model.lora.rank == 0 && !recipe.teacher &&
         recipe.eval_tta == Tta::kNone && shows_images_alike(recipe) && dimension <= kWidest &&
         bytes <= kMostBytes && head_sees_features_only(model);
}

}  // namespace vitrum
