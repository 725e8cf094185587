#include "vitrum/data/resize.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <numbers>

#include "vitrum/core/error.h"
#include "vitrum/core/nearest.h"

namespace vitrum {
namespace {

// Weights are integers scaled by 2^22: the sum of 8-bit pixels times weights keeps a bit for
// overshoot and a sign.
constexpr int kPrecision = 22;
constexpr int32_t kHalf = 1 << (kPrecision - 1);

uint8_t to_pixel(int32_t sum) {
  return static_cast<uint8_t>(std::clamp(sum >> kPrecision, 0, 255));
}

double sinc(double x) {
  x *= std::numbers::pi;
  return x == 0.0 ? 1.0 : std::sin(x) / x;
}

double bicubic(double x) {
  constexpr double kA = -0.5;
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1;
  return x < 2.0 ? (((x - 5) * x + 8) * x - 4) * kA : 0.0;
}

double hamming(double x) {
  return x < 1.0 ? sinc(x) * (0.54 + 0.46 * std::cos(std::numbers::pi * x)) : 0.0;
}

double weight(Filter filter, double x) {
  const double distance = std::abs(x);
  switch (filter) {
    case Filter::kBox: return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
    case Filter::kBilinear: return std::max(0.0, 1.0 - distance);
    case Filter::kHamming: return hamming(distance);
    case Filter::kBicubic: return bicubic(distance);
    case Filter::kLanczos: return x >= -3.0 && x < 3.0 ? sinc(x) * sinc(x / 3.0) : 0.0;
    case Filter::kNearest: break;
  }
  return 0.0;
}

double support_of(Filter filter) {
  switch (filter) {
    case Filter::kNearest: return 0.0;
    case Filter::kBox: return 0.5;
    case Filter::kBilinear:
    case Filter::kHamming: return 1.0;
    case Filter::kBicubic: return 2.0;
    case Filter::kLanczos: return 3.0;
  }
  return 0.0;
}

int32_t to_fixed(double weight) {
  return static_cast<int32_t>(weight * (1 << kPrecision) + (weight < 0 ? -0.5 : 0.5));
}

// The intermediate image is rounded to 8 bits, so the order of the passes shows. This is the rule
// of Pillow 13, found by experiment; releases up to 12.0 always begin with the horizontal pass.
bool vertical_first(const Image& in, int height, int width) {
  return height < in.height && in.height - height > 2 * (in.width - width);
}

const std::array<std::string, 6> kNames = {"nearest", "box",     "bilinear",
                                           "hamming", "bicubic", "lanczos"};

}  // namespace

Filter parse_filter(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found != kNames.end()) return static_cast<Filter>(found - kNames.begin());
  fail_usage("unknown interpolation '{}'{}", name, did_you_mean(name, kNames));
}

std::string_view name_of(Filter filter) { return kNames[static_cast<size_t>(filter)]; }

void Resizer::Axis::prepare(int in_size, int out_size, Filter with) {
  if (in == in_size && out == out_size && filter == with) return;
  in = in_size, out = out_size, filter = with;
  const double scale = static_cast<double>(in) / out;
  const double stretch = std::max(scale, 1.0);  // antialiasing: shrinking widens the filter
  const double support = support_of(filter) * stretch;
  const auto length = static_cast<size_t>(out);
  taps = static_cast<int>(std::ceil(support)) * 2 + 1;
  first.resize(length), count.resize(length);
  weights.assign(length * static_cast<size_t>(taps), 0);
  std::vector<double> exact(static_cast<size_t>(taps));
  for (size_t i = 0; i < length; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    first[i] = std::max(0, static_cast<int>(std::floor(center - support + 0.5)));
    count[i] = std::min(in, static_cast<int>(std::floor(center + support + 0.5))) - first[i];
    double total = 0.0;
    for (int k = 0; k < count[i]; ++k) {
      // Reciprocal, then product: the rounding that Pillow has.
      exact[static_cast<size_t>(k)] =
          weight(filter, (k + first[i] - center + 0.5) * (1.0 / stretch));
      total += exact[static_cast<size_t>(k)];
    }
    int32_t* const fixed = weights.data() + i * static_cast<size_t>(taps);
    for (int k = 0; k < count[i]; ++k) {
      const double w = exact[static_cast<size_t>(k)];
      fixed[k] = to_fixed(total == 0.0 ? w : w / total);
    }
  }
}

