// Choosing the learning rate: one short run a candidate on a hold-out split, then the run itself,
// on all images, with the best. Each short run starts from the same weights and seed.
#pragma once
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "vitrum/train/trainer.h"

namespace vitrum {

struct ScanRow {
  double lr = 0;
  double accuracy = 0;                                    // on the hold-out, after the last epoch
  double loss = std::numeric_limits<double>::infinity();  // infinite: the run diverged
  bool operator==(const ScanRow&) const = default;
};

struct ScanHooks {
  std::function<void(const Trainer&)> start;   // before the run of a candidate
  std::function<void(const ScanRow&)> result;  // of every candidate, known ones included
  TrainHooks train;                            // for those runs
};

// What the run for one candidate is.
Recipe scan_recipe(Recipe recipe, double lr);

// Works through recipe.lr_scan in the run directory, which it makes where options.resume is not
// set, and writes lr_scan.csv there. A scan that was stopped goes on where it was. Afterwards
// recipe.lr is the winner's and `options` are such that a Trainer starts (or resumes) the run
// itself. Returns the signal that stopped it, or 0.
int scan_learning_rates(Recipe& recipe, RunOptions& options, const ScanHooks& hooks = {});

// Rows of `run`/lr_scan.csv; none where there is no such file.
std::vector<ScanRow> load_scan(const std::string& run);
const ScanRow& best_of(const std::vector<ScanRow>& rows);  // fails where every run diverged

}  // namespace vitrum
