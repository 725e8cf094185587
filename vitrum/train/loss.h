// What a batch costs: the task's loss, and with a teacher its share of the whole.
#pragma once
#include "vitrum/infer/model_program.h"
#include "vitrum/train/recipe.h"

namespace vitrum {

struct LossInputs {
  Value target;        // i32 (B) or float (B, classes)
  Value weight;        // (B)
  Value teacher = {};  // its logits, (B, classes); absent: no distillation
};

// (1 - alpha) of the task's loss and alpha of the teacher's. A student with a distillation token
// learns the one with its class head and the other with its distillation head, any other student
// both with its only head.
Value training_loss(const Recipe& recipe, const TracedModel& student, const LossInputs& in);

}  // namespace vitrum
