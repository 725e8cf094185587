#include "vitrum/explain/explain_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "vitrum/core/all_finite.h"
#include "vitrum/core/error.h"
#include "vitrum/data/resize.h"
#include "vitrum/explain/principal.h"

namespace vitrum {
namespace {

constexpr size_t kComponents = 28;  // as figure 7 of the ViT paper shows

std::vector<float> values_of(const ValueInfo& info, ParamStore& store) {
  std::vector<float> values =
      info.role == Role::kConst ? info.data : store.read(static_cast<size_t>(info.param));
  if (!all_finite(values)) fail_input("{} holds NaN or infinite numbers", info.name);
  return values;
}

// The first layer of a model that cuts patches.
struct FirstLayer {
  Patchify cut;
  int64_t channels, rows, columns;  // rows and columns of patches
};
std::optional<FirstLayer> first_layer(const Graph& g) {
  for (const Node& node : g.nodes)
    if (const auto* cut = std::get_if<Patchify>(&node.op)) {
      const Shape& image = g.values[static_cast<size_t>(node.in[Patchify::kImage])].shape;
      return FirstLayer{*cut, image[1], image[2] / cut->patch_h, image[3] / cut->patch_w};
    }
  return {};
}

const ValueInfo* find(const Graph& g, const std::string& name) {
  for (const ValueInfo& info : g.values)
    if (info.name == name && (info.role == Role::kParam || info.role == Role::kConst)) return &info;
  return nullptr;
}

// ---- positions ----

// Of a square, for images of any shape: stored (C, side * side).
Positions square_positions(const ValueInfo& info, ParamStore& store) {
  const int64_t width = info.shape[0], cells = info.shape[1];
  const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(cells))));
  const std::vector<float> stored = values_of(info, store);
  Positions p{side, side, width, {}};
  for (int64_t cell = 0; cell < cells; ++cell)
    for (int64_t c = 0; c < width; ++c)
      p.values.push_back(stored[static_cast<size_t>(c * cells + cell)]);
  return p;
}

std::optional<Positions> positions_of(const Graph& g, ParamStore& store) {
  if (const ValueInfo* grid = find(g, "pos_grid")) return square_positions(*grid, store);
  const ValueInfo* info = find(g, "pos_embed");
  const std::optional<FirstLayer> first = first_layer(g);
  if (!info || !first) return {};
  Positions p{first->rows, first->columns, info->shape[-1], values_of(*info, store)};
  const int64_t prefix = info->shape[-2] - p.rows * p.columns;
  p.values.erase(p.values.begin(), p.values.begin() + prefix * p.width);
  return p;
}

void add_positions(const Positions& p, Explanation& out) {
  const int64_t n = p.rows * p.columns;
  const std::vector<float> cosines = position_cosines(p);
  // About 700 pixels wide, whatever the number of patches.
  const int cell = std::clamp(static_cast<int>(700 / (p.columns * p.columns)), 1, 16);
  Sheet tiles{.columns = static_cast<size_t>(p.columns)};
  for (int64_t i = 0; i < n; ++i) {
    const auto row = cosines.begin() + i * n;
    tiles.pictures.push_back(heat_map({p.rows, p.columns, {row, row + n}}, {-1, 1}, cell));
  }
  for (int64_t i = 0; i < p.rows; ++i) tiles.row_names.push_back(std::to_string(i));
  for (int64_t i = 0; i < p.columns; ++i) tiles.column_names.push_back(std::to_string(i));
  out.pictures.push_back(
      {"positions",
       with_title(lay_out(tiles), {"position embedding similarity",
                                   "each patch against all others, cosine", "-1", "1"})});
  out.maps.push_back({"positions", {p.rows, p.columns, p.rows, p.columns}, cosines});

  const PatchMap centre = centre_similarity(p);
  const ColourScale range = range_of(centre);
  const Image map = heat_map(centre, range, std::max(1, static_cast<int>(420 / p.columns)));
  out.pictures.push_back(
      {"positions-centre",
       with_title(map, {"position embedding similarity", "dot product with the centre patch",
                        fmt::format("{:.3g}", range.low), fmt::format("{:.3g}", range.high)})});
  out.maps.push_back(
      {"positions-centre", {p.rows, p.columns}, {centre.values.begin(), centre.values.end()}});
}

