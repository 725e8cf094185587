#include "vitrum/train/evaluator.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "vitrum/core/error.h"
#include "vitrum/graph/functional.h"

namespace vitrum {

TracedModel trace(Graph& g, const ModelSpec& model, int64_t batch) {
  const ViTConfig& c = model.config;
  const Value image = g.input("image", {batch, c.channels, c.image_h, c.image_w}, DType::kU8);
  const Value x = normalize(image, model.preprocess.mean, model.preprocess.std);
  return {image, vit(Scope(g), x, c)};
}

Preprocess preprocess_of(const ModelSpec& model) {
  const Preprocessing& p = model.preprocess;
  return {.channels = static_cast<int>(model.config.channels),
          .height = static_cast<int>(model.config.image_h),
          .width = static_cast<int>(model.config.image_w),
          .interpolation = parse_filter(p.interpolation),
          .crop_pct = p.crop_pct,
          .crop_mode = p.crop_mode == "squash" ? CropMode::kSquash : CropMode::kCenter,
          .resize = static_cast<int>(p.resize),
          .crop_floor = p.crop_floor};
}

namespace {

double log_sum_exp(std::span<const float> x) {
  const double top = static_cast<double>(*std::max_element(x.begin(), x.end()));
  double sum = 0;
  for (const float v : x) sum += std::exp(static_cast<double>(v) - top);
  return top + std::log(sum);
}

// How many classes are preferred to `label`. A NaN, its own or another's, counts against it.
int64_t rank_of(std::span<const float> logits, size_t label) {
  const float own = logits[label];
  int64_t rank = 0;
  for (size_t k = 0; k < logits.size(); ++k)
    rank += k != label && (!(logits[k] <= own) || (logits[k] == own && k < label));
  return rank;
}

TracedModel require_head(TracedModel model, const ModelSpec& spec) {
  if (spec.config.classes == 0) fail_usage("{} has no head to evaluate", spec.architecture);
  return model;
}

Program compile(Graph& g, const TracedModel& model, ParamStore& store, DType compute,
                Arena weights) {
  fuse(g);
  const DType dtype = weights == Arena::kEma ? DType::kF32 : compute;
  return Program(g, std::span(&model.logits, 1), store, {.compute = dtype, .weights = weights});
}

}  // namespace

void EvaluationTotals::grow(size_t classes) {
  if (classes <= confusion_.size()) return;
  confusion_.resize(classes);
  for (auto& row : confusion_) row.resize(classes);
}

void EvaluationTotals::add(std::span<const float> logits, int64_t label) {
  const auto truth = static_cast<size_t>(label);
  const int64_t rank = rank_of(logits, truth);
  const auto guess =
      static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  grow(std::max(truth, guess) + 1);
  ++confusion_[truth][guess];
  ++images_, top1_ += rank < 1, top5_ += rank < 5;
  loss_ += log_sum_exp(logits) - static_cast<double>(logits[truth]);
}

Evaluation EvaluationTotals::result() const {
  const auto images = static_cast<double>(images_);
  Evaluation e{.images = images_,
               .top1 = static_cast<double>(top1_) / images,
               .top5 = static_cast<double>(top5_) / images,
               .loss = loss_ / images,
               .per_class = {},
               .confusion = confusion_};
  for (size_t k = 0; k < e.confusion.size(); ++k) {
    int64_t total = 0;
    for (const int64_t n : e.confusion[k]) total += n;
    e.per_class.push_back(total
                              ? static_cast<double>(e.confusion[k][k]) / static_cast<double>(total)
                              : std::numeric_limits<double>::quiet_NaN());
  }
  return e;
}

Evaluator::Evaluator(const ModelSpec& model, ParamStore& store, int64_t batch, DType compute,
                     Arena weights)
    : batch_(batch),
      model_(require_head(trace(graph_, model, batch), model)),
      program_(compile(graph_, model_, store, compute, weights)),
      logits_(static_cast<size_t>(batch * model.config.classes)) {}

Evaluation Evaluator::run(Loader& loader, int64_t classes, const KeepGoing& keep_going) {
  const size_t outputs = logits_.size() / static_cast<size_t>(batch_);
  EvaluationTotals totals(classes);
  Batch batch;
  loader.start(0);
  for (int64_t done = 0; (!keep_going || keep_going(done)) && loader.next(batch); ++done) {
    program_.upload(model_.image, batch.pixels().data());
    program_.run();
    program_.download(logits_.data(), model_.logits);
    for (size_t i = 0; i < static_cast<size_t>(batch.count); ++i)
      totals.add(std::span(logits_).subspan(i * outputs, outputs), batch.labels[i]);
  }
  return totals.result();
}

}  // namespace vitrum
