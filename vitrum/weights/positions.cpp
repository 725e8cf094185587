#include "vitrum/weights/positions.h"

#include <algorithm>
#include <cassert>
#include <cmath>

namespace vitrum {
namespace {

// One output position along an axis: weights of the inputs from `first` on.
struct Taps {
  int64_t first;
  std::vector<double> weights;
};

// Keys' cubic convolution.
double cubic(double x, double a) {
  x = std::abs(x);
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a;
  return 0;
}
double triangle(double x) { return std::max(0.0, 1 - std::abs(x)); }

// Interpolation at `at`, in units of inputs; what lies beyond the edge is the edge.
template <class Kernel>
Taps interpolate(double at, int64_t in, int reach, const Kernel& kernel) {
  const auto base = static_cast<int64_t>(std::floor(at)) - reach + 1;
  const int64_t low = std::clamp<int64_t>(base, 0, in - 1),
                high = std::clamp<int64_t>(base + 2 * reach - 1, 0, in - 1);
  Taps taps{low, std::vector<double>(static_cast<size_t>(high - low + 1), 0.0)};
  for (int64_t i = base; i < base + 2 * reach; ++i)
    taps.weights[static_cast<size_t>(std::clamp(i, low, high) - low)] +=
        kernel(at - static_cast<double>(i));
  return taps;
}

// As Pillow resizes: the kernel is stretched when shrinking, cut at the edge and normalised.
Taps antialiased(double centre, int64_t in, double scale) {
  const double stretch = std::max(scale, 1.0), support = 2 * stretch;
  const auto low = std::max<int64_t>(0, static_cast<int64_t>(centre - support + 0.5)),
             high = std::min<int64_t>(in, static_cast<int64_t>(centre + support + 0.5));
  Taps taps{low, {}};
  double sum = 0;
  for (int64_t i = low; i < high; ++i) {
    taps.weights.push_back(cubic((static_cast<double>(i) + 0.5 - centre) / stretch, -0.5));
    sum += taps.weights.back();
  }
  for (double& w : taps.weights) w /= sum;
  return taps;
}

// Distances 0, 1, 1 + q, 1 + q + q^2, .. of the inputs on both sides of the middle, such that they
// end where the outputs, at whole distances, do; linear in between. From BEiT.
std::vector<Taps> geometric(int64_t in, int64_t out) {
  const int64_t half = in / 2;
  double low = 1.01, high = 1.5, q = low;
  while (high - low > 1e-6) {
    q = (low + high) / 2;
    const double reach = (1 - std::pow(q, static_cast<double>(half))) / (1 - q);
    (reach > static_cast<double>(out / 2) ? high : low) = q;
  }
  std::vector<double> at(static_cast<size_t>(in), 0.0);
  double distance = 0;
  for (int64_t i = 1; i <= half; ++i) {
    distance += std::pow(q, static_cast<double>(i - 1));
    at[static_cast<size_t>(half + i)] = distance, at[static_cast<size_t>(half - i)] = -distance;
  }
  std::vector<Taps> all;
  for (int64_t i = 0; i < out; ++i) {
    const double x = std::clamp(static_cast<double>(i - out / 2), at.front(), at.back());
    const auto right = std::max<int64_t>(1, std::lower_bound(at.begin(), at.end(), x) - at.begin());
    if (in == 1) {
      all.push_back({0, {1.0}});
      continue;
    }
    const double a = at[static_cast<size_t>(right - 1)], b = at[static_cast<size_t>(right)];
    all.push_back({right - 1, {(b - x) / (b - a), (x - a) / (b - a)}});
  }
  return all;
}

std::vector<Taps> axis(int64_t in, int64_t out, PositionRule rule) {
  const double scale = static_cast<double>(in) / static_cast<double>(out);
  constexpr double kOffset = 0.1;  // patches
  const double offset_scale = static_cast<double>(in) / (static_cast<double>(out) + kOffset);
  const double corner_scale =
      out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
  const auto smooth = [](double x) { return cubic(x, -0.75); };
  if (rule == PositionRule::kGeometric) return geometric(in, out);
  std::vector<Taps> all;
  for (int64_t i = 0; i < out; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale,
                 aligned = static_cast<double>(i) * corner_scale;
    switch (rule) {
      case PositionRule::kBicubicAntialias: all.push_back(antialiased(centre, in, scale)); break;
      case PositionRule::kBicubic: all.push_back(interpolate(centre - 0.5, in, 2, smooth)); break;
      case PositionRule::kBicubicOffset:
        all.push_back(
            interpolate((static_cast<double>(i) + 0.5) * offset_scale - 0.5, in, 2, smooth));
        break;
      case PositionRule::kBicubicAlignCorners:
        all.push_back(interpolate(aligned, in, 2, smooth));
        break;
      case PositionRule::kBilinear:
        all.push_back(interpolate(std::max(centre - 0.5, 0.0), in, 1, triangle));
        break;
      case PositionRule::kGeometric: break;
      case PositionRule::kZoom: all.push_back(interpolate(aligned, in, 1, triangle)); break;
    }
  }
  return all;
}

// (outer, taps of one axis, inner) contiguous: the axis becomes taps.size() long.
std::vector<double> apply(const std::vector<double>& in, int64_t outer, int64_t length,
                          int64_t inner, const std::vector<Taps>& taps) {
  std::vector<double> out(static_cast<size_t>(outer * inner) * taps.size(), 0.0);
  double* to = out.data();
  for (int64_t o = 0; o < outer; ++o)
    for (const Taps& t : taps) {
      for (size_t k = 0; k < t.weights.size(); ++k) {
        const double* from = in.data() + (o * length + t.first + static_cast<int64_t>(k)) * inner;
        for (int64_t c = 0; c < inner; ++c) to[c] += t.weights[k] * from[c];
      }
      to += inner;
    }
  return out;
}

// A matrix by rows.
struct Dense {
  int64_t rows, columns;
  std::vector<double> at;
  double& operator()(int64_t r, int64_t c) { return at[static_cast<size_t>(r * columns + c)]; }
  double operator()(int64_t r, int64_t c) const { return at[static_cast<size_t>(r * columns + c)]; }
};

Dense transposed(const Dense& a) {
  Dense t{a.columns, a.rows, std::vector<double>(a.at.size())};
  for (int64_t r = 0; r < a.rows; ++r)
    for (int64_t c = 0; c < a.columns; ++c) t(c, r) = a(r, c);
  return t;
}

// (a a^T)^-1 a of a matrix with as many columns as rows or more: the transpose of its
// pseudo-inverse. By Gauss and Jordan; a a^T is positive definite, so that no pivot has to be
// looked for.
Dense dual(Dense a) {
  const int64_t n = a.rows;
  Dense gram{n, n, std::vector<double>(static_cast<size_t>(n * n), 0.0)};
  for (int64_t r = 0; r < n; ++r)
    for (int64_t c = 0; c < n; ++c)
      for (int64_t k = 0; k < a.columns; ++k) gram(r, c) += a(r, k) * a(c, k);
  for (int64_t p = 0; p < n; ++p) {
    const double pivot = gram(p, p);
    assert(pivot > 0);
    for (int64_t c = 0; c < n; ++c) gram(p, c) /= pivot;
    for (int64_t c = 0; c < a.columns; ++c) a(p, c) /= pivot;
    for (int64_t r = 0; r < n; ++r) {
      const double factor = r == p ? 0 : gram(r, p);
      if (factor == 0) continue;
      for (int64_t c = 0; c < n; ++c) gram(r, c) -= factor * gram(p, c);
      for (int64_t c = 0; c < a.columns; ++c) a(r, c) -= factor * a(p, c);
    }
  }
  return a;
}

// What weights go through along one axis where patches are resized: the pseudo-inverse of the
// resizing's transpose, (out, in).
std::vector<Taps> patch_axis(int64_t in, int64_t out, PositionRule rule) {
  Dense resize{out, in, std::vector<double>(static_cast<size_t>(out * in), 0.0)};
  const std::vector<Taps> taps = axis(in, out, rule);
  for (int64_t r = 0; r < out; ++r) {
    const Taps& t = taps[static_cast<size_t>(r)];
    for (size_t k = 0; k < t.weights.size(); ++k)
      resize(r, t.first + static_cast<int64_t>(k)) = t.weights[k];
  }
  const Dense inverse = out <= in ? dual(resize) : transposed(dual(transposed(resize)));
  std::vector<Taps> all;
  for (int64_t r = 0; r < out; ++r) {
    const auto row = inverse.at.begin() + static_cast<ptrdiff_t>(r * in);
    all.push_back({0, {row, row + static_cast<ptrdiff_t>(in)}});
  }
  return all;
}

}  // namespace

const char* name_of(PositionRule rule) {
  switch (rule) {
    case PositionRule::kBicubicAntialias: return "bicubic, antialiased";
    case PositionRule::kBicubic: return "bicubic";
    case PositionRule::kBicubicOffset: return "bicubic, as Meta's DINOv2";
    case PositionRule::kBicubicAlignCorners: return "bicubic, corners aligned";
    case PositionRule::kBilinear: return "bilinear";
    case PositionRule::kGeometric: return "linear, as timm";
    case PositionRule::kZoom: return "bilinear, corners aligned";
  }
  return "";
}

std::vector<float> resample_positions(std::span<const float> positions, int64_t prefix,
                                      int64_t width, Grid from, Grid to, PositionRule rule) {
  assert(static_cast<int64_t>(positions.size()) == (prefix + from.rows * from.columns) * width);
  const auto kept = positions.first(static_cast<size_t>(prefix * width));
  const auto patches = positions.subspan(kept.size());
  const std::vector<double> wide = apply({patches.begin(), patches.end()}, from.rows, from.columns,
                                         width, axis(from.columns, to.columns, rule));
  const std::vector<double> all =
      apply(wide, 1, from.rows, to.columns * width, axis(from.rows, to.rows, rule));
  std::vector<float> out(kept.begin(), kept.end());
  out.reserve(kept.size() + all.size());
  for (const double x : all) out.push_back(static_cast<float>(x));
  return out;
}

std::vector<float> resample_patches(std::span<const float> weights, Grid from, Grid to,
                                    PositionRule rule) {
  const int64_t count = static_cast<int64_t>(weights.size()) / (from.rows * from.columns);
  const std::vector<double> wide =
      apply({weights.begin(), weights.end()}, count * from.rows, from.columns, 1,
            patch_axis(from.columns, to.columns, rule));
  const std::vector<double> all =
      apply(wide, count, from.rows, to.columns, patch_axis(from.rows, to.rows, rule));
  return {all.begin(), all.end()};
}

}  // namespace vitrum
