// A recipe: every choice that makes a run what it is. Read from TOML, changed by --set, written
// back as config.toml.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/data/erase.h"
#include "vitrum/graph/op.h"
#include "vitrum/graph/passes.h"
#include "vitrum/train/schedule.h"

namespace vitrum {

enum class Precision : uint8_t { kAuto, kF32, kBF16 };
enum class OnDevice : uint8_t { kAuto, kOn, kOff };
enum class OnBadImage : uint8_t { kStop, kSkip };
enum class ResizeMode : uint8_t { kSquash, kCenter };
// What a run learns: classes, or the pixels that a masked autoencoder does not see.
enum class Task : uint8_t { kClassify, kMae };
enum class TaskLoss : uint8_t { kCrossEntropy, kBce };
enum class Distillation : uint8_t { kHard, kSoft };
// How large Muon's steps are for a matrix (rows, columns): sqrt(max(1, rows / columns)), or 0.2
// sqrt(max(rows, columns)), with which AdamW's rate and decay fit.
enum class MuonScale : uint8_t { kOriginal, kMatchRmsAdamW };
enum class HeadInit : uint8_t;     // weights/model_dir.h
enum class PosResample : uint8_t;  // the same
enum class Tta : uint8_t;          // infer/tta.h

// Parameters whose names match learn at `factor` times the run's rate.
struct LrScale {
  std::string pattern;
  double factor = 1;
  bool operator==(const LrScale&) const = default;
};

// The optimiser's numbers, its own defaults filled in.
struct Hyper {
  double beta1, beta2, momentum, eps, decay, clip_norm;
  bool nesterov;
};

// Members are named as their keys. What is not set is left to the model (dropout, mean, resize,
// ...) or to the data (num_classes).
struct Recipe {
  std::string model, data;
  std::string weights;  // model directory or weight file to start from; "": from scratch
  Task task = Task::kClassify;
  std::optional<int64_t> num_classes, image_size, patch_size;
  std::optional<std::string> pool;  // what the head reads: "token", "mean" or "token_and_mean"
  std::optional<bool> head_bias;
  HeadInit head_init{};                // kKeep
  PosResample pos_resample{};          // kAuto
  std::vector<std::string> zero_init;  // patterns of parameters that start as zero
  std::optional<double> dropout, drop_path, patch_drop;

  int64_t epochs = 10;
  int64_t max_steps = 0;  // optimiser steps; 0: as many as the epochs have
  int64_t batch_size = 128;
  int64_t accumulate = 1;  // batches in one optimiser step
  // Equal parts of a batch, whose gradients are computed one by one and added in the order of a
  // binary tree: as many processes can share the work without changing a bit of the result. 1: the
  // batch is computed as one.
  int64_t slices = 1;
  std::optional<int64_t> eval_batch_size;
  double holdout = 0;  // fraction of the training images to evaluate on instead of the test images
  int64_t subset = 0;  // at most so many training and test images; 0: all
  // An image that cannot be read ends the run, or all such are left out before it begins.
  OnBadImage on_bad_image = OnBadImage::kStop;
  int64_t patience = 0;  // epochs without a better test accuracy before the run ends; 0: no limit
  int64_t seed = 0;

  OptimizerKind optimizer = OptimizerKind::kAdamW;
  double lr = 1e-3;
  std::optional<double> weight_decay;
  std::optional<double> momentum;  // of SGD and Muon
  std::optional<bool> nesterov;    // likewise
  std::optional<std::vector<double>> betas;
  std::optional<double> eps;
  std::optional<double> adamw_lr;  // Muon: of everything but the matrices in the blocks
  MuonScale muon_scale = MuonScale::kOriginal;
  double sam = 0;                   // how far sharpness-aware minimisation looks; 0: not at all
  bool no_decay = true;             // biases, norms, tokens and positions do not decay
  std::optional<double> clip_norm;  // 0: no clipping
  std::vector<std::string> freeze;  // patterns of parameter names: see param_rules.h
  bool head_only = false;           // everything before the head is frozen, and does not drop
  std::vector<LrScale> lr_scale;
  double layer_decay = 1;       // the rate's factor from one layer to the one below it
  std::vector<double> lr_scan;  // rates to try on a hold-out before the run: see lr_scan.h
  int64_t lr_scan_epochs = 1;
  double label_smoothing = 0;
  double ema = 0;  // decay of the averaged weights; 0: none are kept

