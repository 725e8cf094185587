// Filling a parameter store from a file, with what has to be changed to fit.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "vitrum/core/all_finite.h"
#include "vitrum/core/error.h"
#include "vitrum/core/shown.h"
#include "vitrum/weights/adapt.h"
#include "vitrum/weights/checkpoint.h"
#include "vitrum/weights/convert_floats.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {
namespace {

PositionRule position_rule(PosResample asked, const Dialect& dialect,
                           const std::string& architecture) {
  switch (asked) {
    case PosResample::kAuto: break;
    case PosResample::kBilinear: return PositionRule::kBilinear;
    case PosResample::kBicubic: return PositionRule::kBicubic;
  }
  return position_rule(dialect, architecture);
}

class Loader {
 public:
  Loader(const std::string& model, const Checkpoint& file, const ModelConfig& stored,
         const ModelSpec& spec, const LoadOptions& options)
      : model_(model),
        file_(file),
        stored_(expected_config(spec.config, stored)),
        wanted_(spec.config),
        params_(model_params(stored_)),
        adapt_(adapter(stored_, wanted_,
                       position_rule(options.pos_resample, file.dialect(), spec.architecture))),
        options_(options),
        // Where no head is wanted, the file's is not used either.
        new_head_(options.head != HeadInit::kKeep || stored_.classes() != wanted_.classes() ||
                  stored_.head_bias() != wanted_.head_bias() || wanted_.classes() == 0 ||
                  feature_width(stored_) != feature_width(wanted_)) {}

  void check() const {
    std::vector<ParamSpec> expected;
    for (const ParamSpec& p : params_)
      if (!new_head_ || !in_head(stored_, p.name)) expected.push_back(p);
    file_.check(expected, stored_, !new_head_);
  }

  void fill(ParamStore& store) {
    for (size_t i = 0; i < store.specs().size(); ++i) fill(store, i);
    file_.check_intact();
    store.refresh_compute();
  }

  LoadReport report() const {
    LoadReport r{std::string(file_.dialect().name), {}};
    if (new_head_ && wanted_.classes() > 0)
      r.adapted.push_back(fmt::format("new head of {} classes", wanted_.classes()));
    for (std::string& change : adapt_->report()) r.adapted.push_back(std::move(change));
    return r;
  }

 private:
  // Adapters are in no file: they start as they would without one.
  bool is_stored(const std::string& name) const {
    return std::any_of(params_.begin(), params_.end(),
                       [&](const ParamSpec& p) { return p.name == name; });
  }
  const ParamSpec& stored_param(const std::string& name) const {
    return *std::find_if(params_.begin(), params_.end(),
                         [&](const ParamSpec& p) { return p.name == name; });
  }

  void fill(ParamStore& store, size_t i) {
    const ParamSpec& param = store.specs()[i];
    if (new_head_ && in_head(wanted_, param.name))
      return store.write(i, new_head(param, options_.head, options_.seed));
    if (!is_stored(param.name)) return store.write(i, start_values(param));
    const ParamSpec& from = stored_param(param.name);
    const auto bytes = file_.read(from, stored_, scratch_);
    const DType dtype = file_.dtype(from, stored_);
    const bool as_is = !adapt_->changes(param.name);
    const bool in_place =
        dtype == DType::kF32 && reinterpret_cast<uintptr_t>(bytes.data()) % alignof(float) == 0;
    const std::vector<float> converted = in_place ? std::vector<float>() : to_floats(bytes, dtype);
    const std::span<const float> values =
        in_place
            ? std::span(reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float))
            : std::span(converted);
    if (options_.finite && !all_finite(values))
      fail_input("weights '{}': {} holds NaN or infinite numbers", model_, param.name);
    if (as_is) return store.write(i, values);
    store.write(i, (*adapt_)(param.name, {values.begin(), values.end()}));
  }

  std::vector<float> start_values(const ParamSpec& param) const {
    std::vector<float> values(static_cast<size_t>(param.shape.numel()));
    param.fill(values, options_.seed);
    return values;
  }

  const std::string model_;
  const Checkpoint& file_;
  const ModelConfig stored_, wanted_;
  const std::vector<ParamSpec> params_;  // of the stored model
  const std::unique_ptr<const Adapter> adapt_;
  const LoadOptions options_;
  const bool new_head_;
  std::vector<std::byte> scratch_;
};

}  // namespace

PosResample parse_pos_resample(const std::string& name) {
  if (name == "auto") return PosResample::kAuto;
  if (name == "bilinear") return PosResample::kBilinear;
  if (name == "bicubic") return PosResample::kBicubic;
  fail_usage("pos_resample is '{}'; expected auto, bilinear or bicubic", shown(name));
}

std::vector<float> new_head(const ParamSpec& param, HeadInit init, uint64_t seed) {
  constexpr float kDeviation = 0.02f;
  std::vector<float> values(static_cast<size_t>(param.shape.numel()), 0.f);
  const bool is_matrix = param.shape.rank() > 1;
  if (is_matrix && init != HeadInit::kZero) Init::normal(kDeviation).fill(values, param.name, seed);
  return values;
}

LoadReport load_weights(const std::filesystem::path& model, const ModelSpec& spec,
                        ParamStore& store, const LoadOptions& options) {
  const Checkpoint file(weights_path(model.string()));
  const bool described = is_model_dir(model.string());
  // A bare file is what `spec` says, but for what its tensors say themselves.
  const ModelConfig stored = described ? stored_config(resolve_model(model.string()))
                                       : file.stored_sizes(stored_config(spec));
  if (!stored.same_family(spec.config))
    fail_input("{} is a model of the {} family, not of the {} family", model.string(),
               family_of(stored), family_of(spec.config));
  Loader loader(model.string(), file, stored, spec, options);
  loader.check();
  loader.fill(store);
  return loader.report();
}

}  // namespace vitrum
