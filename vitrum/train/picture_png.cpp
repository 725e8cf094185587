#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "vitrum/data/encode_png.h"
#include "vitrum/train/picture.h"
#include "vitrum/train/stroke_font.h"

namespace vitrum {
namespace {

using Colour = std::array<double, 3>;
constexpr Colour rgb(int hex) {
  return {static_cast<double>(hex >> 16), static_cast<double>(hex >> 8 & 255),
          static_cast<double>(hex & 255)};
}
// Of the light theme of picture_svg.cpp; by Ink, then the series.
constexpr std::array kInks = {rgb(0x52606d), rgb(0x1f2933), rgb(0x3e4c59), rgb(0xffffff),
                              rgb(0xe4e7eb), rgb(0x9aa5b1), rgb(0xcbd2d9), rgb(0x1e4fc2)};
constexpr std::array<Colour, kSeriesInks> kSeries = {rgb(0x2563eb), rgb(0xea580c), rgb(0x0d9488),
                                                     rgb(0x9333ea), rgb(0xb45309), rgb(0xdb2777),
                                                     rgb(0x4d7c0f), rgb(0x475569)};

Colour colour_of(Ink ink, int series) {
  return ink == Ink::kSeries ? kSeries[static_cast<size_t>(series % kSeriesInks)]
                             : kInks[static_cast<size_t>(ink)];
}

// Strokes of a pen with a round tip. How much of a pixel is covered follows from its distance to
// the stroke; a whole shape is collected before it is laid on, so that crossings are not darker.
class Canvas {
 public:
  Canvas(int width, int height)
      : coverage_(static_cast<size_t>(width) * static_cast<size_t>(height)) {
    image_.reshape(3, height, width);
    std::fill(image_.pixels.begin(), image_.pixels.end(), uint8_t{255});
  }

  void segment(Point a, Point b, double width) {
    const double reach = width / 2 + 1;
    const auto [left, right] =
        range(std::min(a.x, b.x) - reach, std::max(a.x, b.x) + reach, image_.width);
    const auto [top, bottom] =
        range(std::min(a.y, b.y) - reach, std::max(a.y, b.y) + reach, image_.height);
    for (int y = top; y < bottom; ++y)
      for (int x = left; x < right; ++x) {
        const double inside = width / 2 - distance({x + 0.5, y + 0.5}, a, b);
        cover(x, y, std::clamp(inside + 0.5, 0.0, 1.0));
      }
  }

  void rectangle(double x0, double y0, double x1, double y1) {
    const auto [left, right] = range(std::round(x0), std::round(x1) - 1, image_.width);
    const auto [top, bottom] = range(std::round(y0), std::round(y1) - 1, image_.height);
    for (int y = top; y < bottom; ++y)
      for (int x = left; x < right; ++x) cover(x, y, 1);
  }

  // Lays on what was covered since the last call.
  void ink(const Colour& colour, double opacity = 1) {
    for (const size_t at : touched_) {
      const double alpha = opacity * static_cast<double>(coverage_[at]);
      for (int c = 0; c < 3; ++c) {
        uint8_t& p = image_.plane(c)[at];
        p = static_cast<uint8_t>(std::lround(p + alpha * (colour[static_cast<size_t>(c)] - p)));
      }
      coverage_[at] = 0;
    }
    touched_.clear();
  }

  const Image& image() const { return image_; }

 private:
  static double distance(Point p, Point a, Point b) {
    const double dx = b.x - a.x, dy = b.y - a.y, length = dx * dx + dy * dy;
    const double t =
        length > 0 ? std::clamp(((p.x - a.x) * dx + (p.y - a.y) * dy) / length, 0.0, 1.0) : 0;
    return std::hypot(p.x - a.x - t * dx, p.y - a.y - t * dy);
  }
  // Whole pixels from `low` to `high`, inside of the image.
  static std::pair<int, int> range(double low, double high, int size) {
    const auto inside = [&](double x) {
      return static_cast<int>(std::clamp(x, 0.0, static_cast<double>(size)));
    };
    return {inside(std::floor(low)), inside(std::floor(high) + 1)};
  }
  void cover(int x, int y, double share) {
    if (share <= 0) return;
    const size_t at =
        static_cast<size_t>(y) * static_cast<size_t>(image_.width) + static_cast<size_t>(x);
    if (coverage_[at] == 0) touched_.push_back(at);
    coverage_[at] = std::max(coverage_[at], static_cast<float>(share));
  }

  Image image_;
  std::vector<float> coverage_;
  std::vector<size_t> touched_;
};

struct Painter {
  Canvas& canvas;
  double scale;

  Point at(Point p) const { return {p.x * scale, p.y * scale}; }

  void operator()(const LineShape& line) const {
    const double width = line.ink == Ink::kSeries ? 2 * scale : scale;
    line.dotted ? dots(line.points, width) : strokes(line.points, width);
    canvas.ink(colour_of(line.ink, line.series));
  }
  void strokes(const std::vector<Point>& points, double width) const {
    for (size_t i = 0; i < points.size(); ++i)
      canvas.segment(at(points[i > 0 ? i - 1 : 0]), at(points[i]), width);
  }
  // A dot every five pixels along the line, the corners being no exception.
  void dots(const std::vector<Point>& points, double width) const {
    constexpr double kEvery = 5;
    double wait = 0;
    for (size_t i = 1; i < points.size(); ++i) {
      const Point a = points[i - 1], b = points[i];
      const double length = std::hypot(b.x - a.x, b.y - a.y);
      for (; wait <= length && length > 0; wait += kEvery) {
        const double t = wait / length;
        const Point p = at({a.x + t * (b.x - a.x), a.y + t * (b.y - a.y)});
        canvas.segment(p, p, width);
      }
      wait -= length;
    }
  }
  void operator()(const DotShape& dot) const {
    canvas.segment(at(dot.at), at(dot.at), 2 * dot.radius * scale);
    canvas.ink(colour_of(Ink::kSeries, dot.series));
  }
  void operator()(const TextShape& text) const {
    const double size = text.size * scale, turn = text.angle * std::numbers::pi / 180;
    const double share = text.anchor == Anchor::kStart    ? 0
                         : text.anchor == Anchor::kMiddle ? 0.5
                                                          : 1;
    const double shift = share * text_width(text.text), c = std::cos(turn), s = std::sin(turn);
    const Point origin = at(text.at);
    const auto place = [&](Point p) {
      const double x = (p.x - shift) * size, y = p.y * size;
      return Point{origin.x + c * x - s * y, origin.y + s * x + c * y};
    };
    for (const auto& stroke : text_strokes(text.text))
      for (size_t i = 1; i < stroke.size(); ++i)
        canvas.segment(place(stroke[i - 1]), place(stroke[i]),
                       size * (text.ink == Ink::kHead ? 0.115 : 0.085));
    canvas.ink(colour_of(text.ink, 0));
  }
  void operator()(const CellsShape& cells) const {
    for (const auto& [column, row] : cells.at) {
      const Point a = at({cells.origin.x + cells.width * static_cast<double>(column),
                          cells.origin.y + cells.height * static_cast<double>(row)});
      canvas.rectangle(a.x, a.y, a.x + cells.width * scale, a.y + cells.height * scale);
    }
    canvas.ink(colour_of(Ink::kCell, 0), cells.opacity);
  }
};

}  // namespace

std::string to_png(const Picture& picture, int scale) {
  Canvas canvas(picture.width * scale, picture.height * scale);
  for (const auto& shape : picture.shapes)
    std::visit(Painter{canvas, static_cast<double>(scale)}, shape);
  return encode_png(canvas.image());
}

}  // namespace vitrum
