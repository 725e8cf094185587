// Filling a parameter store from a file, with what has to be changed to fit.
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "vitrum/core/error.h"
#include "vitrum/weights/checkpoint.h"
#include "vitrum/weights/convert_floats.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {
namespace {

Grid grid_of(const ViTConfig& c) { return {c.image_h / c.patch_h, c.image_w / c.patch_w}; }

// What only one family can adapt.
template <class Config>
void take_windows(Config&, const Config&) {}
template <>
void take_windows(SwinConfig& wanted, const SwinConfig& stored) {
  wanted.window_h = stored.window_h, wanted.window_w = stored.window_w;
  wanted.pad_first = stored.pad_first;
}

// The model that the file must hold: the wanted one, but for what can be adapted.
ModelConfig expected_config(ModelConfig wanted, const ModelConfig& stored) {
  wanted.set_image_size(stored.image_h(), stored.image_w());
  wanted.set_channels(stored.channels());
  wanted.set_classes(stored.classes());
  wanted.set_head_bias(stored.head_bias());
  wanted.visit([&]<class C>(C& c) { take_windows(c, *stored.as<C>()); });
  return wanted;
}

PositionRule position_rule(PosResample asked, const Dialect& dialect) {
  switch (asked) {
    case PosResample::kAuto: break;
    case PosResample::kBilinear: return PositionRule::kBilinear;
    case PosResample::kBicubic: return PositionRule::kBicubic;
  }
  return dialect.positions;
}

const char* name_of(PositionRule rule) {
  switch (rule) {
    case PositionRule::kBicubicAntialias: return "bicubic, antialiased";
    case PositionRule::kBicubic: return "bicubic";
    case PositionRule::kBicubicAlignCorners: return "bicubic, corners aligned";
    case PositionRule::kBilinear: return "bilinear";
    case PositionRule::kGeometric: return "linear, as timm";
    case PositionRule::kZoom: return "bilinear, corners aligned";
  }
  return "";
}

// Another number of input channels, as timm does it: one is the sum of all, so a grey image gives
// what it gave in RGB; otherwise they are repeated in turn and scaled, so that activations keep
// their size.
std::vector<float> adapt_channels(const std::vector<float>& weight, int64_t width, int64_t a,
                                  int64_t b,
                                  bool first) {  // (width, a channels, ..), or channels last
  const int64_t area = static_cast<int64_t>(weight.size()) / (width * a);
  const auto at = [&](int64_t out, int64_t channel, int64_t place, int64_t channels) {
    return static_cast<size_t>(first ? (out * channels + channel) * area + place
                                     : (out * area + place) * channels + channel);
  };
  const float scale = b == 1 ? 1.f : static_cast<float>(a) / static_cast<float>(b);
  std::vector<float> adapted(static_cast<size_t>(width * b * area), 0.f);
  for (int64_t out = 0; out < width; ++out)
    for (int64_t c = 0; c < (b == 1 ? a : b); ++c)
      for (int64_t place = 0; place < area; ++place)
        adapted[at(out, b == 1 ? 0 : c, place, b)] += scale * weight[at(out, c % a, place, a)];
  return adapted;
}

// What a parameter goes through where the wanted model is of another size than the stored one.
class Adapter {
 public:
  Adapter(const ViTConfig& stored, const ViTConfig& wanted, PositionRule rule)
      : stored_(stored), wanted_(wanted), rule_(rule) {}

  bool changes(const std::string& param) const {
    if (param == "pos_embed") return grid_of(stored_) != grid_of(wanted_);
    return param == "patch_embed.proj.weight" && stored_.channels != wanted_.channels;
  }

  std::vector<float> operator()(const std::string& param, const std::vector<float>& values) const {
    if (param == "pos_embed")
      return resample_positions(values, stored_.prefix_tokens(), stored_.width, grid_of(stored_),
                                grid_of(wanted_), rule_);
    return adapt_channels(values, stored_.width, stored_.channels, wanted_.channels,
                          stored_.patch_order == PatchOrder::kChannelFirst);
  }

  std::vector<std::string> report() const {  // for people
    std::vector<std::string> all;
    const Grid from = grid_of(stored_), to = grid_of(wanted_);
    if (changes("pos_embed") && !wanted_.sincos_positions)
      all.push_back(fmt::format("positions {}x{} -> {}x{} ({})", from.rows, from.columns, to.rows,
                                to.columns, name_of(rule_)));
    if (stored_.channels != wanted_.channels)
      all.push_back(
          fmt::format("patch embedding of {} -> {} channels", stored_.channels, wanted_.channels));
    return all;
  }

 private:
  const ViTConfig &stored_, &wanted_;
  PositionRule rule_;
};

// Bias tables are resampled where windows have another size, which they also have where a stage has
// fewer tokens than a window.
class SwinAdapter {
 public:
  SwinAdapter(const SwinConfig& stored, const SwinConfig& wanted, PositionRule rule)
      : stored_(stored), wanted_(wanted), rule_(rule) {}

  bool changes(const std::string& param) const {
    if (param == kPatches) return stored_.channels != wanted_.channels;
    return param.ends_with(kTable) && table(stored_, stage(param)) != table(wanted_, stage(param));
  }
  std::vector<float> operator()(const std::string& param, const std::vector<float>& values) const {
    if (param == kPatches)
      return adapt_channels(values, stored_.width, stored_.channels, wanted_.channels, true);
    const int64_t i = stage(param);
    return resample_positions(values, 0, stored_.heads[static_cast<size_t>(i)], table(stored_, i),
                              table(wanted_, i), rule_);
  }
  std::vector<std::string> report() const {
    std::vector<std::string> all;
    for (int64_t i = 0; i < stored_.stages(); ++i) {
      const SwinWindows from = swin_windows(stored_, i, false),
                        to = swin_windows(wanted_, i, false);
      if (table(stored_, i) != table(wanted_, i))
        all.push_back(fmt::format("windows of stage {} {}x{} -> {}x{} ({})", i, from.window_h,
                                  from.window_w, to.window_h, to.window_w, name_of(rule_)));
    }
    if (stored_.channels != wanted_.channels)
      all.push_back(
          fmt::format("patch embedding of {} -> {} channels", stored_.channels, wanted_.channels));
    return all;
  }

