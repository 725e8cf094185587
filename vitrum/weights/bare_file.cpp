// What a weight file without a config is, by the framework that wrote it.
#include "vitrum/weights/checkpoint.h"
#include "vitrum/weights/family.h"
#include "vitrum/weights/imagenet.h"

namespace vitrum {

void center_crop(Preprocessing& p, const char* interpolation, int64_t resize) {
  p.interpolation = interpolation, p.crop_mode = "center", p.resize = resize;
  p.crop_pct = static_cast<double>(p.height) / static_cast<double>(resize);
}

// Published files of as many classes are ImageNet-1k's. Where the number is part of the model it
// says nothing about the data.
static void name_classes(ModelSpec& spec) {
  constexpr int64_t kImageNetClasses = 1000;
  if (spec.config.classes() != kImageNetClasses || spec.fixed_classes) return;
  ClassNames names = imagenet_classes();
  spec.labels = std::move(names.labels), spec.class_ids = std::move(names.ids);
}

ModelSpec bare_file_spec(ModelSpec spec, const Checkpoint& file) {
  const Dialect& dialect = file.dialect();
  const ModelConfig sizes = file.stored_sizes(spec.config);
  set_channels(spec, sizes.channels());
  set_image_size(spec, sizes.image_h(), sizes.image_w());
  set_classes(spec, sizes.classes());
  spec.config = sizes;
  spec.preprocess.assumed = true;
  weights_of(spec.config).as_published(dialect, spec);
  name_classes(spec);
  return spec;
}

}  // namespace vitrum
