#include "vitrum/data/resize.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <numbers>

#include "vitrum/core/error.h"
#include "vitrum/core/nearest.h"
#include "vitrum/core/shown.h"

namespace vitrum {
namespace {

double sinc(double x) {
  x *= std::numbers::pi;
  return x == 0.0 ? 1.0 : std::sin(x) / x;
}

double bicubic(double x) {
  constexpr double kA = -0.5;
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1;
  return x < 2.0 ? (((x - 5) * x + 8) * x - 4) * kA : 0.0;
}

// Pillow's two constants are single precision, and that shows in a byte now and then.
double hamming(double x) {
  return x < 1.0 ? sinc(x) * (double{0.54f} + double{0.46f} * std::cos(std::numbers::pi * x)) : 0.0;
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
  return static_cast<int32_t>(weight * (1 << kWeightBits) + (weight < 0 ? -0.5 : 0.5));
}

// The intermediate image is rounded to 8 bits, so the order of the passes shows. This is the rule
// of Pillow 13, found by experiment; releases up to 12.3 always begin with the horizontal pass.
bool vertical_first(const Image& in, int height, int width) {
  return height < in.height && in.height - height > 2 * (in.width - width);
}

void copy_window(const Image& in, int channel, const Window& window, uint8_t* out) {
  const auto width = static_cast<size_t>(window.width), stride = static_cast<size_t>(in.width);
  const uint8_t* row = in.plane(channel) + static_cast<size_t>(window.top) * stride + window.left;
  for (int y = 0; y < window.height; ++y, row += stride, out += width) std::copy_n(row, width, out);
}

const std::array<std::string, 6> kNames = {"nearest", "box",     "bilinear",
                                           "hamming", "bicubic", "lanczos"};

}  // namespace

Filter parse_filter(std::string_view name) {
  const auto found = std::find(kNames.begin(), kNames.end(), name);
  if (found != kNames.end()) return static_cast<Filter>(found - kNames.begin());
  fail_usage("unknown interpolation '{}'{}", shown(name), did_you_mean(name, kNames));
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
  pairs.resize(length * pairs_of(static_cast<size_t>(taps)));
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
    pair_up({fixed, static_cast<size_t>(count[i])},
            pairs.data() + i * pairs_of(static_cast<size_t>(taps)));
  }
}

void Resizer::Axis::weigh(int i, const uint8_t* rows, size_t stride, size_t width,
                          uint8_t* to) const {
  const auto at = static_cast<size_t>(i), n = static_cast<size_t>(count[at]);
  const auto all = static_cast<size_t>(taps);
  weigh_rows(rows, stride, {weights.data() + at * all, n},
             {pairs.data() + at * pairs_of(all), pairs_of(n)}, width, to);
}

// Bands of rows are turned on their side, so that both passes are sums of whole rows.
void Resizer::pass_horizontal(const Rows& in, const Window& window, uint8_t* out) {
  constexpr size_t kBand = 64;  // a multiple of what weigh_rows takes at a time
  const int begin = horizontal_.first_of(window.left);
  const auto columns = static_cast<size_t>(horizontal_.last_of(window.left + window.width) - begin);
  const auto width = static_cast<size_t>(window.width);
  columns_.resize(columns * kBand), narrow_.resize(width * kBand);
  for (size_t row = 0; row < in.count; row += kBand) {
    const size_t rows = std::min(kBand, in.count - row);
    transpose(in.data + row * in.stride + (begin - in.skipped), in.stride, rows, columns,
              columns_.data(), kBand);
    for (size_t x = 0; x < width; ++x) {
      const int i = window.left + static_cast<int>(x);
      const auto from = static_cast<size_t>(horizontal_.first_of(i) - begin);
      horizontal_.weigh(i, columns_.data() + from * kBand, kBand, (rows + 31) / 32 * 32,
                        narrow_.data() + x * kBand);
    }
    transpose(narrow_.data(), kBand, width, rows, out + row * width, width);
  }
}