 private:
  static constexpr std::string_view kPatches = "patch_embed.proj.weight",
                                    kTable = ".relative_position_bias_table";
  static int64_t stage(const std::string& param) {  // "layers.2.blocks..."
    return std::stoll(param.substr(std::string_view("layers.").size()));
  }
  static Grid table(const SwinConfig& c, int64_t stage) {
    const SwinWindows w = swin_windows(c, stage, false);
    return {2 * w.window_h - 1, 2 * w.window_w - 1};
  }

  const SwinConfig &stored_, &wanted_;
  PositionRule rule_;
};

class ResNetAdapter {
 public:
  ResNetAdapter(const ResNetConfig& stored, const ResNetConfig& wanted)
      : stored_(stored), wanted_(wanted) {}
  bool changes(const std::string& param) const {
    return param == "conv1.weight" && stored_.channels != wanted_.channels;
  }
  std::vector<float> operator()(const std::string&, const std::vector<float>& values) const {
    return adapt_channels(values, stored_.width, stored_.channels, wanted_.channels, true);
  }
  std::vector<std::string> report() const {
    if (stored_.channels == wanted_.channels) return {};
    return {
        fmt::format("first convolution of {} -> {} channels", stored_.channels, wanted_.channels)};
  }

 private:
  const ResNetConfig &stored_, &wanted_;
};

Adapter adapter_of(const ViTConfig& stored, const ViTConfig& wanted, PositionRule rule) {
  return {stored, wanted, rule};
}
SwinAdapter adapter_of(const SwinConfig& stored, const SwinConfig& wanted, PositionRule rule) {
  return {stored, wanted, rule};
}
ResNetAdapter adapter_of(const ResNetConfig& stored, const ResNetConfig& wanted, PositionRule) {
  return {stored, wanted};
}

class Loader {
  template <class F>
  auto with_adapter(const F& use) const {
    return wanted_.visit([&]<class C>(const C& wanted) {
      return use(adapter_of(*stored_.as<C>(), wanted,
                            position_rule(options_.pos_resample, file_.dialect())));
    });
  }

 public:
  Loader(const Checkpoint& file, const ModelConfig& stored, const ModelSpec& spec,
         const LoadOptions& options)
      : file_(file),
        stored_(expected_config(spec.config, stored)),
        wanted_(spec.config),
        params_(model_params(stored_)),
        options_(options),
        // Where no head is wanted, the file's is not used either.
        new_head_(options.head != HeadInit::kKeep || stored_.classes() != wanted_.classes() ||
                  stored_.head_bias() != wanted_.head_bias() || wanted_.classes() == 0) {}

  void check() const {
    std::vector<ParamSpec> expected;
    for (const ParamSpec& p : params_)
      if (!new_head_ || !in_head(stored_, p.name)) expected.push_back(p);
    file_.check(expected, stored_, !new_head_);
  }

  void fill(ParamStore& store) {
    for (size_t i = 0; i < store.specs().size(); ++i) fill(store, i);
    store.refresh_compute();
  }

  LoadReport report() const {
    LoadReport r{std::string(file_.dialect().name), {}};
    if (new_head_ && wanted_.classes() > 0)
      r.adapted.push_back(fmt::format("new head of {} classes", wanted_.classes()));
    with_adapter([&](const auto& adapter) {
      for (std::string& change : adapter.report()) r.adapted.push_back(std::move(change));
    });
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
    const bool as_is =
        with_adapter([&](const auto& adapter) { return !adapter.changes(param.name); });
    if (as_is && dtype == DType::kF32 && store.dtype(Arena::kMaster) == DType::kF32)
      return store.backend().upload(store.view(i, Arena::kMaster), bytes.data());
    const std::vector<float> values = to_floats(bytes, dtype);
    if (as_is) return store.write(i, values);
    with_adapter([&](const auto& adapter) { store.write(i, adapter(param.name, values)); });
  }

  std::vector<float> start_values(const ParamSpec& param) const {
    std::vector<float> values(static_cast<size_t>(param.shape.numel()));
    param.init.fill(values, param.name, options_.seed);
    return values;
  }

  const Checkpoint& file_;
  const ModelConfig stored_, wanted_;
  const std::vector<ParamSpec> params_;  // of the stored model
  const LoadOptions options_;
  const bool new_head_;
  std::vector<std::byte> scratch_;
};

}  // namespace

PosResample parse_pos_resample(const std::string& name) {
  if (name == "auto") return PosResample::kAuto;
  if (name == "bilinear") return PosResample::kBilinear;
  if (name == "bicubic") return PosResample::kBicubic;
  fail_usage("pos_resample is '{}'; expected auto, bilinear or bicubic", name);
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
  const ModelConfig stored =
      described ? resolve_model(model.string()).config : file.stored_sizes(spec.config);
  if (!stored.same_family(spec.config))
    fail_input("{} is a model of the {} family, not of the {} family", model.string(),
               family_of(stored), family_of(spec.config));
  Loader loader(file, stored, spec, options);
  loader.check();
  loader.fill(store);
  return loader.report();
}

}  // namespace vitrum
