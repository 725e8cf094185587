#include "vitrum/data/policy.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>

#include "vitrum/core/error.h"
#include "vitrum/core/nearest.h"
#include "vitrum/core/shown.h"

namespace vitrum {
namespace {

using enum PolicyOp;

const std::array<std::string, 26> kNames = {"Identity",
                                            "AutoContrast",
                                            "Equalize",
                                            "Invert",
                                            "Rotate",
                                            "Posterize",
                                            "PosterizeIncreasing",
                                            "PosterizeOriginal",
                                            "Solarize",
                                            "SolarizeIncreasing",
                                            "SolarizeAdd",
                                            "Color",
                                            "ColorIncreasing",
                                            "Contrast",
                                            "ContrastIncreasing",
                                            "Brightness",
                                            "BrightnessIncreasing",
                                            "Sharpness",
                                            "SharpnessIncreasing",
                                            "ShearX",
                                            "ShearY",
                                            "TranslateX",
                                            "TranslateY",
                                            "Desaturate",
                                            "GaussianBlur",
                                            "GaussianBlurRand"};

Edit plain(EditKind kind, double value = 0) { return {.kind = kind, .value = value}; }

EditKind enhancement(PolicyOp op) {
  switch (op) {
    case kColor:
    case kColorIncreasing: return EditKind::kColor;
    case kContrast:
    case kContrastIncreasing: return EditKind::kContrast;
    case kBrightness:
    case kBrightnessIncreasing: return EditKind::kBrightness;
    default: return EditKind::kSharpness;
  }
}

Edit affine(const AffineMatrix& matrix, const EditSettings& s, const ByteColour& fill) {
  return {.kind = EditKind::kAffine, .matrix = matrix, .filter = s.filter, .fill = fill};
}

// ---- timm's levels, 0 to 10 ----

std::optional<Edit> at_timm(PolicyOp op, double level, double draw, const EditSettings& s) {
  const double part = level / 10.0;
  const auto toward = [&](double x) { return draw > 0.5 ? -x : x; };
  const auto shifted = [&](const AffineMatrix& m) { return affine(m, s, s.fill); };
  switch (op) {
    case kIdentity: return std::nullopt;
    case kAutoContrast: return plain(EditKind::kAutoContrast);
    case kEqualize: return plain(EditKind::kEqualize);
    case kInvert: return plain(EditKind::kInvert);
    case kRotate: return shifted(rotation(toward(part * 30.0), s.height, s.width));
    case kPosterize: return plain(EditKind::kPosterize, std::trunc(part * 4));
    case kPosterizeIncreasing: return plain(EditKind::kPosterize, 4 - std::trunc(part * 4));
    case kPosterizeOriginal: return plain(EditKind::kPosterize, std::trunc(part * 4) + 4);
    case kSolarize: return plain(EditKind::kSolarize, std::min(256.0, std::trunc(part * 256)));
    case kSolarizeIncreasing:
      return plain(EditKind::kSolarize, 256 - std::min(256.0, std::trunc(part * 256)));
    case kSolarizeAdd:
      return plain(EditKind::kSolarizeAdd, std::min(128.0, std::trunc(part * 110)));
    case kColor:
    case kContrast:
    case kBrightness:
    case kSharpness: return plain(enhancement(op), part * 1.8 + 0.1);
    case kColorIncreasing:
    case kContrastIncreasing:
    case kBrightnessIncreasing:
    case kSharpnessIncreasing:
      return plain(enhancement(op), std::max(0.1, 1.0 + toward(part * 0.9)));
    case kShearX: return shifted({1, toward(part * 0.3), 0, 0, 1, 0});
    case kShearY: return shifted({1, 0, 0, toward(part * 0.3), 1, 0});
    case kTranslateX: return shifted({1, 0, toward(part * 0.45) * s.width, 0, 1, 0});
    case kTranslateY: return shifted({1, 0, 0, 0, 1, toward(part * 0.45) * s.height});
    case kDesaturate:
      return plain(EditKind::kColor,
                   std::clamp(1.0 - std::clamp(0.5 + 0.5 * part, 0.5, 1.0), 0.0, 1.0));
    case kBlur: return plain(EditKind::kBlur, std::clamp(0.1 + (2.0 - 0.1) * part, 0.1, 2.0));
    case kBlurRand:
      return plain(EditKind::kBlur, 0.1 + (2.0 * std::clamp(part, 0.0, 1.0) - 0.1) * draw);
  }
  return std::nullopt;
}

// ---- torchvision's bins ----

// torch.linspace in single precision, with its fused products: they decide whether 16 pixels
// are 15.
double linspace(double start, double end, int count, int i) {
  const auto a = static_cast<float>(start), b = static_cast<float>(end);
  const float step = (b - a) / static_cast<float>(count - 1);
  return static_cast<double>(i < count / 2 ? std::fma(step, static_cast<float>(i), a)
                                           : std::fma(-step, static_cast<float>(count - 1 - i), b));
}

// functional.affine with a shear alone: degrees there and back again, as torchvision goes.
AffineMatrix shear(double across, double down) {
  const auto tangent_angle = [](double x) {
    return std::atan(x) * (180.0 / std::numbers::pi) * (std::numbers::pi / 180.0);
  };
  const double sx = tangent_angle(across), sy = tangent_angle(down);
  const double a = std::cos(-sy) / std::cos(sy), b = -std::cos(-sy) * std::tan(sx) / std::cos(sy);
  const double c = std::sin(-sy) / std::cos(sy),
               d = -std::sin(-sy) * std::tan(sx) / std::cos(sy) + 1.0;
  return {d, -b, 0, -c, a, 0};
}

// What the largest bin means to each operation.
struct BinRange {
  double shear, translate_x, translate_y, rotate, enhance, posterize;
};
BinRange range_of(LevelScale scale, const EditSettings& s) {
  if (scale == LevelScale::kThirty) return {0.99, 32.0, 32.0, 135.0, 0.99, 6};
  return {0.3, 150.0 / 331.0 * s.width, 150.0 / 331.0 * s.height, 30.0, 0.9, 4};
}

std::optional<Edit> at_bin(const Policy& policy, PolicyOp op, int bin, double draw,
                           const EditSettings& s) {
  const int bins = policy.scale == LevelScale::kThirty ? 31 : 10;
  const BinRange range = range_of(policy.scale, s);
  const double strength = policy.strength;
  const auto amount = [&](double most) {
    const double value = linspace(0, most * strength, bins, bin);
    return draw > 0.5 ? -value : value;
  };
  const auto shifted = [&](const AffineMatrix& m) { return affine(m, s, ByteColour{}); };
  switch (op) {
    case kAutoContrast: return plain(EditKind::kAutoContrast);
    case kEqualize: return plain(EditKind::kEqualize);
    case kInvert: return plain(EditKind::kInvert);
    case kShearX: return shifted(shear(amount(range.shear), 0));
    case kShearY: return shifted(shear(0, amount(range.shear)));
    case kTranslateX: return shifted({1, 0, -std::trunc(amount(range.translate_x)), 0, 1, 0});
    case kTranslateY: return shifted({1, 0, 0, 0, 1, -std::trunc(amount(range.translate_y))});
    case kRotate: return shifted(rotation(amount(range.rotate), s.height, s.width));
    case kColor:
    case kContrast:
    case kBrightness:
    case kSharpness: return plain(enhancement(op), 1.0 + amount(range.enhance));
    case kPosterize: {
      const double bits = bin / ((bins - 1) / (range.posterize * strength));
      return plain(EditKind::kPosterize, 8 - std::nearbyint(static_cast<float>(bits)));
    }
    case kSolarize:
      return plain(EditKind::kSolarize, linspace(255, 255 * (1 - strength), bins, bin));
    default: return std::nullopt;
  }
}

// ---- chance ----

double drawn_level(const Policy& policy, double level, PhiloxStream& random) {
  if (policy.scale != LevelScale::kTimm) {
    const uint32_t bins = policy.scale == LevelScale::kThirty ? 31 : 10;
    return level < 0 ? random.below(bins) : level;
  }
  if (std::isinf(policy.deviation))
    level = random.uniform(0, level);
  else if (policy.deviation > 0)
    level += policy.deviation * random.normal();
  return std::clamp(level, 0.0, policy.max_level);
}

// One of the choices, by weight; a chosen weight becomes 0.
size_t choose(const Policy& policy, std::vector<double>& weights, PhiloxStream& random) {
  if (weights.empty()) return random.below(static_cast<uint32_t>(policy.choices.size()));
  double at = random.uniform() * std::accumulate(weights.begin(), weights.end(), 0.0);
  size_t chosen = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    chosen = i, at -= weights[i];
    if (at < 0) break;
  }
  weights[chosen] = 0;
  return chosen;
}

}  // namespace

