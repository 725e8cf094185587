#include "vitrum/cli/training.h"
#include "vitrum/core/error.h"

namespace vitrum {

Verb finetune_verb() {
  return training_verb(
      {.name = "finetune",
       .summary = "train a model that starts from pretrained weights",
       .examples = {"finetune --weights vit_tiny_patch16_224 --data folder:photos --head-only",
                    "finetune --recipe recipes/flowers5.toml --weights DIR --data folder:DIR",
                    "finetune --weights DIR --data cifar10:DIR --lr-scale 'head.*=100' "
                    "--lr-scan 1e-5,3e-5,1e-4"},
       .keys = {{"--weights", "weights", "model directory or weight file to start from", "MODEL"},
                {"--head-only",
                 "head_only",
                 "train the head, leave the rest as it is",
                 {},
                 {},
                 KeyKind::kFlag},
                {"--freeze",
                 "freeze",
                 "parameters that do not learn, as 'blocks.*'; may be given again",
                 "PATTERN",
                 {},
                 KeyKind::kMany},
                {"--lr-scale",
                 "lr_scale",
                 "parameters that learn at X times the rate; may be given again",
                 "PATTERN=X",
                 {},
                 KeyKind::kMany},
                {"--lr-scan", "lr_scan", "try these rates on held-out images, take the best",
                 "X,X,..."},
                {"--head-init", "head_init", "start of a new head", "NAME", {"zero", "normal"}}},
       .check = [](const Recipe& recipe) {
         if (recipe.weights.empty())
           fail_usage("no weights: give --weights MODEL, or a recipe that names them");
       }});
}

}  // namespace vitrum
