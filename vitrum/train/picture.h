// A picture of lines, dots, shaded cells and words: drawn once, written as SVG that follows the
// reader's light or dark theme, or as PNG in the light one. Coordinates are pixels, y downwards.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace vitrum {

struct Point {
  double x = 0, y = 0;
};

// What a shape is, which decides its colour. kSeries + n is the n-th curve; there are kSeriesInks
// of them, then they begin anew.
enum class Ink : uint8_t { kText, kHead, kLow, kHigh, kGrid, kAxis, kFrame, kCell, kSeries };
inline constexpr int kSeriesInks = 8;

struct LineShape {
  std::vector<Point> points;
  Ink ink = Ink::kGrid;
  int series = 0;  // of Ink::kSeries
  bool dotted = false;
};
struct DotShape {
  Point at;
  double radius = 2.5;
  int series = 0;
};
enum class Anchor : uint8_t { kStart, kMiddle, kEnd };
struct TextShape {
  Point at;  // on the baseline
  std::string text;
  double size = 12;
  Ink ink = Ink::kText;
  Anchor anchor = Anchor::kStart;
  double angle = 0;  // degrees, clockwise
};
// Squares of a lattice, all of one shade.
struct CellsShape {
  Point origin;
  double width = 1, height = 1;  // of a cell
  double opacity = 1;
  std::vector<std::pair<size_t, size_t>> at;  // column, row
};

struct Picture {
  int width = 0, height = 0;
  std::string title;
  std::vector<std::variant<LineShape, DotShape, TextShape, CellsShape>> shapes = {};
};

std::string to_svg(const Picture& picture);
// `scale` pixels for each of the picture's, so that it is sharp on today's screens.
std::string to_png(const Picture& picture, int scale = 2);

std::string xml_escape(std::string_view text);

}  // namespace vitrum
