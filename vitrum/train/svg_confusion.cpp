#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <iterator>
#include <numeric>

#include "vitrum/core/utf8.h"
#include "vitrum/train/svg.h"
#include "vitrum/train/svg_text.h"

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

template <class... Args>
void put(std::string& svg, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(svg), format, std::forward<Args>(args)...);
}

// One path a shade, so that a thousand classes still make a small file.
void draw_cells(std::string& svg, const Heatmap& map) {
  std::array<std::string, kShades + 1> paths;
  for (size_t r = 0; r < map.classes(); ++r)
    for (size_t c = 0; c < map.classes(); ++c)
      if (const int shade = shade_of(map.share(r, c)); shade > 0)
        put(paths[static_cast<size_t>(shade)], "M{} {}h1v1h-1z", c, r);
  put(svg, "<g transform=\"translate({} {}) scale({:.6g})\">\n", map.left, kTop, map.cell);
  for (int shade = 1; shade <= kShades; ++shade)
    if (const auto& path = paths[static_cast<size_t>(shade)]; !path.empty())
      put(svg, "<path class=\"cell\" fill-opacity=\"{:.3g}\" d=\"{}\"/>\n", opacity_of(shade),
          path);
  svg += "</g>\n";
}

void draw_frame(std::string& svg, const Heatmap& map) {
  if (map.classes() <= kNumbersUpTo)
    for (size_t i = 1; i < map.classes(); ++i)
      put(svg, "<path class=\"grid\" d=\"M{:.1f} {}v{:.1f}M{} {:.1f}h{:.1f}\"/>", map.x(i), kTop,
          map.side(), map.left, map.y(i), map.side());
  put(svg, "<rect class=\"frame\" x=\"{}\" y=\"{}\" width=\"{:.1f}\" height=\"{:.1f}\"/>\n",
      map.left, kTop, map.side(), map.side());
}

std::string short_count(int64_t n) {
  if (n < 10'000) return std::to_string(n);
  return n < 10'000'000 ? fmt::format("{}k", n / 1000) : fmt::format("{}M", n / 1'000'000);
}

void draw_numbers(std::string& svg, const Heatmap& map) {
  const double size = std::clamp(map.cell * 0.32, 8.0, 13.0);
  put(svg, "<g text-anchor=\"middle\" style=\"font-size:{:.1f}px\">\n", size);
  for (size_t r = 0; r < map.classes(); ++r)
    for (size_t c = 0; c < map.classes(); ++c)
      if (map.counts[r][c] > 0)
        put(svg,
            "<text class=\"{}\" style=\"font-size:inherit\" x=\"{:.1f}\" y=\"{:.1f}\">{}</text>\n",
            opacity_of(shade_of(map.share(r, c))) > 0.5 ? "high" : "low", map.x(c) + map.cell / 2,
            map.y(r) + map.cell / 2 + size * 0.36, short_count(map.counts[r][c]));
  svg += "</g>\n";
}

void draw_names(std::string& svg, const Heatmap& map) {
  const int angle = map.upright() ? -90 : -45;
  for (size_t i = 0; i < map.names.size(); ++i) {
    const std::string name = xml_escape(map.names[i]);
    const double half = map.cell / 2 + map.font * 0.35;
    put(svg,
        "<text style=\"font-size:{:.1f}px\" x=\"{:.1f}\" y=\"{:.1f}\" "
        "text-anchor=\"end\">{}</text>\n",
        map.font, map.left - 8, map.y(i) + half, name);
    put(svg,
        "<text style=\"font-size:{:.1f}px\" text-anchor=\"end\" transform=\"translate({:.1f} "
        "{:.1f}) rotate({})\">",
        map.font, map.x(i) + half, kTop + map.side() + (map.upright() ? 8 : 12), angle);
    svg += name + "</text>\n";
  }
}

// "9012 of 10000 correct (90.12 %)" and what the axes are.
void draw_titles(std::string& svg, const Heatmap& map) {
  double correct = 0;
  for (size_t i = 0; i < map.classes(); ++i) correct += static_cast<double>(map.counts[i][i]);
  const double total = std::accumulate(map.row_total.begin(), map.row_total.end(), 0.0);
  const double percent = total > 0 ? 100 * correct / total : 0;
  const double middle = map.side() / 2;
  put(svg, "<text class=\"head\" x=\"{}\" y=\"28\">Confusion</text>", map.left);
  put(svg, "<text x=\"{}\" y=\"48\">{:.0f} of {:.0f} correct ({:.2f} %)</text>\n", map.left,
      correct, total, percent);
  put(svg, "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">predicted</text>",
      map.left + middle, kTop + map.side() + map.bottom - 12);
  put(svg,
      "<text transform=\"translate(20 {:.1f}) rotate(-90)\" text-anchor=\"middle\">true</text>\n",
      kTop + middle);
}

// A bar of the shades beside the map: share of the true class.
void draw_key(std::string& svg, const Heatmap& map) {
  constexpr int kStep = 5, kKeyHeight = kStep * kShades;  // whole pixels: no seams
  const double x = std::ceil(map.left + map.side()) + 18;
  for (int i = 0; i < kShades; ++i)
    put(svg,
        "<rect class=\"cell\" fill-opacity=\"{:.3g}\" x=\"{}\" y=\"{}\" width=\"12\" height=\"{}\" "
        "shape-rendering=\"crispEdges\"/>\n",
        opacity_of(shade_of((i + 0.5) / kShades)), x, kTop + (kShades - 1 - i) * kStep, kStep);
  for (const int percent : {0, 50, 100})
    put(svg, "<text class=\"small\" x=\"{:.1f}\" y=\"{:.1f}\">{} %</text>", x + 18,
        kTop + kKeyHeight * (1 - percent / 100.0) + 4, percent);
  svg += '\n';
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

std::string confusion_svg(const Counts& counts, const std::vector<std::string>& class_names) {
  const Heatmap map = layout(counts, class_names);
  // Wide enough for the line of totals, high enough for the key.
  const auto width = static_cast<int>(map.left + std::max(std::ceil(map.side()), 160.0)) + kRight;
  const auto height = static_cast<int>(kTop + std::max(std::ceil(map.side()), 130.0) + map.bottom);
  std::string svg = svg_begin(width, height, "Confusion matrix");
  draw_cells(svg, map);
  draw_frame(svg, map);
  if (counts.size() <= kNumbersUpTo) draw_numbers(svg, map);
  draw_names(svg, map);
  draw_titles(svg, map);
  if (!counts.empty()) draw_key(svg, map);
  return svg + "</svg>\n";
}

}  // namespace vitrum
