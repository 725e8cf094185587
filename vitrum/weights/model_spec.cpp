#include <algorithm>
#include <numeric>
#include <vector>

#include "vitrum/weights/model_config.h"

namespace vitrum {

ModelConfig stored_config(const ModelSpec& spec) {
  ModelConfig config = spec.config;
  if (spec.stored != StoredSize{}) config.set_image_size(spec.stored.height, spec.stored.width);
  return config;
}

void set_image_size(ModelSpec& spec, int64_t height, int64_t width) {
  Preprocessing& p = spec.preprocess;
  if (p.resize > 0) p.resize = (p.resize * std::max(height, width) + p.height - 1) / p.height;
  spec.config.set_image_size(height, width);
  p.height = height, p.width = width;
  check_size(spec.config, spec.architecture);
}

void set_channels(ModelSpec& spec, int64_t channels) {
  if (channels == spec.config.channels()) return;
  spec.config.set_channels(channels);
  for (std::vector<float>* list : {&spec.preprocess.mean, &spec.preprocess.std}) {
    if (list->empty()) continue;
    const std::vector<float> old = *list;
    const float sum = std::accumulate(old.begin(), old.end(), 0.f);
    list->assign(static_cast<size_t>(channels), sum / static_cast<float>(old.size()));
    if (channels > 1)
      for (size_t i = 0; i < list->size(); ++i) (*list)[i] = old[i % old.size()];
  }
}

void set_classes(ModelSpec& spec, int64_t classes) {
  if (classes != spec.config.classes()) spec.labels.clear(), spec.class_ids.clear();
  spec.config.set_classes(classes);
}

}  // namespace vitrum
