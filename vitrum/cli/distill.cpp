#include "vitrum/cli/training.h"
#include "vitrum/core/error.h"

namespace vitrum {

Verb distill_verb() {
  return training_verb(
      {.name = "distill",
       .summary = "train a model with a teacher",
       .examples = {"distill --recipe recipes/cifar10-deit-distill.toml --teacher "
                    "runs/cifar10-resnet18-1/best",
                    "distill --model deit_small_cifar --data cifar10:DIR --teacher DIR "
                    "--distillation soft --tau 3",
                    "distill --resume runs/cifar10-deit-distill-1"},
       .keys = {{"--teacher", "teacher",
                 "model directory or weight file with the student's classes", "MODEL"},
                {"--teacher-arch", "teacher_arch", "preset that a teacher's weight file is of",
                 "PRESET"},
                {"--distillation",
                 "distillation",
                 "learn the teacher's class, or all of its probabilities",
                 "KIND",
                 {"hard", "soft"}},
                {"--alpha", "alpha", "the teacher's share of the loss (default 0.5)", "X"},
                {"--tau", "tau", "temperature of soft distillation (default 1)", "X"},
                {"--teacher-logits", "teacher_logits",
                 "keep the teacher's answers in FILE, or read them from it; where images are "
                 "flipped at most",
                 "FILE"}},
       .check = [](const Recipe& recipe) {
         if (!recipe.teacher || recipe.teacher->empty())
           fail_usage("no teacher: give --teacher MODEL, or a recipe that names one");
       }});
}

}  // namespace vitrum
