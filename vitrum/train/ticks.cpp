#include "vitrum/train/ticks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace vitrum {

Ticks nice_ticks(double low, double high, int count, bool whole) {
  // One value, or values a double hardly tells apart: make room round them.
  if (high - low <= 1e-9 * std::max(std::abs(low), std::abs(high))) {
    const double pad = low == 0 ? 1 : std::abs(low) / 2;
    low -= pad, high += pad;
  }
  const double raw = (high - low) / count;
  const double power = std::pow(10, std::floor(std::log10(raw)));
  const double lead = raw / power;
  double step = power * (lead <= 1 ? 1 : lead <= 2 ? 2 : lead <= 5 ? 5 : 10);
  if (whole) step = std::max(1.0, step);
  Ticks ticks{{}, step};
  const double first = std::floor(low / step + 1e-9), last = std::ceil(high / step - 1e-9);
  for (double i = 0; i <= last - first; ++i) ticks.at.push_back((first + i) * step);
  return ticks;
}

AxisLabels axis_labels(const Ticks& ticks) {
  const double largest = std::max(std::abs(ticks.at.front()), std::abs(ticks.at.back()));
  const int plain = static_cast<int>(std::ceil(-std::log10(ticks.step) - 1e-9));
  const bool scaled = plain > 4 || largest >= 1e6;
  const int power = scaled ? static_cast<int>(std::floor(std::log10(largest) + 1e-9)) : 0;
  AxisLabels labels;
  if (scaled) labels.unit = fmt::format("x 1e{}", power);
  for (const double x : ticks.at)
    labels.texts.push_back(fmt::format("{:.{}f}",
                                       std::abs(x) < ticks.step / 2 ? 0 : x / std::pow(10, power),
                                       std::clamp(plain + power, 0, 9)));
  return labels;
}

}  // namespace vitrum
