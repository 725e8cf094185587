#include "vitrum/explain/canvas.h"

#include <algorithm>
#include <cmath>

#include "vitrum/core/utf8.h"
#include "vitrum/explain/glyphs.h"

namespace vitrum {
namespace {

constexpr double kUnits = 6;         // grid units of a capital letter's height
constexpr double kGap = 1.7;         // between letters, in units
constexpr double kSpace = 2.6;       // a blank, in units
constexpr double kThickness = 0.95;  // of a stroke, in units

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

std::string_view glyph_of(char32_t c) { return c > ' ' && c <= '~' ? kGlyphs[c - '!'] : kBoxGlyph; }

// Calls each(from, to) for the strokes of a glyph, in grid units.
template <class Each>
void for_strokes(std::string_view glyph, const Each& each) {
  Point last;
  bool down = false;
  for (size_t i = 0; i < glyph.size();) {
    if (glyph[i] == ' ') {
      down = false, ++i;
      continue;
    }
    const Point p{static_cast<double>(glyph[i] - '0'), static_cast<double>(glyph[i + 1] - '0')};
    i += 2;
    const bool alone = !down && (i >= glyph.size() || glyph[i] == ' ');
    if (down || alone) each(alone ? p : last, p);
    last = p, down = true;
  }
}

struct Extent {
  double left = 4, right = 0;
};
Extent extent_of(std::string_view glyph) {
  Extent e;
  for_strokes(glyph, [&](Point a, Point b) {
    e.left = std::min({e.left, a.x, b.x}), e.right = std::max({e.right, a.x, b.x});
  });
  return e;
}

// Calls each(glyph, x of its left edge) and returns the width, both in grid units.
template <class Each>
double for_glyphs(std::string_view text, const Each& each) {
  double x = 0;
  while (!text.empty()) {
    const CodePoint c = decode_utf8(text);
    text.remove_prefix(c.bytes);
    if (c.value == ' ') {
      x += kSpace;
      continue;
    }
    const std::string_view glyph = glyph_of(c.value);
    const Extent e = extent_of(glyph);
    each(glyph, x - e.left);
    x += e.right - e.left + kGap;
  }
  return x;
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

double text_width(std::string_view text, double size) {
  const double width = for_glyphs(text, [](std::string_view, double) {});
  return std::max(0.0, width - kGap) * size / kUnits;
}

void draw_text(Image& image, Point at, std::string_view text, double size, Rgb colour) {
  const double unit = size / kUnits, thickness = std::max(1.2, kThickness * unit);
  for_glyphs(text, [&](std::string_view glyph, double left) {
    const auto place = [&](Point p) {
      return Point{at.x + (left + p.x) * unit, at.y + (p.y - kUnits) * unit};
    };
    for_strokes(glyph,
                [&](Point a, Point b) { draw_line(image, place(a), place(b), thickness, colour); });
  });
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
