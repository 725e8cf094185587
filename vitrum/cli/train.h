// What the verbs that train share: their options and the run itself.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "vitrum/cli/verbs.h"

namespace vitrum {

// Strings become recipe keys; the recipe's checks apply to them.
struct TrainOptions {
  std::optional<std::string> recipe, resume, out;
  std::optional<std::string> model, data, epochs, batch_size, lr, seed;
  std::vector<std::string> set;
  bool fast = false;
  // Of finetune:
  std::optional<std::string> weights, lr_scan, head_init;
  std::vector<std::string> freeze, lr_scale;
  bool head_only = false;
  bool needs_weights = false;
};

// The options of `train`, which every verb of its kind has.
std::vector<Option> train_options(TrainOptions& o);
int train(const TrainOptions& o, const CommonOptions& common);

}  // namespace vitrum
