#include "vitrum/train/loss.h"

#include "vitrum/graph/functional.h"

namespace vitrum {
namespace {

Value task_loss(const Recipe& recipe, Value logits, const LossInputs& in, double scale) {
  const LossForm form{
      .smoothing = static_cast<float>(recipe.label_smoothing),
      .kind = recipe.loss == TaskLoss::kBce ? LossKind::kBinary : LossKind::kCrossEntropy,
      .scale = static_cast<float>(scale)};
  return cross_entropy(logits, in.target, in.weight, form);
}

// As DeiT's code has them. Its soft loss is divided by the number of classes as well as by that of
// images; the paper's and timm's is not.
Value teacher_loss(const Recipe& recipe, Value logits, const LossInputs& in) {
  if (recipe.distillation == Distillation::kHard)
    return cross_entropy(logits, argmax(in.teacher), in.weight,
                         LossForm{.scale = static_cast<float>(recipe.alpha)});
  const auto tau = static_cast<float>(recipe.tau);
  const double scale = recipe.alpha * recipe.tau * recipe.tau / static_cast<double>(logits.dim(-1));
  return cross_entropy(
      logits, log_softmax(in.teacher, tau), in.weight,
      LossForm{.kind = LossKind::kDivergence, .tau = tau, .scale = static_cast<float>(scale)});
}

}  // namespace

Value training_loss(const Recipe& recipe, const TracedModel& student, const LossInputs& in) {
  if (!in.teacher) return task_loss(recipe, student.logits, in, 1);
  const bool two_heads = static_cast<bool>(student.dist);
  const Value cls = two_heads ? student.cls : student.logits,
              dist = two_heads ? student.dist : student.logits;
  const Value task = task_loss(recipe, cls, in, 1 - recipe.alpha);
  return task + teacher_loss(recipe, dist, in);
}

}  // namespace vitrum