  TaskLoss loss = TaskLoss::kCrossEntropy;
  std::optional<std::string> teacher;         // a model directory or weight file; none: no teacher
  std::optional<std::string> teacher_arch;    // the preset that a weight file is of
  std::optional<std::string> teacher_logits;  // file of the teacher's logits; written where missing
  Distillation distillation = Distillation::kHard;
  double alpha = 0.5;  // the teacher's share of the loss
  double tau = 1;      // temperature of soft distillation

  ScheduleKind schedule = ScheduleKind::kCosine;
  ScheduleUnit schedule_unit = ScheduleUnit::kStep;
  double warmup_epochs = 0;
  int64_t warmup_steps = 0;  // added to warmup_epochs
  double min_lr = 0;

  std::optional<std::string> augment;   // "crop-flip+rand-m9-mstd0.5-inc1": see data/augment.h
  std::optional<int64_t> crop_padding;  // pixels
  std::optional<std::vector<double>> scale, ratio;  // of a resized crop: area, width / height
  std::optional<std::string> train_interpolation;   // of crop and policy; "random": by turns
  std::vector<double> color_jitter;  // one for all, or brightness, contrast, saturation (, hue)
  double erase = 0;                  // probability
  EraseMode erase_mode = EraseMode::kPixel;
  std::optional<std::vector<double>> erase_area;  // of the image, from and to
  int64_t repeat = 1;                             // augmentations of an image next to each other
  double mixup = 0, cutmix = 0;                   // alphas; 0: not done
  double mix_prob = 1, mix_switch_prob = 0.5;     // that a batch is mixed; that it is CutMix
  // Last part of the epochs, with no more than crop and flip, and without patch_drop.
  double augment_off = 0;
  std::optional<std::vector<double>> mean, std;  // of pixels in [0, 1]; empty: pixels as they are
  std::optional<ResizeMode> resize;
  std::optional<double> crop_pct;
  std::optional<std::string> interpolation;

  Precision precision = Precision::kAuto;
  Recompute recompute = Recompute::kNone;
  int64_t checkpoint_every = 0;  // optimiser steps; 0: at each epoch's end only
  int64_t save_every = 1;        // epochs; the best and the last one are saved anyway
  int64_t eval_every = 1;        // epochs
  Tta eval_tta{};                // kNone
  int64_t workers = 0;           // threads that prepare images; 0: as the data needs
  // Whether images are kept in the device's memory and augmented there. kAuto: where the host does
  // not see that memory, and it can be done.
  OnDevice data_on_device = OnDevice::kAuto;

  int64_t lora = 0;                  // rank of the adapters; 0: every parameter is trained itself
  std::optional<double> lora_alpha;  // as `lora`: the adapter's output counts once
  std::vector<std::string> lora_targets = {"qkv", "proj"};
  double lora_dropout = 0;

  // Of a masked autoencoder; a decoder that is not given is usual_decoder()'s.
  double mask_ratio = 0.75;
  bool norm_pix = true;
  std::optional<int64_t> decoder_width, decoder_depth, decoder_heads;

  int64_t slice_size() const { return batch_size / slices; }
  int64_t leaves() const { return accumulate * slices; }  // slices in one optimiser step
  // 0.05 where decay does not touch the gradient, nothing for SGD and Adam.
  double decay() const;
  Hyper hyper() const;
  bool operator==(const Recipe&) const = default;
};

// `where` is what messages name: a file, or the option a value came from. An unknown key, a wrong
// type or a value out of range is a usage error.
void load_recipe(Recipe& recipe, const std::string& path);
void set_key(Recipe& recipe, const std::string& key, const std::string& value,
             const std::string& where);
void set_assignment(Recipe& recipe, const std::string& assignment);  // "key=value", of --set

std::vector<std::string> recipe_keys();
// The key that this word is, here (with - for _ too) or in another framework; "": none.
std::string find_key(const std::string& word);

// Once everything is merged: what depends on more than one key.
void check_recipe(const Recipe& recipe);

// What `--set teacher=` asks for: nothing of the recipe speaks of one any more.
void forget_teacher(Recipe& recipe);

std::string to_toml(const Recipe& recipe);  // load_recipe() reads the same recipe back
std::vector<std::string> changed_keys(const Recipe& before, const Recipe& after);

Schedule schedule_of(const Recipe& recipe, int64_t steps_per_epoch);

}  // namespace vitrum
