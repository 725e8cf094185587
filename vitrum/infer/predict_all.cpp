#include "vitrum/infer/predict_all.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <limits>
#include <numeric>

#include "vitrum/core/parallel.h"
#include "vitrum/data/loader.h"
#include "vitrum/infer/engine.h"

namespace vitrum {
namespace {

// Why an image has no answer; throws where it is not the image's fault, or one is too many.
std::string describe_not_finite(const Predictor& predictor, const std::string& image,
                                const PredictAllOptions& options) {
  constexpr float kBad[] = {std::numeric_limits<float>::infinity()};
  if (!options.tolerant || !predictor.weights().not_finite().empty()) predictor.check_answer(kBad);
  return fmt::format("{}: the model answers with NaN or infinity", image);
}

// The images of a batch, those of one size after the other.
std::vector<size_t> by_size(const Batch& batch) {
  std::vector<size_t> order(static_cast<size_t>(batch.count));
  std::iota(order.begin(), order.end(), size_t{0});
  if (!batch.sizes.empty())
    std::ranges::stable_sort(order, {}, [&](size_t i) { return batch.sizes[i]; });
  return order;
}

void mirror_images(Batch& batch, size_t bytes, size_t width) {
  if (batch.sizes.empty()) return mirror_lines(batch.pixels(), width);
  for (size_t i = 0; i < batch.sizes.size(); ++i) {
    const auto lines = static_cast<size_t>(batch.sizes[i].width);
    if (lines == 0) continue;  // it could not be read
    const std::span<uint8_t> image = batch.pixels().subspan(i * bytes, bytes);
    mirror_lines(image.first(bytes / lines * lines), lines);
  }
}

}  // namespace

void predict_all(Predictor& predictor, const Dataset& dataset, const PredictAllOptions& options,
                 const std::function<bool(const PredictedSample&)>& each) {
  LoaderConfig config;
  config.threads = options.threads > 0 ? options.threads : available_cores();
  config.preprocess = predictor.input();
  // Of several batches' images there are more of one shape.
  const int64_t batches = config.preprocess.max_patches > 0 ? 4 : 1;
  config.batch_size =
      std::min(batches * predictor.max_batch(), std::max<int64_t>(dataset.size(), 1));
  config.tolerant = options.tolerant;
  Loader loader(dataset, config);
  loader.start(0);

  const auto classes = static_cast<size_t>(predictor.classes()),
             width = static_cast<size_t>(predictor.dimension());
  assert(options.tta == Tta::kNone || predictor.tap_shapes().empty());
  std::vector<float> logits, features, mirrored_logits, mirrored_features;
  std::vector<std::vector<float>> tapped(predictor.tap_shapes().size());
  for (Batch batch; loader.next(batch);) {
    const auto count = static_cast<size_t>(batch.count);
    const size_t bytes = batch.pixels().size() / batch.labels.size();
    logits.resize(count * classes), features.resize(count * width);
    for (size_t t = 0; t < tapped.size(); ++t)
      tapped[t].resize(count * static_cast<size_t>(predictor.tap_shapes()[t].numel()));
    const auto readable = [&](size_t i) { return !options.tolerant || batch.errors[i].empty(); };
    std::vector<size_t> rows(count);  // of the job, by image
    std::vector<float*> to_taps;
    to_taps.reserve(count * tapped.size());
    const std::vector<size_t> order = by_size(batch);
    const auto ask = [&](std::vector<float>& to_logits, std::vector<float>& to_features) {
      auto job = std::make_shared<Job>();
      for (const size_t i : order) {
        if (!readable(i)) continue;
        float** const first = to_taps.data() + to_taps.size();
        for (std::vector<float>& all : tapped)
          to_taps.push_back(all.data() + i * all.size() / count);
        job->rows.push_back({.pixels = batch.pixels().data() + i * bytes,
                             .logits = to_logits.data() + i * classes,
                             .features = to_features.data() + i * width,
                             .taps = {first, tapped.size()},
                             .size = batch.sizes.empty() ? InputSize{} : batch.sizes[i]});
        rows[i] = job->rows.size() - 1;
      }
      predictor.engine().run(job);
      if (job->error) std::rethrow_exception(job->error);
      return job;
    };
    const auto job = ask(logits, features);
    if (options.tta == Tta::kFlip) {
      mirror_images(batch, bytes, static_cast<size_t>(config.preprocess.width));
      mirrored_logits.resize(logits.size()), mirrored_features.resize(features.size());
      const auto mirrored = ask(mirrored_logits, mirrored_features);
      for (size_t i = 0; i < job->rows.size(); ++i)
        job->rows[i].finite = job->rows[i].finite && mirrored->rows[i].finite;
      take_mean(logits, mirrored_logits), take_mean(features, mirrored_features);
    }
    for (size_t i = 0; i < count; ++i) {
      PredictedSample sample{.index = batch.indices[i]};
      std::vector<std::span<const float>> taps;
      std::string not_finite;
      if (!readable(i)) {
        sample.error = batch.errors[i];
      } else if (!job->rows[rows[i]].finite) {
        not_finite = describe_not_finite(predictor, dataset.name(batch.indices[i]), options);
        sample.error = not_finite;
      } else {
        sample.logits = std::span(logits).subspan(i * classes, classes);
        sample.features = std::span(features).subspan(i * width, width);
        for (const std::vector<float>& all : tapped)
          taps.push_back(std::span(all).subspan(i * (all.size() / count), all.size() / count));
        sample.taps = taps;
      }
      if (!each(sample)) return;
    }
  }
}

}  // namespace vitrum
