// The pictures of what a model looked at in one photo.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "vitrum/core/parallel.h"
#include "vitrum/core/shape.h"
#include "vitrum/explain/picture.h"

namespace vitrum {

struct ExplainedPhoto {
  Image image;          // as the model saw it, before its preprocessing
  int orientation = 1;  // how the pictures are to be turned after drawing, as in EXIF data
  std::string name;     // for titles: what the model takes it for
};

struct ExplainOptions {
  bool attention = true, rollout = true, gradient = true;
  std::optional<int64_t> layer, head;  // of `attention`
  RolloutOptions rolled;
  std::string target = {};  // the class that `gradient` is about
  int edge = 512;           // of a picture of one map, in pixels
};

struct NamedPicture {
  std::string name;  // "rollout"
  Image image;
};
struct NamedArray {
  std::string name;
  Shape shape;
  std::vector<float> values;
};
struct Explanation {
  std::vector<NamedPicture> pictures;
  std::vector<NamedArray> maps;  // the numbers behind them
};
Explanation explain_photo(const ExplainedPhoto& photo, const Preprocess& preprocess,
                          std::span<const LayerAttention> layers, const ExplainOptions& options,
                          ThreadPool& pool);

// Mean distances (layers, heads), one dot a head over the layers.
Image distance_plot(const std::vector<std::vector<double>>& distances, const std::string& below);

}  // namespace vitrum
