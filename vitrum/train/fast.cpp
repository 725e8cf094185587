#include "vitrum/train/fast.h"

#include <algorithm>

#include "vitrum/runtime/summary.h"
#include "vitrum/train/feature_cache.h"

namespace vitrum {
namespace {

constexpr double kBudget = 4e12;  // multiply-adds: what two cores do in a minute, a ViT-Ti training
constexpr int64_t kEpochs = 3, kBatch = 32, kFewest = 16;

double macs_per_image(const ModelSpec& model) {
  Graph g(Mode::kInference);
  trace(g, model, 1);
  return static_cast<double>(multiply_adds(g));
}

void shorten(Recipe& r, int64_t epochs) {
  if (epochs >= r.epochs) return;
  const double share = static_cast<double>(epochs) / static_cast<double>(r.epochs);
  r.warmup_epochs *= share;
  r.warmup_steps = static_cast<int64_t>(static_cast<double>(r.warmup_steps) * share);
  r.epochs = epochs;
}

}  // namespace

Recipe fast_recipe(Recipe r) {
  check_recipe(r);
  r.lr_scan.clear();
  const TrainData data(r);
  const ModelSpec model = model_for(r, data.train());
  const double macs = macs_per_image(model);
  const auto train = static_cast<double>(data.train().size()),
             test = static_cast<double>(data.test().size());
  const bool once = keeps_features(r, model, data);
  // Backward costs twice the forward pass; evaluation follows every epoch.
  const double epoch = once ? 0 : (3 * train + test) * macs;
  if ((once ? train + test : 0) * macs + static_cast<double>(r.epochs) * epoch <= kBudget) return r;
  if (!once) shorten(r, kEpochs);
  const double image = once ? 2 * macs : 4 * macs * static_cast<double>(r.epochs);
  r.subset = std::max(kFewest, static_cast<int64_t>(kBudget / image));
  if (static_cast<double>(r.subset) < train) r.batch_size = std::min(r.batch_size, kBatch);
  return r;
}

}  // namespace vitrum
