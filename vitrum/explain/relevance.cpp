#include "vitrum/explain/relevance.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <numeric>

namespace vitrum {
namespace {

using Matrix = std::vector<double>;    // (size, size) of one window
using TokenRow = std::vector<double>;  // one number a token

// How the head weighs the tokens of its grid.
TokenRow readout(const TokenGrid& grid) {
  if (!grid.shares.empty()) return grid.shares;
  TokenRow r(static_cast<size_t>(grid.tokens()), 0.0);
  if (grid.readout.empty())
    std::fill(r.begin() + grid.prefix, r.end(), 1 / static_cast<double>(grid.patches()));
  for (int64_t t : grid.readout)
    r[static_cast<size_t>(t)] += 1 / static_cast<double>(grid.readout.size());
  return r;
}

PatchMap patches_of(const TokenRow& r, const TokenGrid& grid) {
  return {grid.rows, grid.columns, {r.begin() + grid.prefix, r.end()}};
}

double combine(HeadFusion fusion, double a, double b) {
  switch (fusion) {
    case HeadFusion::kMax: return std::max(a, b);
    case HeadFusion::kMin: return std::min(a, b);
    case HeadFusion::kMean: break;
  }
  return a + b;
}

// Rows [first, last) of all heads' matrices as one.
Matrix fused(const LayerAttention& layer, int64_t window, HeadFusion fusion, int64_t first,
             int64_t last) {
  Matrix a(static_cast<size_t>((last - first) * layer.size));
  for (int64_t h = 0; h < layer.heads; ++h) {
    const float* p = layer.matrix(layer.weights, window, h) + first * layer.size;
    if (h == 0)
      std::copy_n(p, a.size(), a.begin());
    else
      for (size_t i = 0; i < a.size(); ++i) a[i] = combine(fusion, a[i], static_cast<double>(p[i]));
  }
  if (fusion == HeadFusion::kMean)
    for (double& x : a) x /= static_cast<double>(layer.heads);
  return a;
}

// In four sums beside each other: one alone would wait for itself.
double dot(const float* a, const double* b, size_t n) {
  std::array<double, 4> sums{};
  size_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (size_t j = 0; j < 4; ++j) sums[j] += static_cast<double>(a[i + j]) * b[i + j];
  for (; i < n; ++i) sums[0] += static_cast<double>(a[i]) * b[i];
  return sums[0] + sums[1] + sums[2] + sums[3];
}

// The smallest share of the elements becomes 0; of equal ones the first.
void discard_smallest(Matrix& a, double share) {
  const auto count = static_cast<size_t>(share * static_cast<double>(a.size()));
  std::vector<uint32_t> order(a.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto end = order.begin() + static_cast<ptrdiff_t>(count);
  std::nth_element(order.begin(), end, order.end(),
                   [&](uint32_t i, uint32_t j) { return a[i] != a[j] ? a[i] < a[j] : i < j; });
  std::for_each(order.begin(), end, [&](uint32_t i) { a[i] = 0; });
}

// to += r a, for the tokens of one window; row_of(t) is where row t of `a` starts. Rows that count
// for nothing are not asked for: all but one, where a class token is read.
template <class RowOf>
void add_product(const LayerAttention& layer, int64_t window, const TokenRow& r,
                 const RowOf& row_of, TokenRow& to) {
  const int64_t* place = layer.place.data() + window * layer.size;
  for (int64_t t = 0; t < layer.size; ++t) {
    const double factor = place[t] < 0 ? 0 : r[static_cast<size_t>(place[t])];
    if (factor == 0) continue;
    const auto& row = row_of(t);
    for (int64_t u = 0; u < layer.size; ++u)
      if (place[u] >= 0)
        to[static_cast<size_t>(place[u])] +=
            factor * static_cast<double>(row[static_cast<size_t>(u)]);
  }
}
void add_product(const LayerAttention& layer, int64_t window, const TokenRow& r, const Matrix& a,
                 TokenRow& to) {
  add_product(
      layer, window, r, [&](int64_t t) { return a.data() + t * layer.size; }, to);
}

// Where patches were merged on the way up, each merged one's share is spread over what it came
// from.
TokenRow spread(const TokenRow& r, const TokenGrid& from, const TokenGrid& to) {
  if (from.rows == to.rows && from.columns == to.columns) return r;
  assert(from.prefix == 0 && to.prefix == 0);
  const auto merged = [&](int64_t i) {
    return static_cast<size_t>(i / to.columns * from.rows / to.rows * from.columns +
                               i % to.columns * from.columns / to.columns);
  };
  std::vector<double> parts(r.size(), 0);
  for (int64_t i = 0; i < to.patches(); ++i) ++parts[merged(i)];
  TokenRow out(static_cast<size_t>(to.patches()));
  for (int64_t i = 0; i < to.patches(); ++i)
    out[static_cast<size_t>(i)] = r[merged(i)] / parts[merged(i)];
  return out;
}

// The rows that the head reads of a product of one matrix a layer, the last layer leftmost:
// a row vector goes through the layers from the last to the first. step(layer, r) -> r times the
// layer's matrix.
template <class Step>
PatchMap through_layers(std::span<const LayerAttention> layers, const Step& step) {
  assert(!layers.empty());
  TokenRow r = readout(layers.back().grid);
  for (size_t l = layers.size(); l-- > 0;) {
    if (l + 1 < layers.size()) r = spread(r, layers[l + 1].grid, layers[l].grid);
    r = step(layers[l], r);
  }
  return patches_of(r, layers.front().grid);
}

}  // namespace

PatchMap attention_map(const LayerAttention& layer, HeadFusion fusion,
                       std::optional<int64_t> head) {
  const TokenRow r = readout(layer.grid);
  TokenRow seen(r.size(), 0.0);
  for (int64_t w = 0; w < layer.windows; ++w) {
    if (head)
      add_product(
          layer, w, r,
          [&](int64_t t) { return layer.matrix(layer.weights, w, *head) + t * layer.size; }, seen);
    else
      add_product(
          layer, w, r, [&](int64_t t) { return fused(layer, w, fusion, t, t + 1); }, seen);
  }
  return patches_of(seen, layer.grid);
}

PatchMap rollout(std::span<const LayerAttention> layers, const RolloutOptions& options) {
  return through_layers(layers, [&](const LayerAttention& layer, const TokenRow& r) {
    TokenRow next(r.size(), 0.0);
    for (int64_t w = 0; w < layer.windows; ++w) {
      Matrix a = fused(layer, w, options.fusion, 0, layer.size);
      if (options.discard > 0) discard_smallest(a, options.discard);
      for (int64_t t = 0; t < layer.size; ++t) {
        double* row = a.data() + t * layer.size;
        row[t] += 1;
        const double sum = std::accumulate(row, row + layer.size, 0.0);
        std::for_each(row, row + layer.size, [&](double& x) { x /= sum; });
      }
      add_product(layer, w, r, a, next);
    }
    return next;
  });
}

PatchMap gradient_relevance(std::span<const LayerAttention> layers) {
  return through_layers(layers, [](const LayerAttention& layer, const TokenRow& r) {
    TokenRow next = r;
    for (int64_t w = 0; w < layer.windows; ++w) {
      Matrix a(static_cast<size_t>(layer.size * layer.size), 0.0);
      for (int64_t h = 0; h < layer.heads; ++h) {
        const float *p = layer.matrix(layer.weights, w, h), *g = layer.matrix(layer.gradient, w, h);
        for (size_t i = 0; i < a.size(); ++i)
          a[i] += std::max(0.0, static_cast<double>(g[i]) * static_cast<double>(p[i]));
      }
      for (double& x : a) x /= static_cast<double>(layer.heads);
      add_product(layer, w, r, a, next);
    }
    return next;
  });
}

std::vector<double> mean_distances(const LayerAttention& layer, int64_t image_h, int64_t image_w) {
  const TokenGrid& grid = layer.grid;
  const double step_y = static_cast<double>(image_h) / static_cast<double>(grid.rows),
               step_x = static_cast<double>(image_w) / static_cast<double>(grid.columns);
  const auto place_of = [&](int64_t token) {  // of a patch, in pixels; nothing for other tokens
    const int64_t i = token - grid.prefix;
    return i < 0 ? std::pair(-1.0, -1.0)
                 : std::pair(static_cast<double>(i / grid.columns) * step_y,
                             static_cast<double>(i % grid.columns) * step_x);
  };
  std::vector<double> means(static_cast<size_t>(layer.heads), 0.0);
  const auto n = static_cast<size_t>(layer.size * layer.size);
  Matrix far(n), counts(n);
  for (int64_t w = 0; w < layer.windows; ++w) {
    const int64_t* place = layer.place.data() + w * layer.size;
    std::vector<std::pair<double, double>> at;
    for (int64_t t = 0; t < layer.size; ++t) at.push_back(place_of(place[t]));
    for (size_t t = 0, i = 0; t < at.size(); ++t)
      for (size_t u = 0; u < at.size(); ++u, ++i) {
        const double y = at[t].first - at[u].first, x = at[t].second - at[u].second;
        counts[i] = at[t].first >= 0 && at[u].first >= 0,
        far[i] = counts[i] * std::sqrt(y * y + x * x);
      }
    for (int64_t h = 0; h < layer.heads; ++h) {
      const float* p = layer.matrix(layer.weights, w, h);
      for (size_t t = 0; t < n; t += static_cast<size_t>(layer.size)) {
        const auto size = static_cast<size_t>(layer.size);
        const double weight = dot(p + t, counts.data() + t, size);
        if (weight > 0)
          means[static_cast<size_t>(h)] +=
              dot(p + t, far.data() + t, size) / weight / static_cast<double>(grid.patches());
      }
    }
  }
  return means;
}

}  // namespace vitrum
