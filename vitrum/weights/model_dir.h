// A model on disk. What we write is a directory with config.json and model.safetensors in timm's
// layout: what timm has a name for, timm loads unchanged (`local-dir:`); what it cannot express is
// kept in an object of our own beside its keys. We read other frameworks' layouts as well.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "vitrum/models/model.h"
#include "vitrum/runtime/params.h"

namespace vitrum {

// How an image file becomes what the model sees; mean and std are of pixels in [0, 1], empty where
// pixels are used as they are.
struct Preprocessing {
  int64_t height = 224, width = 224;
  std::string interpolation = "bicubic";  // "nearest", "bilinear", ...
  double crop_pct = 1;                    // in (0, 1]: the crop's share of the resized image
  std::string crop_mode = "center";       // "center" and "border" keep the aspect ratio
  // The shorter edge ("squash": both edges) before the crop, in pixels, where a framework states it
  // so; 0: floor(size / crop_pct). crop_pct says the same as a share.
  int64_t resize = 0;
  bool crop_floor = false;  // the crop's corner is rounded down (transformers), not to even
  bool assumed = false;     // no file states it: what the framework has by default
  // Images keep their shapes, and each has as many whole patches as there may be; height and width
  // are those of a square one, for what takes one size alone. 0: all become height x width.
  int64_t max_patches = 0;
  std::vector<float> mean, std;
  bool operator==(const Preprocessing&) const = default;
};

// What a run evaluated itself on, where that was a part of the training images.
struct HeldOut {
  double fraction = 0;  // 0: nothing was held out
  int64_t seed = 0, subset = 0;
  bool skips_bad = false;   // images that cannot be read were left out first
  int64_t images = 0;       // that both parts were taken from
  std::string labels = {};  // their digest: other data has another
  bool operator==(const HeldOut&) const = default;
};

struct StoredSize {
  int64_t height = 0, width = 0;
  bool operator==(const StoredSize&) const = default;
};

struct ModelSpec {
  std::string architecture;  // the preset or timm name it started from
  ModelConfig config;
  Preprocessing preprocess;
  std::vector<std::string> labels;     // one a class, or none
  std::vector<std::string> class_ids;  // what labels describe (WordNet ids), where both are known
  bool fixed_classes = false;  // the number of classes is part of the model (vit_mnist: 100)
  LoraSpec lora = {};          // adapters it is trained with; no file has them in
  HeldOut held_out = {};
  // The image size of the weights, where the preprocessing beside them makes images of another: 0,
  // that of the config.
  StoredSize stored = {};
  StoredSize stored_patch = {};  // and that of their patches, since set_patch_size()
  bool operator==(const ModelSpec&) const = default;
};
// The config that the weights of such a directory were saved with.
ModelConfig stored_config(const ModelSpec& spec);

// MODEL of the command line: a preset's name or alias; a model directory in timm's or transformers'
// layout, whose shapes come from its own config.json; or, with `arch` naming the preset it is one
// of, a single weight file. A bare file's number of classes, channels and (square) image size are
// its tensors', its preprocessing what the framework that wrote it publishes. Throws what names the
// file and key, or offers the nearest preset.
ModelSpec resolve_model(const std::string& model, const std::string& arch = {});
bool is_model_dir(const std::string& model);
// Something on disk, not a preset's name.
bool has_weights(const std::string& model);
// For whoever named a preset, or a model of the hub, where weights are needed: what to do, as
// "`vitrum download timm/x` fetches it; then give x".
std::string how_to_get(const std::string& model);
[[noreturn]] void fail_without_weights(const std::string& preset);

// Another input size, number of channels or number of classes; labels that no longer fit are
// dropped.
void set_image_size(ModelSpec& spec, int64_t height, int64_t width);
void set_channels(ModelSpec& spec, int64_t channels);
void set_classes(ModelSpec& spec, int64_t classes);
// Images keep their shapes, with no more patches than that; fails where positions are those of one
// size.
void set_max_patches(ModelSpec& spec, int64_t patches);
// Patches of another size, of ViTs; fails where the model has no patches of its own.
void set_patch_size(ModelSpec& spec, int64_t size);

// Weights first, config.json last, each atomic: a directory with both is a complete pair or the
// previous one's weights were replaced by newer ones of the same model. `which` is kMaster or kEma.
void save_model_dir(const std::filesystem::path& dir, const ModelSpec& spec, ParamStore& store,
                    Arena which = Arena::kMaster);

// The layers whose weights a model's file holds in these eight bits (kI8 or kE4M3).
std::vector<std::string> quantized_layers(const std::string& model, const ModelSpec& spec,
                                          DType eight_bits = DType::kI8);

// ---- loading ----

enum class PosResample : uint8_t { kAuto, kBilinear, kBicubic };  // kAuto: as its framework does
PosResample parse_pos_resample(const std::string& name);          // "auto", "bilinear" or "bicubic"
enum class HeadInit : uint8_t {
  kKeep,    // the file's head where it fits, else as kNormal
  kZero,    // a new one, all zero
  kNormal,  // a new one: weights N(0, 0.02), bias 0, as timm starts it
};

// How a model that differs from the stored one is filled.
struct LoadOptions {
  PosResample pos_resample = PosResample::kAuto;
  HeadInit head = HeadInit::kKeep;
  uint64_t seed = 0;   // of a new head
  bool finite = true;  // fail where a tensor holds NaN or infinities, naming it
};

struct LoadReport {
  std::string dialect;               // "timm", "hf", "torchvision" or "npz"
  std::vector<std::string> adapted;  // what was changed to fit, for people
};

// Start values of a parameter of a new head; kKeep is as kNormal.
std::vector<float> new_head(const ParamSpec& param, HeadInit init, uint64_t seed);

// Fills every parameter exactly once from a model directory or weight file in any dialect (f32,
// bf16 or f16), or fails with all differences. Where `spec` asks for another number of classes,
// image size or number of channels than is stored, the head is new, positions are resampled and the
// patch embedding is adapted.
LoadReport load_weights(const std::filesystem::path& model, const ModelSpec& spec,
                        ParamStore& store, const LoadOptions& options = {});

}  // namespace vitrum
