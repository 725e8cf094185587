#include "vitrum/data/mix.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace vitrum {
namespace {

// Gamma(alpha, 1) by Marsaglia and Tsang, 2000.
double draw_gamma(double alpha, PhiloxStream& random) {
  if (alpha < 1)
    return draw_gamma(alpha + 1, random) * std::pow(1.0 - random.uniform(), 1.0 / alpha);
  const double d = alpha - 1.0 / 3, c = 1.0 / std::sqrt(9.0 * d);
  while (true) {
    const double x = random.normal(), v = std::pow(1.0 + c * x, 3);
    if (v > 0 && std::log(1.0 - random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v))
      return d * v;
  }
}

}  // namespace

double own_share(const MixRow& row, int height, int width) {
  const double box = static_cast<double>(row.bottom - row.top) * (row.right - row.left);
  return row.own * (1.0 - box / (static_cast<double>(height) * width));
}

Window cutmix_box(double lambda, int y, int x, int height, int width) {
  const double ratio = std::sqrt(1.0 - lambda);
  const int rows = static_cast<int>(height * ratio), columns = static_cast<int>(width * ratio);
  const int top = std::clamp(y - rows / 2, 0, height),
            bottom = std::clamp(y + (rows + 1) / 2, 0, height);
  const int left = std::clamp(x - columns / 2, 0, width),
            right = std::clamp(x + (columns + 1) / 2, 0, width);
  return {top, left, bottom - top, right - left};
}

double draw_beta(double alpha, PhiloxStream& random) {
  const double a = draw_gamma(alpha, random), b = draw_gamma(alpha, random);
  return a + b > 0 ? a / (a + b) : 0.5;  // both vanish only for the smallest of alphas
}

void draw_mix(const MixConfig& config, int64_t count, int height, int width, PhiloxStream random,
              std::span<MixRow> rows) {
  assert(count <= static_cast<int64_t>(rows.size()));
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = {.partner = static_cast<float>(i)};
  if (!config.any() || random.uniform() >= config.probability) return;
  const bool cuts =
      config.mixup <= 0 || (config.cutmix > 0 && random.uniform() < config.switch_probability);
  const double lambda = draw_beta(cuts ? config.cutmix : config.mixup, random);
  MixRow row;
  if (cuts) {
    const int y = static_cast<int>(random.below(static_cast<uint32_t>(height))),
              x = static_cast<int>(random.below(static_cast<uint32_t>(width)));
    const Window box = cutmix_box(lambda, y, x, height, width);
    row.top = static_cast<float>(box.top), row.bottom = static_cast<float>(box.top + box.height);
    row.left = static_cast<float>(box.left), row.right = static_cast<float>(box.left + box.width);
  } else {
    row.own = static_cast<float>(lambda);
  }
  for (int64_t i = 0; i < count; ++i) {
    row.partner = static_cast<float>(count - 1 - i);
    rows[static_cast<size_t>(i)] = row;
  }
}

void mix_targets(std::span<const int32_t> labels, std::span<const MixRow> rows, int height,
                 int width, int64_t classes, std::span<float> targets) {
  assert(targets.size() == rows.size() * static_cast<size_t>(classes));
  std::fill(targets.begin(), targets.end(), 0.f);
  for (size_t i = 0; i < rows.size(); ++i) {
    const double share = own_share(rows[i], height, width);
    float* const row = targets.data() + i * static_cast<size_t>(classes);
    row[labels[i]] += static_cast<float>(share);
    row[labels[static_cast<size_t>(rows[i].partner)]] += static_cast<float>(1.0 - share);
  }
}

}  // namespace vitrum
