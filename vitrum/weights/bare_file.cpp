// What a weight file without a config is, by the framework that wrote it.
#include "vitrum/weights/checkpoint.h"
#include "vitrum/weights/imagenet.h"

namespace vitrum {
namespace {

const std::vector<float> kImageNetMean = {0.485f, 0.456f, 0.406f},
                         kImageNetStd = {0.229f, 0.224f, 0.225f};

void squash_bilinear(Preprocessing& p) {  // google/vit, in JAX and in transformers
  p.interpolation = "bilinear", p.crop_mode = "squash";
}

void center_crop(Preprocessing& p, const char* interpolation, int64_t resize) {
  p.interpolation = interpolation, p.crop_mode = "center", p.resize = resize;
  p.crop_pct = static_cast<double>(p.height) / static_cast<double>(resize);
}

// torchvision's IMAGENET1K_V1 files are of 224 pixels (and none is a ViT-H); others are SWAG's,
// fine-tuned at a larger size.
void torchvision_transforms(const ViTConfig& c, Preprocessing& p) {
  constexpr int64_t kSize = 224, kResize = 256, kResizeL16 = 242;
  const bool swag = p.height != kSize || c.depth > 24;
  const bool large16 = c.depth == 24 && c.patch_h == 16;
  if (swag)
    center_crop(p, "bicubic", p.height);
  else
    center_crop(p, "bilinear", large16 ? kResizeL16 : kResize);
  if (c.channels == 3) p.mean = kImageNetMean, p.std = kImageNetStd;
}

// transformers' DeiTs; 438 for 384 pixels.
void deit_transforms(Preprocessing& p) {
  p.interpolation = "bicubic", p.crop_mode = "squash", p.crop_floor = true;
  p.resize = p.height * 256 / 224;
  p.crop_pct = static_cast<double>(p.height) / static_cast<double>(p.resize);
}

void as_published(const Dialect& dialect, ViTConfig& c, Preprocessing& p) {
  if (c.init == InitStyle::kTimm)  // our own models state theirs
    c.eps = dialect.eps, c.act = dialect.act;
  if (dialect.name == "torchvision")
    torchvision_transforms(c, p);
  else if (dialect.name == "hf" && p.mean == kImageNetMean)
    deit_transforms(p);
  else if (dialect.name == "hf" || dialect.name == "npz")
    squash_bilinear(p);
  else if (c.image_h == 224)  // timm's ViTs; those of 384 pixels are not cropped
    p.crop_pct = 0.9;
}

// torchvision resizes its Swin-T, -S and -B to 232, 246 and 238 pixels.
void as_published(const Dialect& dialect, SwinConfig& c, Preprocessing& p) {
  c.eps = dialect.eps, c.act = dialect.act;
  c.pad_first = dialect.name == "torchvision" || dialect.name == "hf";
  const bool usual = c.image_h == 224 && c.image_w == 224;
  if (dialect.name == "hf")
    p.crop_mode = "squash";
  else if (dialect.name == "torchvision" && usual)
    center_crop(p, "bicubic", c.width > 96 ? 238 : c.depths[c.depths.size() / 2] > 6 ? 246 : 232);
  else if (usual)
    p.crop_pct = 0.9;
}

// torchvision's files, whose names timm's share.
void as_published(const Dialect&, ResNetConfig& c, Preprocessing& p) {
  if (c.image_h == 224) center_crop(p, "bilinear", 256);
}

// Published files of as many classes are ImageNet-1k's. Where the number is part of the model it
// says nothing about the data.
void name_classes(ModelSpec& spec) {
  constexpr int64_t kImageNetClasses = 1000;
  if (spec.config.classes() != kImageNetClasses || spec.fixed_classes) return;
  ClassNames names = imagenet_classes();
  spec.labels = std::move(names.labels), spec.class_ids = std::move(names.ids);
}

}  // namespace

ModelSpec bare_file_spec(ModelSpec spec, const Checkpoint& file) {
  const Dialect& dialect = file.dialect();
  const ModelConfig sizes = file.stored_sizes(spec.config);
  set_channels(spec, sizes.channels());
  set_image_size(spec, sizes.image_h(), sizes.image_w());
  set_classes(spec, sizes.classes());
  spec.config = sizes;
  spec.preprocess.assumed = true;
  spec.config.visit([&](auto& c) { as_published(dialect, c, spec.preprocess); });
  name_classes(spec);
  return spec;
}

}  // namespace vitrum
