#include "vitrum/cli/size_options.h"

namespace vitrum {

Option image_size_option(std::optional<InputSize>& target) {
  return {.name = "--image-size",
          .target = &target,
          .help =
              "another input size in pixels: positions are resampled as the model's framework "
              "does",
          .min = 1,
          .max = 1 << 14};
}

Option patch_size_option(std::optional<int64_t>& target) {
  return {.name = "--patch-size",
          .target = &target,
          .help = "patches of another size, of a ViT: their weights are resized as FlexiViT's are",
          .min = 1,
          .max = 1 << 10};
}

std::vector<Option> size_options(SizeOptions& options) {
  return {image_size_option(options.image_size),
          patch_size_option(options.patch_size),
          {.name = "--num-classes",
           .target = &options.num_classes,
           .help = "another number of classes: the head is new; 0: features",
           .max = 10'000'000}};
}

ModelSpec resolve_sized(const std::string& model, const SizeOptions& options,
                        const std::string& arch) {
  ModelSpec spec = resolve_model(model, arch);
  if (options.image_size)
    set_image_size(spec, options.image_size->height, options.image_size->width);
  if (options.patch_size) set_patch_size(spec, *options.patch_size);
  if (options.num_classes) set_classes(spec, *options.num_classes);
  validate(spec.config);
  return spec;
}

}  // namespace vitrum
