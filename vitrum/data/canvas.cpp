#include "vitrum/data/canvas.h"

#include <algorithm>
#include <cmath>

#include "vitrum/core/utf8.h"

namespace vitrum {
namespace {

constexpr double kCapital = 0.72;    // height of a capital letter in a font of one pixel
constexpr double kThickness = 0.15;  // of a stroke, relative to that height

void blend(Image& image, int x, int y, double cover, Rgb colour) {
  const size_t at =
      static_cast<size_t>(y) * static_cast<size_t>(image.width) + static_cast<size_t>(x);
  const auto mix = [&](int channel, uint8_t to) {
    uint8_t& pixel = image.plane(channel)[at];
    pixel = static_cast<uint8_t>(std::lround(pixel + cover * (to - pixel)));
  };
  mix(0, colour.r), mix(1, colour.g), mix(2, colour.b);
}

double distance(Point p, Point a, Point b) {
  const double dx = b.x - a.x, dy = b.y - a.y, length = dx * dx + dy * dy;
  const double along =
      length > 0 ? std::clamp(((p.x - a.x) * dx + (p.y - a.y) * dy) / length, 0.0, 1.0) : 0;
  return std::hypot(p.x - a.x - along * dx, p.y - a.y - along * dy);
}

}  // namespace

Rgb colour_of(double x) {
  static constexpr Rgb kColours[] = {{68, 1, 84},    {71, 44, 122},  {59, 81, 139},
                                     {44, 113, 142}, {33, 144, 141}, {39, 173, 129},
                                     {92, 200, 99},  {170, 220, 50}, {253, 231, 37}};
  constexpr int kLast = std::size(kColours) - 1;
  const double at = (x > 0 ? std::min(x, 1.0) : 0.0) * kLast;  // NaN is low
  const int i = std::min(static_cast<int>(at), kLast - 1);
  const auto mix = [&](uint8_t a, uint8_t b) {
    return static_cast<uint8_t>(std::lround(a + (at - i) * (b - a)));
  };
  const Rgb &a = kColours[i], &b = kColours[i + 1];
  return {mix(a.r, b.r), mix(a.g, b.g), mix(a.b, b.b)};
}

Image blank(int height, int width, Rgb colour) {
  Image image;
  image.reshape(3, height, width);
  fill(image, 0, 0, height, width, colour);
  return image;
}

void fill(Image& image, int top, int left, int height, int width, Rgb colour) {
  const uint8_t channels[] = {colour.r, colour.g, colour.b};
  for (int c = 0; c < 3; ++c)
    for (int y = top; y < top + height; ++y)
      std::fill_n(image.plane(c) + static_cast<ptrdiff_t>(y) * image.width + left, width,
                  channels[c]);
}

void paste(const Image& from, Image& to, int top, int left) {
  for (int c = 0; c < 3; ++c)
    for (int y = 0; y < from.height; ++y)
      std::copy_n(
          from.plane(std::min(c, from.channels - 1)) + static_cast<ptrdiff_t>(y) * from.width,
          from.width, to.plane(c) + static_cast<ptrdiff_t>(top + y) * to.width + left);
}

void draw_line(Image& image, Point from, Point to, double thickness, Rgb colour) {
  const double reach = thickness / 2 + 1;
  const auto clip = [](double x, int size) {
    return static_cast<int>(std::clamp(x, 0.0, static_cast<double>(size)));
  };
  const int left = clip(std::min(from.x, to.x) - reach, image.width),
            right = clip(std::max(from.x, to.x) + reach + 1, image.width),
            top = clip(std::min(from.y, to.y) - reach, image.height),
            bottom = clip(std::max(from.y, to.y) + reach + 1, image.height);
  for (int y = top; y < bottom; ++y)
    for (int x = left; x < right; ++x) {
      const double cover = thickness / 2 + 0.5 - distance({x + 0.5, y + 0.5}, from, to);
      if (cover > 0) blend(image, x, y, std::min(cover, 1.0), colour);
    }
}

double text_width(std::string_view text, double size) { return text_width(text) * size / kCapital; }

void draw_text(Image& image, Point at, std::string_view text, double size, Rgb colour) {
  const double scale = size / kCapital, thickness = std::max(1.2, kThickness * size);
  const auto place = [&](Point p) { return Point{at.x + p.x * scale, at.y + p.y * scale}; };
  for (const std::vector<Point>& stroke : text_strokes(text))
    for (size_t i = 1; i < stroke.size(); ++i)
      draw_line(image, place(stroke[i - 1]), place(stroke[i]), thickness, colour);
}

std::string fit_text(std::string_view text, double size, double width) {
  if (text_width(text, size) <= width) return std::string(text);
  std::string kept;
  for (std::string_view rest = text; !rest.empty();) {
    const CodePoint c = decode_utf8(rest);
    const std::string longer = kept + std::string(rest.substr(0, c.bytes));
    if (text_width(longer + "...", size) > width) break;
    kept = longer;
    rest.remove_prefix(c.bytes);
  }
  return kept + "...";
}

void draw_colour_bar(Image& image, int top, int left, int height, int width) {
  for (int x = 0; x < width; ++x)
    fill(image, top, left + x, height, 1, colour_of((x + 0.5) / width));
}

}  // namespace vitrum
