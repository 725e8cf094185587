#include "vitrum/infer/predict_all.h"

#include <algorithm>

#include "vitrum/core/parallel.h"
#include "vitrum/data/loader.h"

namespace vitrum {

void predict_all(Predictor& predictor, const Dataset& dataset, const PredictAllOptions& options,
                 const std::function<bool(const PredictedSample&)>& each) {
  LoaderConfig config;
  config.batch_size = std::min(predictor.max_batch(), std::max<int64_t>(dataset.size(), 1));
  config.threads = options.threads > 0 ? options.threads : available_cores();
  config.preprocess = preprocess_of(predictor.model());
  config.tolerant = options.tolerant;
  Loader loader(dataset, config);
  loader.start(0);

  const auto classes = static_cast<size_t>(predictor.classes()),
             width = static_cast<size_t>(predictor.dimension());
  std::vector<float> logits, features;
  std::vector<std::vector<float>> tapped(predictor.tap_shapes().size());
  for (Batch batch; loader.next(batch);) {
    const auto count = static_cast<size_t>(batch.count);
    const size_t bytes = batch.pixels().size() / batch.labels.size();
    logits.resize(count * classes), features.resize(count * width);
    std::vector<std::span<float>> to;
    for (size_t i = 0; i < tapped.size(); ++i) {
      tapped[i].resize(count * static_cast<size_t>(predictor.tap_shapes()[i].numel()));
      to.push_back(tapped[i]);
    }
    predictor.run(batch.pixels().first(count * bytes), logits, features, to);
    for (size_t i = 0; i < count; ++i) {
      PredictedSample sample{.index = batch.indices[i]};
      std::vector<std::span<const float>> taps;
      if (options.tolerant) sample.error = batch.errors[i];
      if (sample.error.empty()) {
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
