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

std::string tick_label(double x, double step) {
  if (std::abs(x) < step / 2) return "0";
  const int digits = static_cast<int>(std::ceil(-std::log10(step) - 1e-9));
  if (digits <= 3 && std::abs(x) < 1e6) return fmt::format("{:.{}f}", x, std::max(0, digits));
  const int exponent = static_cast<int>(std::floor(std::log10(std::abs(x)) + 1e-9));
  return fmt::format("{:g}e{}", std::round(x / step) * step / std::pow(10, exponent), exponent);
}

}  // namespace vitrum
