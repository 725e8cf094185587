#include "vitrum/weights/adapt.h"

#include <fmt/format.h>

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

}  // namespace

ModelConfig expected_config(ModelConfig wanted, const ModelConfig& stored) {
  wanted.set_image_size(stored.image_h(), stored.image_w());
  wanted.set_channels(stored.channels());
  wanted.set_classes(stored.classes());
  wanted.set_head_bias(stored.head_bias());
  wanted.visit([&]<class C>(C& c) { take_windows(c, *stored.as<C>()); });
  return wanted;
}

template <class F>
auto Adaptation::with_adapter(const F& use) const {
  return wanted_.visit(
      [&]<class C>(const C& wanted) { return use(adapter_of(*stored_.as<C>(), wanted, rule_)); });
}

bool Adaptation::changes(const std::string& param) const {
  return with_adapter([&](const auto& adapter) { return adapter.changes(param); });
}

std::vector<float> Adaptation::operator()(const std::string& param,
                                          const std::vector<float>& values) const {
  return with_adapter([&](const auto& adapter) { return adapter(param, values); });
}

std::vector<std::string> Adaptation::report() const {
  return with_adapter([](const auto& adapter) { return adapter.report(); });
}

}  // namespace vitrum
