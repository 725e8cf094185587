#include "vitrum/models/position_grid.h"

#include <algorithm>
#include <cmath>

namespace vitrum {
namespace {

// (out, in): the triangle is stretched when shrinking, cut at the edge and normalised.
std::vector<double> axis(int64_t in, int64_t out) {
  std::vector<double> weights(static_cast<size_t>(out * in), 0.0);
  const double scale = static_cast<double>(in) / static_cast<double>(out),
               reach = std::max(scale, 1.0);
  for (int64_t i = 0; i < out; ++i) {
    const double centre = (static_cast<double>(i) + 0.5) * scale;
    const auto first = std::max<int64_t>(0, static_cast<int64_t>(centre - reach + 0.5)),
               last = std::min<int64_t>(in, static_cast<int64_t>(centre + reach + 0.5));
    double* const row = weights.data() + i * in;
    double sum = 0;
    for (int64_t k = first; k < last; ++k) {
      row[k] = std::max(0.0, 1 - std::abs(static_cast<double>(k) + 0.5 - centre) / reach);
      sum += row[k];
    }
    for (int64_t k = first; k < last; ++k) row[k] /= sum;
  }
  return weights;
}

}  // namespace

std::vector<float> grid_resize(int64_t side, int64_t rows, int64_t columns) {
  const std::vector<double> down = axis(side, rows), across = axis(side, columns);
  std::vector<float> all;
  all.reserve(static_cast<size_t>(rows * columns * side * side));
  for (int64_t y = 0; y < rows; ++y)
    for (int64_t x = 0; x < columns; ++x)
      for (int64_t v = 0; v < side; ++v)
        for (int64_t u = 0; u < side; ++u)
          all.push_back(static_cast<float>(down[static_cast<size_t>(y * side + v)] *
                                           across[static_cast<size_t>(x * side + u)]));
  return all;
}

}  // namespace vitrum
