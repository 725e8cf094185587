#include "vitrum/weights/adapt.h"

#include <fmt/format.h>

#include <utility>

#include "vitrum/weights/family.h"

namespace vitrum {

PositionRule position_rule(const Dialect& dialect, std::string_view architecture) {
  const bool flexible = dialect.name == "timm" && architecture.starts_with("flexivit");
  return flexible ? PositionRule::kBilinear : dialect.positions;
}

std::unique_ptr<const Adapter> adapter(const ModelConfig& stored, const ModelConfig& wanted,
                                       PositionRule rule) {
  return weights_of(wanted).adapt(stored, wanted, rule);
}

ModelConfig expected_config(ModelConfig wanted, const ModelConfig& stored) {
  wanted.set_image_size(stored.image_h(), stored.image_w());
  wanted.set_channels(stored.channels());
  wanted.set_classes(stored.classes());
  wanted.set_head_bias(stored.head_bias());
  weights_of(wanted).take_stored(wanted, stored);
  return wanted;
}

std::vector<float> adapt_channels(const std::vector<float>& weight, int64_t width, int64_t a,
                                  int64_t b, bool first) {
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

ChannelAdapter::ChannelAdapter(FirstLayer first, int64_t stored, int64_t wanted)
    : first_(std::move(first)), stored_(stored), wanted_(wanted) {}

bool ChannelAdapter::changes(const std::string& param) const {
  return param == first_.weight && stored_ != wanted_;
}

std::vector<float> ChannelAdapter::operator()(const std::string&,
                                              const std::vector<float>& values) const {
  return adapt_channels(values, first_.width, stored_, wanted_, true);
}

std::vector<std::string> ChannelAdapter::report() const {
  if (stored_ == wanted_) return {};
  return {fmt::format("{} of {} -> {} channels", first_.title, stored_, wanted_)};
}

}  // namespace vitrum
