#include "vitrum/train/fast_recipe.h"

#include <algorithm>
#include <string_view>

#include "vitrum/runtime/summary.h"
#include "vitrum/train/feature_cache.h"

namespace vitrum {
namespace {

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

Recipe fast_recipe(Recipe r, const std::vector<std::string>& given, double budget) {
  const auto free = [&](std::string_view key) {
    return std::ranges::find(given, key) == given.end();
  };
  check_recipe(r);
  if (free("lr_scan")) r.lr_scan.clear();
  Recipe plain = r;
  plain.on_bad_image = OnBadImage::kStop;  // an estimate: a few images do not matter
  const TrainData data(plain);
  const ModelSpec model = model_for(r, data.train());
  const double macs = macs_per_image(model);
  const auto train = static_cast<double>(data.train().size()),
             test = static_cast<double>(data.test().size());
  const bool once = keeps_features(r, model, data);
  // Backward costs twice the forward pass; evaluation follows every epoch.
  const double epoch = once ? 0 : (3 * train + test) * macs;
  if ((once ? train + test : 0) * macs + static_cast<double>(r.epochs) * epoch <= budget) return r;
  const Recipe whole = r;
  if (!once && free("epochs")) shorten(r, kEpochs);
  if (!free("warmup_epochs")) r.warmup_epochs = whole.warmup_epochs;
  if (!free("warmup_steps")) r.warmup_steps = whole.warmup_steps;
  const double image = once ? 2 * macs : 4 * macs * static_cast<double>(r.epochs);
  const int64_t images = std::max(kFewest, static_cast<int64_t>(budget / image));
  const bool cut = static_cast<double>(images) < train;
  if (free("subset")) r.subset = r.subset > 0 ? std::min(r.subset, images) : images;
  if (cut && free("batch_size")) r.batch_size = std::min(r.batch_size, kBatch);
  return r;
}

}  // namespace vitrum
