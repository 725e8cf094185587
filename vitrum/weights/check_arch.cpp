#include "vitrum/weights/check_arch.h"

#include <vector>

#include "vitrum/core/error.h"
#include "vitrum/core/join.h"
#include "vitrum/models/registry.h"
#include "vitrum/weights/checkpoint.h"

namespace vitrum {
namespace {

ModelSpec checked(const std::string& file, const std::string& arch) {
  ModelSpec spec = resolve_model(file, arch);
  Checkpoint(weights_path(file)).check(model_params(spec.config), spec.config, /*head=*/false);
  return spec;
}

// A few at most, those for images of the file's own size first.
std::vector<std::string> presets_of(const std::string& file) {
  constexpr size_t kMost = 3;
  const std::string_view family = Checkpoint(weights_path(file)).dialect().family;
  std::vector<std::string> same, resized;
  for (const Preset& preset : presets()) {
    if (preset.family != family) continue;
    try {
      const ModelSpec spec = checked(file, preset.name);
      (spec.config.image_h() == preset.config.image_h() ? same : resized).push_back(preset.name);
    } catch (const Error&) {  // it is another one
    }
  }
  same.insert(same.end(), resized.begin(), resized.end());
  if (same.size() > kMost) same.resize(kMost);
  return same;
}

}  // namespace

void check_arch(const std::string& file, const std::string& arch) {
  try {
    checked(file, arch);
  } catch (const Error& e) {
    if (!preset_named(arch) || !has_weights(file)) throw;
    const std::vector<std::string> fitting = presets_of(file);
    if (fitting.empty()) throw;
    fail_input("{} is not of {}: its tensors are those of {}; name it so with --arch", file, arch,
               join(fitting, ", "));
  }
}

}  // namespace vitrum