void Resizer::pass_horizontal(const Image& in, Image& out) const {
  out.reshape(in.channels, in.height, horizontal_.out);
  const auto out_width = static_cast<size_t>(out.width);
  const int rows = in.channels * in.height;
  for (int row = 0; row < rows; ++row) {
    const uint8_t* const source =
        in.pixels.data() + static_cast<size_t>(row) * static_cast<size_t>(in.width);
    uint8_t* const target = out.pixels.data() + static_cast<size_t>(row) * out_width;
    for (size_t x = 0; x < out_width; ++x) {
      const int32_t* const w =
          horizontal_.weights.data() + x * static_cast<size_t>(horizontal_.taps);
      const uint8_t* const pixel = source + horizontal_.first[x];
      int32_t sum = kHalf;
      for (int k = 0; k < horizontal_.count[x]; ++k) sum += pixel[k] * w[k];
      target[x] = to_pixel(sum);
    }
  }
}

void Resizer::pass_vertical(const Image& in, Image& out) {
  out.reshape(in.channels, vertical_.out, in.width);
  const auto width = static_cast<size_t>(in.width);
  sums_.resize(width);
  for (int channel = 0; channel < in.channels; ++channel) {
    for (size_t y = 0; y < static_cast<size_t>(vertical_.out); ++y) {
      const int32_t* const w = vertical_.weights.data() + y * static_cast<size_t>(vertical_.taps);
      const uint8_t* source = in.plane(channel) + static_cast<size_t>(vertical_.first[y]) * width;
      std::fill(sums_.begin(), sums_.end(), kHalf);
      for (int k = 0; k < vertical_.count[y]; ++k, source += width) {
        for (size_t x = 0; x < width; ++x) sums_[x] += source[x] * w[k];
      }
      std::transform(sums_.begin(), sums_.end(), out.plane(channel) + y * width, to_pixel);
    }
  }
}

// Positions are accumulated rather than multiplied, as Pillow does; the last bit decides at some
// sizes.
void Resizer::resize_nearest(const Image& in, Image& out) {
  const auto positions = [](int in_size, int out_size, std::vector<int>& at) {
    const double scale = static_cast<double>(in_size) / out_size;
    double position = scale * 0.5;
    at.resize(static_cast<size_t>(out_size));
    for (int& i : at) i = std::min(static_cast<int>(position), in_size - 1), position += scale;
  };
  positions(in.width, out.width, horizontal_.first);
  positions(in.height, out.height, vertical_.first);
  horizontal_.in = vertical_.in = 0;  // the tables no longer hold a convolution
  uint8_t* target = out.pixels.data();
  for (int channel = 0; channel < in.channels; ++channel) {
    for (const int y : vertical_.first) {
      const uint8_t* const row =
          in.plane(channel) + static_cast<size_t>(y) * static_cast<size_t>(in.width);
      for (const int x : horizontal_.first) *target++ = row[x];
    }
  }
}

void Resizer::resize(const Image& in, int height, int width, Filter filter, Image& out) {
  assert(height > 0 && width > 0 && &in != &out);
  if (height == in.height && width == in.width) {
    out = in;
    return;
  }
  if (filter == Filter::kNearest) {
    out.reshape(in.channels, height, width);
    return resize_nearest(in, out);
  }
  horizontal_.prepare(in.width, width, filter);
  vertical_.prepare(in.height, height, filter);
  if (height == in.height) return pass_horizontal(in, out);
  if (width == in.width) return pass_vertical(in, out);
  if (vertical_first(in, height, width)) {
    pass_vertical(in, between_);
    pass_horizontal(between_, out);
  } else {
    pass_horizontal(in, between_);
    pass_vertical(between_, out);
  }
}

Image resize(const Image& in, int height, int width, Filter filter) {
  Resizer resizer;
  Image out;
  resizer.resize(in, height, width, filter, out);
  return out;
}

}  // namespace vitrum
