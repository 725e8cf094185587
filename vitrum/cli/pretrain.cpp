#include "vitrum/cli/training.h"
#include "vitrum/core/error.h"

namespace vitrum {

Verb pretrain_verb() {
  return training_verb(
      {.name = "pretrain",
       .summary = "learn from images without labels",
       .examples = {"pretrain --recipe recipes/fashion-mnist-mae.toml",
                    "pretrain --method mae --model vit_small_patch16_224 --data folder:photos "
                    "--epochs 200 --out runs/mae",
                    "pretrain --resume runs/mae"},
       .keys = {{"--method",
                 "task",
                 "masked autoencoder: guess the pixels of hidden patches",
                 "NAME",
                 {"mae"}},
                {"--weights", "weights", "model directory or weight file to start from", "MODEL"},
                {"--mask-ratio", "mask_ratio",
                 "share of the patches that are hidden (default 0.75)", "X"}},
       .check =
           [](const Recipe& recipe) {
             if (recipe.task == Task::kClassify)
               fail_usage(
                   "task is \"classify\", which is learning with labels; set task = \"mae\", or "
                   "train with `vitrum train`");
           },
       .task = Task::kMae});
}

}  // namespace vitrum
