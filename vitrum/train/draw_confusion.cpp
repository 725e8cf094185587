#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <utility>

#include "vitrum/core/utf8.h"
#include "vitrum/train/draw.h"

namespace vitrum {
namespace {

constexpr int kTop = 62, kRight = 86;  // margins in pixels
constexpr int kNameColumns = 14;       // longer class names are cut
constexpr size_t kNumbersUpTo = 20;    // classes
constexpr int kShades = 32;

constexpr size_t kMostRows = 1000;  // a pixel each

struct Heatmap {
  Confusion counts = {};  // of rows
  size_t rows = 0;
  std::vector<std::string> names = {};  // cut to size; none where nobody could read them
  double cell = 0, font = 0;            // pixels
  double left = 0, bottom = 0;          // margins that hold the names
  std::vector<double> row_total = {};
  double correct = 0;  // images

  double side() const { return cell * static_cast<double>(rows); }
  double x(size_t column) const { return left + cell * static_cast<double>(column); }
  double y(size_t row) const { return kTop + cell * static_cast<double>(row); }
  bool upright() const { return cell < 24; }  // slanted names would run into each other
  double share(const ConfusionCell& c) const {
    return static_cast<double>(c.count) / row_total[static_cast<size_t>(c.truth)];
  }
};

// Shade of a share, 0 (nothing) to kShades. The eye is what is asked: the root lets a few per cent
// of mistakes show.
int shade_of(double share) {
  return share > 0 ? std::max(1, static_cast<int>(std::lround(kShades * std::pow(share, 0.6)))) : 0;
}
double opacity_of(int shade) { return static_cast<double>(shade) / kShades; }

void draw_cells(Picture& picture, const Heatmap& map) {
  std::array<CellsShape, kShades + 1> shades;
  for (const ConfusionCell& c : map.counts)
    shades[static_cast<size_t>(shade_of(map.share(c)))].at.emplace_back(c.guess, c.truth);
  for (int shade = 1; shade <= kShades; ++shade) {
    CellsShape& cells = shades[static_cast<size_t>(shade)];
    if (cells.at.empty()) continue;
    cells.origin = {map.left, kTop}, cells.width = cells.height = map.cell;
    cells.opacity = opacity_of(shade);
    picture.shapes.push_back(std::move(cells));
  }
}

void draw_frame(Picture& picture, const Heatmap& map) {
  const double right = map.left + map.side(), bottom = kTop + map.side();
  if (map.rows <= kNumbersUpTo)
    for (size_t i = 1; i < map.rows; ++i) {
      picture.shapes.push_back(LineShape{{{map.x(i), kTop}, {map.x(i), bottom}}, Ink::kGrid});
      picture.shapes.push_back(LineShape{{{map.left, map.y(i)}, {right, map.y(i)}}, Ink::kGrid});
    }
  picture.shapes.push_back(LineShape{
      {{map.left, kTop}, {right, kTop}, {right, bottom}, {map.left, bottom}, {map.left, kTop}},
      Ink::kFrame});
}

std::string short_count(int64_t n) {
  if (n < 10'000) return std::to_string(n);
  return n < 10'000'000 ? fmt::format("{}k", n / 1000) : fmt::format("{}M", n / 1'000'000);
}

void draw_numbers(Picture& picture, const Heatmap& map) {
  const double size = std::clamp(map.cell * 0.32, 8.0, 13.0);
  for (const ConfusionCell& c : map.counts) {
    const double x = map.x(static_cast<size_t>(c.guess)), y = map.y(static_cast<size_t>(c.truth));
    picture.shapes.push_back(
        TextShape{{x + map.cell / 2, y + map.cell / 2 + size * 0.36},
                  short_count(c.count),
                  size,
                  opacity_of(shade_of(map.share(c))) > 0.5 ? Ink::kHigh : Ink::kLow,
                  Anchor::kMiddle});
  }
}

void draw_names(Picture& picture, const Heatmap& map) {
  for (size_t i = 0; i < map.names.size(); ++i) {
    const double half = map.cell / 2 + map.font * 0.35;
    picture.shapes.push_back(TextShape{
        {map.left - 8, map.y(i) + half}, map.names[i], map.font, Ink::kText, Anchor::kEnd});
    picture.shapes.push_back(
        TextShape{{map.x(i) + half, kTop + map.side() + (map.upright() ? 8 : 12)},
                  map.names[i],
                  map.font,
                  Ink::kText,
                  Anchor::kEnd,
                  map.upright() ? -90.0 : -45.0});
  }
}

// "9012 of 10000 correct (90.12 %)" and what the axes are.
void draw_titles(Picture& picture, const Heatmap& map) {
  const double total = std::accumulate(map.row_total.begin(), map.row_total.end(), 0.0);
  const double percent = total > 0 ? 100 * map.correct / total : 0;
  const double middle = map.side() / 2;
  auto& shapes = picture.shapes;
  shapes.push_back(TextShape{{map.left, 28}, "Confusion", 14, Ink::kHead});
  shapes.push_back(
      TextShape{{map.left, 48},
                fmt::format("{:.0f} of {:.0f} correct ({:.2f} %)", map.correct, total, percent)});
  shapes.push_back(TextShape{{map.left + middle, kTop + map.side() + map.bottom - 12},
                             "predicted",
                             12,
                             Ink::kText,
                             Anchor::kMiddle});
  shapes.push_back(TextShape{{20, kTop + middle}, "true", 12, Ink::kText, Anchor::kMiddle, -90});
}

// A bar of the shades beside the map: share of the true class.
void draw_key(Picture& picture, const Heatmap& map) {
  constexpr int kStep = 5, kKeyHeight = kStep * kShades;  // whole pixels: no seams
  const double x = std::ceil(map.left + map.side()) + 18;
  for (int i = 0; i < kShades; ++i)
    picture.shapes.push_back(CellsShape{{x, static_cast<double>(kTop + (kShades - 1 - i) * kStep)},
                                        12,
                                        kStep,
                                        opacity_of(shade_of((i + 0.5) / kShades)),
                                        {{0, 0}}});
  for (const int percent : {0, 50, 100})
    picture.shapes.push_back(TextShape{
        {x + 18, kTop + kKeyHeight * (1 - percent / 100.0) + 4}, fmt::format("{} %", percent), 11});
}

// Pixels that `names` take at most, in a font of `size` pixels.
double names_width(const std::vector<std::string>& names, double size) {
  int widest = 0;
  for (const std::string& name : names) widest = std::max(widest, columns(name));
  return widest * size * 0.62;
}

// Neighbouring classes in one row, where there are too many for a row each.
void set_counts(Heatmap& map, const Confusion& counts, size_t classes) {
  for (const ConfusionCell& c : counts)  // a model may have more outputs than the data has classes
    classes = std::max(classes, static_cast<size_t>(std::max(c.truth, c.guess)) + 1);
  const size_t group = std::max<size_t>((classes + kMostRows - 1) / kMostRows, 1);
  map.rows = (classes + group - 1) / group;
  map.row_total.resize(map.rows);
  const auto row_of = [&](int k) { return static_cast<int>(static_cast<size_t>(k) / group); };
  std::map<std::pair<int, int>, int64_t> cells;
  for (const ConfusionCell& c : counts) {
    if (c.count <= 0) continue;
    cells[{row_of(c.truth), row_of(c.guess)}] += c.count;
    map.row_total[static_cast<size_t>(row_of(c.truth))] += static_cast<double>(c.count);
    map.correct += c.truth == c.guess ? static_cast<double>(c.count) : 0;
  }
  for (const auto& [at, count] : cells) map.counts.push_back({at.first, at.second, count});
}

Heatmap layout(const Confusion& counts, size_t classes,
               const std::vector<std::string>& class_names) {
  Heatmap map;
  set_counts(map, counts, classes);
  const auto n = static_cast<double>(std::max<size_t>(map.rows, 1));
  map.cell = std::clamp(520 / n, 1.0, 80.0);
  map.font = std::min(12.0, map.cell * 0.85);
  if (map.font >= 6)
    for (size_t i = 0; i < map.rows; ++i)
      map.names.push_back(
          fit_columns(i < class_names.size() ? class_names[i] : std::to_string(i), kNameColumns));
  const double width = names_width(map.names, map.font);
  map.left = std::ceil(width) + 48;
  map.bottom = std::ceil(map.upright() ? width : 0.75 * width) + 46;
  return map;
}

}  // namespace

Picture draw_confusion(const Confusion& counts, size_t classes,
                       const std::vector<std::string>& class_names) {
  const Heatmap map = layout(counts, classes, class_names);
  // Wide enough for the line of totals, high enough for the key.
  Picture picture{
      .width = static_cast<int>(map.left + std::max(std::ceil(map.side()), 160.0)) + kRight,
      .height = static_cast<int>(kTop + std::max(std::ceil(map.side()), 130.0) + map.bottom),
      .title = "Confusion matrix"};
  draw_cells(picture, map);
  draw_frame(picture, map);
  if (map.rows <= kNumbersUpTo) draw_numbers(picture, map);
  draw_names(picture, map);
  draw_titles(picture, map);
  if (map.rows > 0) draw_key(picture, map);
  return picture;
}

}  // namespace vitrum
