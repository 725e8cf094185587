#include "vitrum/weights/model_dir.h"

#include <fmt/format.h>

#include <set>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/models/registry.h"
#include "vitrum/weights/convert_floats.h"
#include "vitrum/weights/model_config.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfig = 16 << 20;      // bytes
constexpr size_t kMaxDifferencesShown = 12;  // the rest is counted
constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kConfigFile = "config.json";

// A parameter's shape in files. The patch embedding is a convolution there, and one with the same
// memory when patches are flattened channel first.
Shape file_shape(const ParamSpec& param, const ViTConfig& c) {
  if (param.name != "patch_embed.proj.weight" || c.patch_order != PatchOrder::kChannelFirst)
    return param.shape;
  return {param.shape[0], c.channels, c.patch_h, c.patch_w};
}

std::vector<std::string> differences(const SafetensorsFile& file, const ViTConfig& config,
                                     const ParamStore& store) {
  std::vector<std::string> all;
  std::set<std::string_view> ours;
  for (const ParamSpec& param : store.specs()) {
    ours.insert(param.name);
    const TensorInfo* tensor = file.find(param.name);
    const Shape expected = file_shape(param, config);
    if (!tensor) {
      all.push_back(fmt::format("{} {} is missing", param.name, expected.str()));
    } else if (tensor->shape != expected) {
      all.push_back(
          fmt::format("{} is {}, expected {}", param.name, tensor->shape.str(), expected.str()));
    } else if (tensor->dtype != DType::kF32 && tensor->dtype != DType::kBF16 &&
               tensor->dtype != DType::kF16) {
      all.push_back(
          fmt::format("{} is {}, expected f32, bf16 or f16", param.name, name_of(tensor->dtype)));
    }
  }
  for (const TensorInfo& tensor : file.tensors())
    if (!ours.contains(tensor.name))
      all.push_back(fmt::format("{} {} is not part of the model", tensor.name, tensor.shape.str()));
  return all;
}

ModelSpec preset_spec(const Preset& preset) {
  ModelSpec spec{.architecture = preset.name,
                 .config = preset.config,
                 .preprocess = {},
                 .labels = {},
                 .fixed_classes = preset.fixed_classes};
  spec.preprocess.height = preset.config.image_h, spec.preprocess.width = preset.config.image_w;
  spec.preprocess.mean = preset.mean, spec.preprocess.std = preset.std;
  return spec;
}

}  // namespace

bool is_model_dir(const std::string& model) {
  std::error_code ignored;
  return fs::exists(fs::path(model) / kConfigFile, ignored);
}

ModelSpec resolve_model(const std::string& model) {
  std::error_code ignored;
  const fs::path dir(model);
  if (is_model_dir(model)) {
    const std::string config = (dir / kConfigFile).string();
    return parse_model_config(read_file(config, kMaxConfig), config);
  }
  if (fs::is_directory(dir, ignored))
    fail_input("{} has no {}; a model directory holds {} and {}", model, kConfigFile, kConfigFile,
               kWeightsFile);
  if (fs::exists(dir, ignored))
    fail_input("{} is a file; expected a model directory or a preset's name", model);
  return preset_spec(find_preset(model));
}

void set_image_size(ModelSpec& spec, int64_t height, int64_t width) {
  spec.config.image_h = spec.preprocess.height = height;
  spec.config.image_w = spec.preprocess.width = width;
}

void set_classes(ModelSpec& spec, int64_t classes) {
  if (classes != spec.config.classes) spec.labels.clear();
  spec.config.classes = classes;
}

void save_model_dir(const fs::path& dir, const ModelSpec& spec, ParamStore& store, Arena which) {
  ensure_directory(dir.string());
  remove_stale_temporaries(dir.string());
  std::vector<std::vector<float>> values;
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < store.specs().size(); ++i) {
    const ParamSpec& param = store.specs()[i];
    values.push_back(store.read(i, which));
    tensors.push_back(
        {param.name, {values.back().data(), file_shape(param, spec.config), DType::kF32}});
  }
  write_safetensors((dir / kWeightsFile).string(), tensors, {{"format", "pt"}});
  write_file_atomic((dir / kConfigFile).string(), model_config_text(spec));
}

void load_weights(const fs::path& dir, const ModelSpec& spec, ParamStore& store) {
  const SafetensorsFile file((dir / kWeightsFile).string());
  std::vector<std::string> wrong = differences(file, spec.config, store);
  if (!wrong.empty()) {
    const size_t count = wrong.size();
    if (count > kMaxDifferencesShown) {
      wrong.resize(kMaxDifferencesShown);
      wrong.push_back(fmt::format("and {} more", count - kMaxDifferencesShown));
    }
    fail_input("{} does not fit the model: {}", file.path(), fmt::join(wrong, "; "));
  }
  std::vector<float> scratch;
  for (size_t i = 0; i < store.specs().size(); ++i)
    store.write(i, view_floats(file, file.at(store.specs()[i].name), scratch));
  store.refresh_compute();
}

}  // namespace vitrum