// ---- filters ----

// Values (C, P, P) or (P, P, C) of one filter as a picture that uses the whole range of brightness.
template <class T>
Image filter_picture(const T* values, const FirstLayer& first, int scale) {
  const int64_t h = first.cut.patch_h, w = first.cut.patch_w, c = first.channels;
  const auto [low, high] = std::minmax_element(values, values + h * w * c);
  const double span = *high > *low ? static_cast<double>(*high - *low) : 1;
  const auto at = [&](int64_t channel, int64_t y, int64_t x) {
    const int64_t i = first.cut.order == PatchOrder::kChannelFirst ? (channel * h + y) * w + x
                                                                   : (y * w + x) * c + channel;
    return static_cast<uint8_t>(std::lround(255 * static_cast<double>(values[i] - *low) / span));
  };
  Image out = blank(static_cast<int>(h) * scale, static_cast<int>(w) * scale);
  for (int64_t y = 0; y < h; ++y)
    for (int64_t x = 0; x < w; ++x) {
      const Rgb colour = c == 3 ? Rgb{at(0, y, x), at(1, y, x), at(2, y, x)}
                                : Rgb{at(0, y, x), at(0, y, x), at(0, y, x)};
      fill(out, static_cast<int>(y) * scale, static_cast<int>(x) * scale, scale, scale, colour);
    }
  return out;
}

void add_patch_filters(const ValueInfo& weight, const FirstLayer& first, ParamStore& store,
                       Explanation& out) {
  const auto filters = static_cast<size_t>(weight.shape[0]),
             size = static_cast<size_t>(weight.shape.numel() / weight.shape[0]);
  const Components found =
      principal_components(values_of(weight, store), filters, size, kComponents);
  const size_t count = found.variances.size();
  const int scale = std::max(1, static_cast<int>(64 / first.cut.patch_w));
  Sheet tiles{.columns = std::min<size_t>(7, count)};
  for (size_t i = 0; i < count; ++i)
    tiles.pictures.push_back(filter_picture(found.vectors.data() + i * size, first, scale));
  out.pictures.push_back(
      {"filters",
       with_title(lay_out(tiles), {"patch embedding filters",
                                   fmt::format("first {} principal components", count)})});
  Shape shape{static_cast<int64_t>(count), first.channels, first.cut.patch_h, first.cut.patch_w};
  if (first.cut.order == PatchOrder::kChannelLast)
    shape = {static_cast<int64_t>(count), first.cut.patch_h, first.cut.patch_w, first.channels};
  out.maps.push_back({"filters", shape, {found.vectors.begin(), found.vectors.end()}});
}

// The filters of a convolution (K, C, h, w) themselves.
void add_convolution(const ValueInfo& weight, ParamStore& store, Explanation& out) {
  const FirstLayer shape{
      {weight.shape[2], weight.shape[3], PatchOrder::kChannelFirst}, weight.shape[1], 0, 0};
  const std::vector<float> values = values_of(weight, store);
  const int64_t size = values.empty() ? 0 : weight.shape.numel() / weight.shape[0];
  Sheet tiles{.columns = 8};
  for (int64_t i = 0; i < weight.shape[0]; ++i)
    tiles.pictures.push_back(filter_picture(values.data() + i * size, shape,
                                            std::max(1, static_cast<int>(56 / shape.cut.patch_w))));
  out.pictures.push_back(
      {"filters", with_title(lay_out(tiles), {"filters of the first convolution", weight.name})});
  out.maps.push_back({"filters", weight.shape, values});
}

// ---- relative positions ----

