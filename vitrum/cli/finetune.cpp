#include "vitrum/cli/train.h"

namespace vitrum {

Verb finetune_verb() {
  const auto o = std::make_shared<TrainOptions>();
  o->needs_weights = true;
  std::vector<Option> options = train_options(*o);
  const std::vector<Option> own = {
      {"--weights", &o->weights, "model directory or weight file to start from", "MODEL"},
      {"--head-only", &o->head_only, "train the head, leave the rest as it is"},
      {"--freeze", &o->freeze, "parameters that do not learn, as 'blocks.*'; may be repeated",
       "PATTERN"},
      {"--lr-scale", &o->lr_scale, "parameters that learn at X times the rate; may be repeated",
       "PATTERN=X"},
      {"--lr-scan", &o->lr_scan, "try these rates on held-out images, take the best", "X,X,..."},
      {"--head-init", &o->head_init, "start of a new head", "", false, {"zero", "normal"}}};
  options.insert(options.begin(), own.begin(), own.end());
  return {.name = "finetune",
          .summary = "train a model that starts from pretrained weights",
          .examples = {"finetune --weights vit_tiny_patch16_224 --data folder:photos --head-only",
                       "finetune --recipe recipes/flowers5.toml --weights DIR --data folder:DIR",
                       "finetune --weights DIR --data cifar10:DIR --lr-scale 'head.*=100' "
                       "--lr-scan 1e-5,3e-5,1e-4"},
          .options = std::move(options),
          .run = [o](const CommonOptions& common) { return train(*o, common); }};
}

}  // namespace vitrum