PolicyOp parse_op(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found == kNames.end())
    fail_usage("unknown operation '{}'{}", shown(name), did_you_mean(name, kNames));
  return static_cast<PolicyOp>(found - kNames.begin());
}

std::optional<Edit> edit_at(const Policy& policy, PolicyOp op, double level, double draw,
                            const EditSettings& settings) {
  if (policy.scale == LevelScale::kTimm) return at_timm(op, level, draw, settings);
  return at_bin(policy, op, static_cast<int>(level), draw, settings);
}

void draw_edits(const Policy& policy, const EditSettings& settings, PhiloxStream& random,
                std::vector<Edit>& edits) {
  std::vector<double> weights = policy.weights;
  for (int layer = 0; layer < policy.layers; ++layer) {
    for (const PolicyStep& step : policy.choices[choose(policy, weights, random)]) {
      if (random.uniform() >= step.probability) continue;
      EditSettings now = settings;
      if (settings.random_filter)
        now.filter = random.next_u32() >> 31 ? Filter::kBicubic : Filter::kBilinear;
      const double level = drawn_level(policy, step.level, random);
      if (const auto edit = edit_at(policy, step.op, level, random.uniform(), now))
        edits.push_back(*edit);
    }
  }
  if (policy.jitter > 0)
    draw_jitter({policy.jitter, policy.jitter, policy.jitter, 0}, random, edits);
}

void draw_jitter(const std::array<double, 4>& amounts, PhiloxStream& random,
                 std::vector<Edit>& edits) {
  constexpr std::array kKinds = {EditKind::kBrightness, EditKind::kContrast, EditKind::kColor,
                                 EditKind::kHue};
  std::array<Edit, 4> all;
  for (size_t i = 0; i < 4; ++i) {
    const double centre = i == 3 ? 0.0 : 1.0, low = centre - amounts[i];
    all[i] =
        plain(kKinds[i], random.uniform(i == 3 ? low : std::max(0.0, low), centre + amounts[i]));
  }
  std::array<size_t, 4> order = {0, 1, 2, 3};
  for (uint32_t i = 4; i > 1; --i) std::swap(order[i - 1], order[random.below(i)]);
  for (const size_t i : order)
    if (amounts[i] > 0) edits.push_back(all[i]);
}

}  // namespace vitrum