void Resizer::pass_vertical(const Rows& in, const Window& window, size_t columns, uint8_t* out) {
  for (int y = window.top; y < window.top + window.height; ++y, out += columns) {
    const auto from = static_cast<size_t>(vertical_.first_of(y) - in.skipped);
    vertical_.weigh(y, in.data + from * in.stride, in.stride, columns, out);
  }
}

void Resizer::resize_plane(const uint8_t* in, const Window& w, bool vertical_first, uint8_t* out) {
  const auto stride = static_cast<size_t>(horizontal_.in), width = static_cast<size_t>(w.width),
             height = static_cast<size_t>(w.height);
  const bool across = horizontal_.in != horizontal_.out, down = vertical_.in != vertical_.out;
  const auto row = [&](int y) { return in + static_cast<size_t>(y) * stride; };
  if (!down) return pass_horizontal({row(w.top), stride, height, 0}, w, out);
  if (!across) return pass_vertical({in + w.left, stride, 0, 0}, w, width, out);
  if (vertical_first) {
    const int begin = horizontal_.first_of(w.left), end = horizontal_.last_of(w.left + w.width);
    const auto columns = static_cast<size_t>(end - begin);
    between_.resize(height * columns);
    pass_vertical({in + begin, stride, 0, 0}, w, columns, between_.data());
    return pass_horizontal({between_.data(), columns, height, begin}, w, out);
  }
  const int begin = vertical_.first_of(w.top), end = vertical_.last_of(w.top + w.height);
  const auto rows = static_cast<size_t>(end - begin);
  between_.resize(rows * width);
  pass_horizontal({row(begin), stride, rows, 0}, w, between_.data());
  pass_vertical({between_.data(), width, rows, begin}, w, width, out);
}

// Positions are accumulated rather than multiplied, as Pillow does; the last bit decides at some
// sizes.
void Resizer::resize_nearest(const Image& in, int height, int width, const Window& window,
                             uint8_t* out) {
  const auto positions = [](int in_size, int out_size, std::vector<int>& at) {
    const double scale = static_cast<double>(in_size) / out_size;
    double position = scale * 0.5;
    at.resize(static_cast<size_t>(out_size));
    for (int& i : at) i = std::min(static_cast<int>(position), in_size - 1), position += scale;
  };
  positions(in.width, width, horizontal_.first);
  positions(in.height, height, vertical_.first);
  horizontal_.in = vertical_.in = 0;  // the tables no longer hold a convolution
  for (int channel = 0; channel < in.channels; ++channel) {
    for (int y = window.top; y < window.top + window.height; ++y) {
      const auto from = static_cast<size_t>(vertical_.first_of(y)) * static_cast<size_t>(in.width);
      const uint8_t* const row = in.plane(channel) + from;
      for (int x = window.left; x < window.left + window.width; ++x)
        *out++ = row[horizontal_.first_of(x)];
    }
  }
}

void Resizer::resize(const Image& in, int height, int width, Filter filter, const Window& window,
                     uint8_t* out) {
  assert(height > 0 && width > 0 && window.top >= 0 && window.left >= 0);
  assert(window.top + window.height <= height && window.left + window.width <= width);
  const bool same = height == in.height && width == in.width;
  if (!same && filter == Filter::kNearest) return resize_nearest(in, height, width, window, out);
  if (!same) {
    horizontal_.prepare(in.width, width, filter);
    vertical_.prepare(in.height, height, filter);
  }
  const auto bytes = static_cast<size_t>(window.height) * static_cast<size_t>(window.width);
  for (int channel = 0; channel < in.channels; ++channel, out += bytes) {
    if (same)
      copy_window(in, channel, window, out);
    else
      resize_plane(in.plane(channel), window, vertical_first(in, height, width), out);
  }
}

void Resizer::resize(const Image& in, int height, int width, Filter filter, Image& out) {
  assert(&in != &out);
  out.reshape(in.channels, height, width);
  resize(in, height, width, filter, {0, 0, height, width}, out.pixels.data());
}

Image resize(const Image& in, int height, int width, Filter filter) {
  Resizer resizer;
  Image out;
  resizer.resize(in, height, width, filter, out);
  return out;
}

}  // namespace vitrum