// A row a layer, a column a head: what is added to the score of a pair by its distance, for all
// distances inside a window; the centre is a patch's own place.
void add_relative_biases(const Graph& g, ParamStore& store, Explanation& out) {
  constexpr int kTile = 60;
  Sheet tiles;
  int64_t most = 0;
  const auto is_learned = [&](const Node& node) {  // Swin V2's is made by an MLP
    return std::holds_alternative<RelativeBias>(node.op) &&
           g.values[static_cast<size_t>(node.in[RelativeBias::kTable])].role == Role::kParam;
  };
  for (const Node& node : g.nodes)
    if (is_learned(node))
      most = std::max(most, g.values[static_cast<size_t>(node.in[RelativeBias::kTable])].shape[1]);
  for (const Node& node : g.nodes) {
    if (!is_learned(node)) continue;
    const auto* op = std::get_if<RelativeBias>(&node.op);
    const ValueInfo& table = g.values[static_cast<size_t>(node.in[RelativeBias::kTable])];
    const int64_t rows = 2 * op->window_h - 1, columns = 2 * op->window_w - 1,
                  heads = table.shape[1];
    const std::vector<float> values = values_of(table, store);
    NamedArray array{fmt::format("relative-positions-{:02}", tiles.row_names.size()),
                     {heads, rows, columns},
                     {}};
    for (int64_t h = 0; h < most; ++h) {
      PatchMap map{rows, columns, {}};
      for (int64_t i = 0; i < rows * columns && h < heads; ++i)
        map.values.push_back(static_cast<double>(values[static_cast<size_t>(i * heads + h)]));
      array.values.insert(array.values.end(), map.values.begin(), map.values.end());
      tiles.pictures.push_back(
          h < heads ? resize(heat_map(map, range_of(map),
                                      std::max<int>(1, kTile / static_cast<int>(columns))),
                             kTile, kTile, Filter::kNearest)
                    : blank(kTile, kTile));
    }
    tiles.row_names.push_back(std::to_string(tiles.row_names.size()));
    out.maps.push_back(std::move(array));
  }
  if (tiles.pictures.empty()) return;
  tiles.columns = static_cast<size_t>(most);
  for (int64_t h = 0; h < most; ++h) tiles.column_names.push_back(std::to_string(h));
  out.pictures.push_back(
      {"relative-positions",
       with_title(lay_out(tiles), {"relative position bias by distance",
                                   "a row a layer, a column a head", "least", "most"})});
}

}  // namespace

std::vector<float> position_cosines(const Positions& p) {
  const auto n = static_cast<size_t>(p.rows * p.columns), width = static_cast<size_t>(p.width);
  std::vector<double> unit(p.values.begin(), p.values.end());
  for (size_t i = 0; i < n; ++i) {
    double* v = unit.data() + i * width;
    double sum = 0;
    for (size_t k = 0; k < width; ++k) sum += v[k] * v[k];
    for (size_t k = 0; k < width; ++k) v[k] /= sum > 0 ? std::sqrt(sum) : 1;
  }
  std::vector<float> cosines(n * n);
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (size_t k = 0; k < width; ++k) sum += unit[i * width + k] * unit[j * width + k];
      cosines[i * n + j] = static_cast<float>(sum);
    }
  return cosines;
}

PatchMap centre_similarity(const Positions& p) {
  PatchMap map{p.rows, p.columns, {}};
  const float* centre = p.values.data() + (p.columns * (p.rows / 2) + p.columns / 2) * p.width;
  for (int64_t i = 0; i < p.rows * p.columns; ++i) {
    double sum = 0;
    for (int64_t k = 0; k < p.width; ++k)
      sum += static_cast<double>(centre[k]) *
             static_cast<double>(p.values[static_cast<size_t>(i * p.width + k)]);
    map.values.push_back(sum);
  }
  return map;
}

Explanation explain_weights(const Graph& g, ParamStore& store) {
  Explanation out;
  if (const auto positions = positions_of(g, store)) add_positions(*positions, out);
  const ValueInfo* patches = find(g, "patch_embed.proj.weight");
  if (!patches) patches = find(g, "stem.0.weight");
  const std::optional<FirstLayer> first = first_layer(g);
  if (patches && first) add_patch_filters(*patches, *first, store, out);
  if (const ValueInfo* conv = find(g, "conv1.weight"); conv && conv->shape.rank() == 4)
    add_convolution(*conv, store, out);
  add_relative_biases(g, store, out);
  if (out.pictures.empty()) fail_usage("the model has no weights that a picture is known for");
  return out;
}

}  // namespace vitrum
