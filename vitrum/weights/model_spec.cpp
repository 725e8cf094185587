#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "vitrum/core/error.h"
#include "vitrum/weights/model_config.h"

namespace vitrum {

ModelConfig stored_config(const ModelSpec& spec) {
  ModelConfig config = spec.config;
  if (spec.stored != StoredSize{}) config.set_image_size(spec.stored.height, spec.stored.width);
  if (ViTConfig* vit = config.as<ViTConfig>(); vit && spec.stored_patch != StoredSize{})
    vit->patch_h = spec.stored_patch.height, vit->patch_w = spec.stored_patch.width;
  return config;
}

void set_image_size(ModelSpec& spec, int64_t height, int64_t width) {
  Preprocessing& p = spec.preprocess;
  p.max_patches = 0;
  if (p.resize > 0) p.resize = (p.resize * std::max(height, width) + p.height - 1) / p.height;
  spec.config.set_image_size(height, width);
  p.height = height, p.width = width;
  check_size(spec.config, spec.architecture);
}

void set_max_patches(ModelSpec& spec, int64_t patches) {
  const ViTConfig* vit = spec.config.as<ViTConfig>();
  if (!vit || vit->position_grid == 0)
    fail_usage(
        "{}: its positions are those of one image size; only models like SigLIP 2's NaFlex take "
        "images of any shape",
        spec.architecture);
  if (patches < 1)
    fail_usage("{}: images of {} patches are not possible", spec.architecture, patches);
  const auto side = static_cast<int64_t>(std::sqrt(static_cast<double>(patches)));
  set_image_size(spec, side * vit->patch_h, side * vit->patch_w);
  // Nothing is cut off: images that are not square are squashed where all are of one size.
  spec.preprocess.max_patches = patches, spec.preprocess.resize = 0;
  spec.preprocess.crop_mode = "squash", spec.preprocess.crop_pct = 1;
}

void set_patch_size(ModelSpec& spec, int64_t size) {
  ViTConfig* vit = spec.config.as<ViTConfig>();
  if (!vit)
    fail_usage("{}: only ViTs take patches of another size; this is a {}", spec.architecture,
               family_of(spec.config));
  if (spec.stored_patch == StoredSize{}) spec.stored_patch = {vit->patch_h, vit->patch_w};
  vit->patch_h = vit->patch_w = size;
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
