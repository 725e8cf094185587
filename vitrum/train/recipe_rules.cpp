// What depends on more than one key of a recipe: which of them want or exclude each other.
#include <algorithm>
#include <bit>

#include "vitrum/core/error.h"
#include "vitrum/data/augment.h"
#include "vitrum/train/recipe.h"

namespace vitrum {
namespace {

const Recipe kDefault;

// A key that says something about a teacher; null where there is none.
const char* needs_teacher(const Recipe& r) {
  if (r.teacher_arch) return "teacher_arch";
  if (r.teacher_logits) return "teacher_logits";
  if (r.distillation != kDefault.distillation) return "distillation";
  if (r.alpha != kDefault.alpha) return "alpha";
  return r.tau != kDefault.tau ? "tau" : nullptr;
}

// A key that needs labels; null where there is none.
const char* needs_labels(const Recipe& r) {
  if (r.teacher) return "teacher";
  if (r.num_classes) return "num_classes";
  if (r.head_only) return "head_only";
  if (r.head_init != kDefault.head_init) return "head_init";
  if (r.head_bias) return "head_bias";
  if (!r.lr_scan.empty()) return "lr_scan";
  if (r.label_smoothing != 0) return "label_smoothing";
  if (r.mixup != 0) return "mixup";
  if (r.cutmix != 0) return "cutmix";
  if (r.eval_tta != kDefault.eval_tta) return "eval_tta";
  return r.loss != kDefault.loss ? "loss" : nullptr;
}

// A key of a masked autoencoder.
const char* needs_masks(const Recipe& r) {
  if (r.mask_ratio != kDefault.mask_ratio) return "mask_ratio";
  if (r.norm_pix != kDefault.norm_pix) return "norm_pix";
  if (r.decoder_width) return "decoder_width";
  if (r.decoder_depth) return "decoder_depth";
  return r.decoder_heads ? "decoder_heads" : nullptr;
}

void check_task(const Recipe& r) {
  if (r.task == Task::kClassify) {
    if (const char* key = needs_masks(r))
      fail_usage("{} is for task = \"mae\" (`vitrum pretrain`); leave it out", key);
    return;
  }
  if (const char* key = needs_labels(r))
    fail_usage("{} is for learning with labels; leave it out of a pretraining", key);
  if (r.lora > 0)
    fail_usage(
        "lora trains adapters of a model that is there; a pretraining makes one, leave it out");
  if (r.patch_drop.value_or(0) > 0)
    fail_usage("patch_drop: a pretraining leaves out mask_ratio of the patches already");
}

}  // namespace

void forget_teacher(Recipe& r) {
  r.teacher.reset(), r.teacher_arch.reset(), r.teacher_logits.reset();
  r.distillation = kDefault.distillation, r.alpha = kDefault.alpha, r.tau = kDefault.tau;
}

void check_recipe(const Recipe& r) {
  if (r.model.empty() && r.weights.empty())
    fail_usage("no model: give --model NAME, or a recipe that names one");
  check_task(r);
  if (r.data.empty()) fail_usage("no data: give --data DATA, or a recipe that names it");
  if (r.betas && r.betas->size() != 2) fail_usage("betas: expected two numbers, as [0.9, 0.999]");
  if (r.mean && r.std && r.mean->size() != r.std->size())
    fail_usage("mean has {} numbers and std {}; expected as many of both", r.mean->size(),
               r.std->size());
  if (r.augment) parse_augment(*r.augment);
  if (!std::has_single_bit(static_cast<uint64_t>(r.slices)))
    fail_usage("slices: {}; expected a power of two", r.slices);
  if (r.batch_size % r.slices != 0)
    fail_usage("batch_size {} cannot be cut into {} equal slices", r.batch_size, r.slices);
  const Hyper hyper = r.hyper();
  if (hyper.nesterov && hyper.momentum == 0)
    fail_usage("nesterov needs a momentum; set momentum, or nesterov = false");
  if (r.adamw_lr && r.optimizer != OptimizerKind::kMuon)
    fail_usage("adamw_lr is for optimizer = \"muon\"; other optimisers have one rate, lr");
  if (r.adamw_lr && r.lr == 0)
    fail_usage("lr is 0, and adamw_lr {} follows its schedule; give both a rate", *r.adamw_lr);
  if (!r.zero_init.empty() && !r.weights.empty())
    fail_usage("zero_init is for models from scratch; leave it out, or the weights");
  if (r.lora > 0 && r.head_only)
    fail_usage("lora trains adapters below the head, head_only nothing there; leave one out");
  if (r.lora > 0 && r.lora_targets.empty())
    fail_usage("lora_targets is empty; name layers to adapt, as [\"qkv\", \"proj\"]");
  if (const char* key = needs_teacher(r); key && !r.teacher)
    fail_usage("{} is given and no teacher; name one, or say `--set teacher=` to do without", key);
  if (r.min_lr > r.lr && r.lr_scan.empty()) fail_usage("min_lr {} is above lr {}", r.min_lr, r.lr);
  for (auto x = r.lr_scan.begin(); x != r.lr_scan.end(); ++x)
    if (std::find(r.lr_scan.begin(), x, *x) != x) fail_usage("lr_scan: {} is there twice", *x);
}

}  // namespace vitrum
