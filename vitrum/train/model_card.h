// README.md of a model directory, in the hub's form: what it was trained on and how well it does,
// in YAML for machines and in words for people.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/models/mae.h"
#include "vitrum/train/metrics_log.h"
#include "vitrum/train/recipe.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

struct ModelCard {
  Recipe recipe;
  ModelSpec model;
  std::vector<std::string> classes = {};
  int64_t train_images = 0, test_images = 0;
  bool held_out = false;                  // test images are held out of the training images
  std::optional<MaeConfig> decoder = {};  // of a masked pretraining, beside the model
};

// `row` is the evaluation of these weights; null where there was none yet.
std::string to_markdown(const ModelCard& card, const EpochMetrics* row);

// What such a file says of the model's accuracy; nothing where it says none.
struct StatedAccuracy {
  std::string data;
  double accuracy = 0;  // a fraction
};
std::optional<StatedAccuracy> stated_accuracy(std::string_view markdown);

}  // namespace vitrum
