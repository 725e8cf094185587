// A model on disk: a directory with config.json and model.safetensors, in timm's layout. What timm
// has a name for, timm loads unchanged (`local-dir:`); what it cannot express is kept in an object
// of our own beside its keys.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "vitrum/models/vit.h"
#include "vitrum/runtime/params.h"

namespace vitrum {

// How an image file becomes what the model sees; mean and std are of pixels in [0, 1], empty where
// pixels are used as they are.
struct Preprocessing {
  int64_t height = 224, width = 224;
  std::string interpolation = "bicubic";  // "nearest", "bilinear", ...
  double crop_pct = 1;                    // in (0, 1]: the crop's share of the resized image
  std::string crop_mode = "center";       // "center" keeps the aspect ratio, "squash" does not
  // The shorter edge ("squash": both edges) before the crop, in pixels, where a framework states it
  // so; 0: floor(size / crop_pct). crop_pct says the same as a share.
  int64_t resize = 0;
  bool crop_floor = false;  // the crop's corner is rounded down (transformers), not to even
  std::vector<float> mean, std;
  bool operator==(const Preprocessing&) const = default;
};

struct ModelSpec {
  std::string architecture;  // the preset or timm name it started from
  ViTConfig config;
  Preprocessing preprocess;
  std::vector<std::string> labels;  // one a class, or none
  bool fixed_classes = false;       // the number of classes is part of the model (vit_mnist: 100)
  bool operator==(const ModelSpec&) const = default;
};

// MODEL of the command line: a preset's name or alias, or a model directory. A directory's shapes
// come from its own config.json. Throws what names the file and key, or offers the nearest preset.
ModelSpec resolve_model(const std::string& model);
bool is_model_dir(const std::string& model);

// Another input size or number of classes; labels that no longer fit are dropped.
void set_image_size(ModelSpec& spec, int64_t height, int64_t width);
void set_classes(ModelSpec& spec, int64_t classes);

// Weights first, config.json last, each atomic: a directory with both is a complete pair or the
// previous one's weights were replaced by newer ones of the same model. `which` is kMaster or kEma.
void save_model_dir(const std::filesystem::path& dir, const ModelSpec& spec, ParamStore& store,
                    Arena which = Arena::kMaster);

// Fills every parameter exactly once from `dir`/model.safetensors (f32, bf16 or f16), or fails with
// all differences.
void load_weights(const std::filesystem::path& dir, const ModelSpec& spec, ParamStore& store);

}  // namespace vitrum
