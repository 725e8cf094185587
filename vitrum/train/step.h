// One optimiser step: a backward program that adds into the gradients, and an update program that
// uses them up.
#pragma once
#include <cstdint>
#include <vector>

#include "vitrum/data/loader.h"
#include "vitrum/runtime/program.h"
#include "vitrum/infer/model_program.h"
#include "vitrum/train/recipe.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

struct TrainTotals {
  double loss = 0;  // the sum of the optimiser steps' mean losses
  int64_t correct = 0, images = 0;
};

class TrainStep {
 public:
  // Parameters start as the recipe's seed says.
  TrainStep(const ModelSpec& model, const Recipe& recipe, DType compute, Backend& backend);

  // Adds the gradient of one batch. `images` is how many the whole optimiser step sees,
  // `micro_step` how many batches came before in the run. Returns the batch's share of the step's
  // mean loss.
  double backward(const Batch& batch, int64_t images, int64_t micro_step);

  // Clips, moves the weights, averages them and clears the gradients; `step` counts from 0. Returns
  // the gradients' global norm before clipping.
  double update(double lr, int64_t step);

  TrainTotals totals();  // since clear_totals()
  void clear_totals();

  ParamStore& store() { return store_; }
  const Plan& plan() const { return backward_.plan(); }

 private:
  struct ForwardValues {
    Value image, logits, target, weight, loss, totals, rng;
  };
  struct UpdateValues {
    Value hyper, clip;
  };
  ForwardValues record(const ModelSpec& model, const Recipe& recipe);
  Program compile_backward(const Recipe& recipe, DType compute);
  UpdateValues record_update(const Recipe& recipe, DType compute);

  uint64_t seed_;
  double beta1_, beta2_, ema_;
  Graph forward_graph_{Mode::kTraining}, update_graph_;
  ForwardValues values_;
  ParamStore store_;
  Program backward_;
  UpdateValues hyper_;
  Program update_;
  std::vector<float> weights_;
};

}  // namespace vitrum
