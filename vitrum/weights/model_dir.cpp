#include "vitrum/weights/model_dir.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <numeric>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/models/registry.h"
#include "vitrum/weights/checkpoint.h"
#include "vitrum/weights/model_config.h"
#include "vitrum/weights/open_clip.h"
#include "vitrum/weights/safetensors.h"
#include "vitrum/weights/stored_tensors.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxConfig = 16 << 20;  // bytes
constexpr const char* kWeightsFile = "model.safetensors";
constexpr const char* kConfigFile = "config.json";
constexpr const char* kPreprocessorFile = "preprocessor_config.json";
constexpr const char* kProcessorFile = "processor_config.json";

ModelSpec preset_spec(const Preset& preset) {
  ModelSpec spec{.architecture = preset.name,
                 .config = preset.config,
                 .preprocess = {},
                 .labels = {},
                 .fixed_classes = preset.fixed_classes};
  spec.preprocess.height = preset.config.image_h(), spec.preprocess.width = preset.config.image_w();
  spec.preprocess.mean = preset.mean, spec.preprocess.std = preset.std;
  spec.preprocess.crop_pct = preset.crop_pct, spec.preprocess.crop_mode = preset.crop_mode;
  return spec;
}

// The tag of timm's weights ("vit_base_patch16_224.augreg_in21k") does not matter.
std::string_view without_tag(std::string_view name) {
  const size_t last = name.rfind('/') + 1;  // "./model" has no tag
  return name.substr(0, name.find('.', last));
}

// "owner/name", as the hub names models; what begins in a folder that is here is a path.
bool is_hub_id(const std::string& model) {
  constexpr const char* kWord =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._/";
  const size_t slash = model.find('/');
  if (slash == model.npos || slash == 0 || slash + 1 == model.size()) return false;
  if (slash != model.rfind('/') || model[0] == '.' || model.find_first_not_of(kWord) != model.npos)
    return false;
  const std::string owner = model.substr(0, slash);
  std::error_code ignored;
  return owner != "runs" && !fs::exists(owner, ignored);
}

// Where a model's weights are at the hub; "" where nobody knows.
std::string hub_id(const std::string& model) {
  if (is_hub_id(model)) return model;
  const std::string_view name = without_tag(model);
  const Preset* preset = preset_named(name);
  if (!preset || preset->public_weights.empty()) return "";
  return name.size() == model.size() ? preset->public_weights : "timm/" + model;
}

const Preset& preset_for(const std::string& name) {
  const std::string_view plain = without_tag(name);
  if (!preset_named(plain) && is_hub_id(name))
    fail_input("'{}' is neither a model directory here nor a model's name; {}", name,
               how_to_get(name));
  return find_preset(plain);
}

// A file of its own, or since transformers 5, where a model has texts too, a part of one for both.
ConfigText read_preprocessor(const fs::path& dir) {
  const std::string own = (dir / kPreprocessorFile).string(),
                    both = (dir / kProcessorFile).string();
  std::error_code ignored;
  if (fs::is_regular_file(own, ignored)) return {read_file(own, kMaxConfig), own};
  if (!fs::is_regular_file(both, ignored)) return {"{}", own};
  return {JsonKeys(read_file(both, kMaxConfig), both).dumped("image_processor"), both};
}

ModelSpec read_model_config(const fs::path& dir) {
  const std::string config = (dir / kConfigFile).string();
  std::error_code ignored;
  if (!fs::exists(config, ignored)) return read_open_clip(dir.string());
  if (!fs::is_regular_file(config, ignored)) fail_input("{}: not a regular file", config);
  const JsonKeys keys(read_file(config, kMaxConfig), config);
  if (!is_hf_config(keys)) return parse_model_config(keys);
  return parse_hf_config(keys, read_preprocessor(dir));
}

// Not every verb takes --arch.
[[noreturn]] void fail_without_arch(const std::string& model) {
  if (is_model_dir(model + "/best"))
    fail_input("{0} has no {1}; the model of a run is {0}/best", model, kConfigFile);
  std::error_code ignored;
  const std::string what = fs::is_directory(model, ignored)
                               ? fmt::format("has no {}", kConfigFile)
                               : "is a file, which does not say what model it is";
  weights_path(model);  // a directory without weights is not worth a name
  fail_input(
      "{0} {1}; name it with --arch NAME, or first `vitrum convert {0} OUT --to timm "
      "--arch NAME`",
      model, what);
}

}  // namespace

std::string how_to_get(const std::string& model) {
  const std::string id = hub_id(model);
  if (id.empty())
    return "give a model directory, such as the best/ of a run or what `vitrum download ID` "
           "fetches";
  const std::string directory = id.substr(id.find('/') + 1);
  if (is_model_dir(directory)) return fmt::format("it is downloaded already: give {}", directory);
  return fmt::format("`vitrum download {}` fetches it; then give {}", id, directory);
}

void fail_without_weights(const std::string& preset) {
  fail_usage("{} is a preset without weights; {}", preset, how_to_get(preset));
}

bool is_model_dir(const std::string& model) {
  std::error_code ignored;
  return fs::exists(fs::path(model) / kConfigFile, ignored) || has_open_clip_config(model);
}

bool has_weights(const std::string& model) {
  std::error_code ignored;
  return fs::exists(model, ignored);
}

ModelSpec resolve_model(const std::string& model, const std::string& arch) {
  if (is_model_dir(model)) {
    if (!arch.empty())
      fail_usage("{} has a {} of its own; --arch is for weight files without one", model,
                 kConfigFile);
    return read_model_config(model);
  }
  if (!arch.empty()) {
    if (!has_weights(model)) fail_input("{}: no such file", model);
    return bare_file_spec(preset_spec(preset_for(arch)), Checkpoint(weights_path(model)));
  }
  if (has_weights(model)) fail_without_arch(model);
  return preset_spec(preset_for(model));
}

std::vector<std::string> quantized_layers(const std::string& model, const ModelSpec& spec,
                                          DType eight_bits) {
  const Checkpoint file(weights_path(model));
  const ModelConfig config = stored_config(spec);
  std::vector<std::string> layers;
  std::vector<std::byte> scratch;
  for (const ParamSpec& param : model_params(config))
    if (param.name.ends_with(".weight") && file.is_quantized(param, config) &&
        file.read_quantized(param, config, scratch = {}).dtype == eight_bits)
      layers.push_back(param.name.substr(0, param.name.rfind('.')));
  return layers;
}

void save_model_dir(const fs::path& dir, const ModelSpec& spec, ParamStore& store, Arena which) {
  ensure_directory(dir.string());
  remove_stale_temporaries(dir.string());
  const Naming timm{&find_dialect(spec.config, "timm"), false, {}};
  StoredTensors stored(spec.config, timm);
  std::deque<std::vector<float>> values;
  const std::vector<ParamSpec> own = model_params(spec.config);
  for (size_t i = 0; i < store.specs().size(); ++i) {
    // A store may hold more than the model: a decoder that only pretraining has.
    if (std::ranges::find(own, store.specs()[i].name, &ParamSpec::name) == own.end()) continue;
    values.push_back(store.read(i, which));
    stored.add(store.specs()[i], DType::kF32, std::as_bytes(std::span(values.back())));
  }
  std::vector<NamedTensor> tensors = stored.all();
  add_counters(tensors);
  write_safetensors((dir / kWeightsFile).string(), tensors, {{"format", "pt"}});
  write_file_atomic((dir / kConfigFile).string(), model_config_text(spec));
}

}  // namespace vitrum
