#include "vitrum/serve/repository.h"

#include <algorithm>

#include "vitrum/core/error.h"
#include "vitrum/core/parallel.h"

namespace vitrum::serve {

Repository::Repository(const ServeOptions& options) : options_(options), sources_(options.models) {
  const int threads = options.threads > 0 ? options.threads : available_cores();
  for (int i = 0; i < options.replicas; ++i)
    devices_.push_back(std::make_shared<SharedDevice>(DeviceOptions{
        .device = options.device, .threads = std::max(1, threads / options.replicas)}));
}

ModelPtr Repository::load(const ModelSource& source) {
  PredictorOptions options;
  if (options_.precision == "f32") options.precision = DType::kF32;
  if (options_.precision == "bf16") options.precision = DType::kBF16;
  if (options_.precision == "int8") options.precision = DType::kI8;
  if (options_.precision == "fp8") options.precision = DType::kE4M3;
  if (options_.max_batch > 0) options.max_batch = options_.max_batch;
  std::vector<PredictorOptions> replicas;
  for (const auto& device : devices_) options.shared_device = device, replicas.push_back(options);
  auto model = std::make_shared<ServedModel>(
      source.name, source.path, replicas,
      EngineOptions{.max_batch = options_.max_batch, .max_delay = options_.max_delay});
  if (on_load) on_load(*model);
  return model;
}

void Repository::publish(ModelPtr model) {
  const std::lock_guard lock(mutex_);
  models_[model->name()].swap(model);
  // The old one ends with the last request that holds it, outside of the lock or here.
}

void Repository::load_all() {
  for (const ModelSource& source : sources_) publish(load(source));
}

std::vector<std::string> Repository::reload() {
  std::vector<ModelSource> sources;
  {
    const std::lock_guard lock(mutex_);
    sources = sources_;
  }
  std::vector<std::string> problems;
  for (const ModelSource& source : sources) {
    try {
      publish(load(source));
    } catch (const std::exception& e) {
      problems.push_back(source.name + ": " + e.what());
    }
  }
  const std::lock_guard lock(mutex_);
  std::erase_if(models_, [&](const auto& entry) {
    return std::none_of(sources.begin(), sources.end(),
                        [&](const ModelSource& s) { return s.name == entry.first; });
  });
  return problems;
}

void Repository::reload(const std::string& name) {
  ModelSource source;
  {
    const std::lock_guard lock(mutex_);
    for (const ModelSource& s : sources_)
      if (s.name == name) source = s;
  }
  if (source.name.empty()) fail_input("no model of that name is configured");
  publish(load(source));
}

void Repository::unload(const std::string& name) {
  ModelPtr gone;
  const std::lock_guard lock(mutex_);
  const auto found = models_.find(name);
  if (found == models_.end()) fail_input("no model of that name is loaded");
  gone = std::move(found->second);
  models_.erase(found);
}

void Repository::configure(std::vector<ModelSource> models) {
  const std::lock_guard lock(mutex_);
  sources_ = std::move(models);
}

ModelPtr Repository::find(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  if (name.empty() && !sources_.empty()) name = sources_.front().name;
  const auto found = models_.find(name);
  return found == models_.end() ? nullptr : found->second;
}

std::vector<ModelPtr> Repository::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<ModelPtr> out;
  for (const ModelSource& s : sources_)
    if (const auto found = models_.find(s.name); found != models_.end())
      out.push_back(found->second);
  return out;
}

bool Repository::is_configured(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  return std::any_of(sources_.begin(), sources_.end(),
                     [&](const ModelSource& s) { return s.name == name; });
}

}  // namespace vitrum::serve
