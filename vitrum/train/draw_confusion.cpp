#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <numeric>

#include "vitrum/core/utf8.h"
#include "vitrum/train/draw.h"

namespace vitrum {
namespace {

constexpr int kTop = 62, kRight = 86;  // margins in pixels
constexpr int kNameColumns = 14;       // longer class names are cut
constexpr size_t kNumbersUpTo = 20;    // classes
constexpr int kShades = 32;

using Counts = std::vector<std::vector<int64_t>>;

struct Heatmap {
  const Counts& counts;
  std::vector<std::string> names = {};  // cut to size; none where nobody could read them
  double cell = 0, font = 0;            // pixels
  double left = 0, bottom = 0;          // margins that hold the names
  std::vector<double> row_total = {};

  size_t classes() const { return counts.size(); }
  double side() const { return cell * static_cast<double>(classes()); }
  double x(size_t column) const { return left + cell * static_cast<double>(column); }
  double y(size_t row) const { return kTop + cell * static_cast<double>(row); }
  bool upright() const { return cell < 24; }  // slanted names would run into each other
  double share(size_t row, size_t column) const {
    return row_total[row] > 0 ? static_cast<double>(counts[row][column]) / row_total[row] : 0;
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
  for (size_t r = 0; r < map.classes(); ++r)
    for (size_t c = 0; c < map.classes(); ++c)
      shades[static_cast<size_t>(shade_of(map.share(r, c)))].at.emplace_back(c, r);
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
  if (map.classes() <= kNumbersUpTo)
    for (size_t i = 1; i < map.classes(); ++i) {
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
  for (size_t r = 0; r < map.classes(); ++r)
    for (size_t c = 0; c < map.classes(); ++c)
      if (map.counts[r][c] > 0)
        picture.shapes.push_back(
            TextShape{{map.x(c) + map.cell / 2, map.y(r) + map.cell / 2 + size * 0.36},
                      short_count(map.counts[r][c]),
                      size,
                      opacity_of(shade_of(map.share(r, c))) > 0.5 ? Ink::kHigh : Ink::kLow,
                      Anchor::kMiddle});
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
  double correct = 0;
  for (size_t i = 0; i < map.classes(); ++i) correct += static_cast<double>(map.counts[i][i]);
  const double total = std::accumulate(map.row_total.begin(), map.row_total.end(), 0.0);
  const double percent = total > 0 ? 100 * correct / total : 0;
  const double middle = map.side() / 2;
  auto& shapes = picture.shapes;
  shapes.push_back(TextShape{{map.left, 28}, "Confusion", 14, Ink::kHead});
  shapes.push_back(TextShape{
      {map.left, 48}, fmt::format("{:.0f} of {:.0f} correct ({:.2f} %)", correct, total, percent)});
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

Heatmap layout(const Counts& counts, const std::vector<std::string>& class_names) {
  Heatmap map{.counts = counts};
  const auto n = static_cast<double>(std::max<size_t>(counts.size(), 1));
  map.cell = std::clamp(520 / n, 1.0, 80.0);
  map.font = std::min(12.0, map.cell * 0.85);
  if (map.font >= 6)
    for (size_t i = 0; i < counts.size(); ++i)
      map.names.push_back(
          fit_columns(i < class_names.size() ? class_names[i] : std::to_string(i), kNameColumns));
  const double width = names_width(map.names, map.font);
  map.left = std::ceil(width) + 48;
  map.bottom = std::ceil(map.upright() ? width : 0.75 * width) + 46;
  for (const auto& row : counts) {
    assert(row.size() == counts.size());
    map.row_total.push_back(
        static_cast<double>(std::accumulate(row.begin(), row.end(), int64_t{0})));
  }
  return map;
}

}  // namespace

Picture draw_confusion(const Counts& counts, const std::vector<std::string>& class_names) {
  const Heatmap map = layout(counts, class_names);
  // Wide enough for the line of totals, high enough for the key.
  Picture picture{
      .width = static_cast<int>(map.left + std::max(std::ceil(map.side()), 160.0)) + kRight,
      .height = static_cast<int>(kTop + std::max(std::ceil(map.side()), 130.0) + map.bottom),
      .title = "Confusion matrix"};
  draw_cells(picture, map);
  draw_frame(picture, map);
  if (counts.size() <= kNumbersUpTo) draw_numbers(picture, map);
  draw_names(picture, map);
  draw_titles(picture, map);
  if (!counts.empty()) draw_key(picture, map);
  return picture;
}

}  // namespace vitrum
