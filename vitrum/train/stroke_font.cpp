#include "vitrum/train/stroke_font.h"

#include <array>

#include "vitrum/core/utf8.h"

namespace vitrum {
namespace {

// Strokes, divided by spaces, are points of a digit for x and a letter for y: D is the baseline, K
// the height of x, N of capitals, A the foot of a p. A stroke that begins with ~ is smooth: its
// points are the controls of a quadratic spline, closed where the last is the first. The space
// behind a glyph is the same for all.
constexpr std::array<std::string_view, 95> kGlyphs = {
    "",                                    // space
    "1N1G 1D1D",                           // !
    "0N0L 2N2L",                           // "
    "1D2N 4D5N 0G6G 0K6K",                 // #
    "~6L6N0N0I6I6D0D0F 3O3C",              // $
    "~0N3N3J0J0N ~4H7H7D4D4H 6N1D",        // %
    "~6D1K1N4N4K0H0D4D6H",                 // &
    "1N1L",                                // '
    "~3O0K0F3B",                           // (
    "~0O3K3F0B",                           // )
    "3N3J 1M5K 5M1K",                      // *
    "0H6H 3K3E",                           // +
    "1E0B",                                // ,
    "0H4H",                                // -
    "1D1D",                                // .
    "0C5N",                                // /
    "~0N6N6D0D0N",                         // 0
    "1L3N3D",                              // 1
    "~0L0N6N6I0D 0D6D",                    // 2
    "~0L0N6N6I2I ~2I6I6D0D0F",             // 3
    "5D5N0G7G",                            // 4
    "5N1N0I ~0I6K6D0D0F",                  // 5
    "~5N0M0G ~0J6J6D0D0J",                 // 6
    "0N6N2D",                              // 7
    "~1N5N5I1I1N ~0I6I6D0D0I",             // 8
    "~0N6N6H0H0N ~6K6E1D",                 // 9
    "1D1D 1J1J",                           // :
    "1J1J 1E0B",                           // ;
    "5L0H5D",                              // <
    "0J6J 0F6F",                           // =
    "0L5H0D",                              // >
    "~0L0N5N5J2I2G 2D2D",                  // ?
    "~0N8N8D0D0N ~2K6K6F2F2K",             // @
    "0D3N6D 1G5G",                         // A
    "3D0D0N3N ~3N6N6I3I 0I3I ~3I7I7D3D",   // B
    "~6L6N0N0D6D6F",                       // C
    "3D0D0N3N ~3N7N7D3D",                  // D
    "5D0D0N5N 0I4I",                       // E
    "0D0N5N 0I4I",                         // F
    "~6L6N0N0D6D6I 6I4I",                  // G
    "0D0N 6D6N 0I6I",                      // H
    "1D1N",                                // I
    "4N4G ~4G4D0D0G",                      // J
    "0D0N 5N0H 2J6D",                      // K
    "0N0D5D",                              // L
    "0D0N4F8N8D",                          // M
    "0D0N6D6N",                            // N
    "~0N7N7D0D0N",                         // O
    "0D0N3N ~3N6N6H3H 3H0H",               // P
    "~0N7N7D0D0N 4F7C",                    // Q
    "0D0N3N ~3N6N6H3H 3H0H 3H6D",          // R
    "~6L6N0N0I6I6D0D0F",                   // S
    "3D3N 0N6N",                           // T
    "0N0H ~0H0D6D6H 6H6N",                 // U
    "0N3D6N",                              // V
    "0N2D4N6D8N",                          // W
    "0D6N 0N6D",                           // X
    "0N3I6N 3I3D",                         // Y
    "0N6N0D6D",                            // Z
    "2O0O0B2B",                            // [
    "0N5C",                                // backslash
    "0O2O2B0B",                            // ]
    "0K2N4K",                              // ^
    "0C6C",                                // _
    "0N1L",                                // `
    "~0K5K5D0D0K 5K5D",                    // a
    "0N0D ~0K5K5D0D0K",                    // b
    "~5J5K0K0D5D5E",                       // c
    "5N5D ~0K5K5D0D0K",                    // d
    "~5H5K0K0D5D5E 0H5H",                  // e
    "1D1K ~1K1N4N 0K3K",                   // f
    "~0K5K5D0D0K 5K5D ~5D5A0A0B",          // g
    "0N0D ~0G0K5K5G 5G5D",                 // h
    "1D1K 1N1N",                           // i
    "2K2D ~2D2A0A 2N2N",                   // j
    "0N0D 5K0G 2H5D",                      // k
    "1D1N",                                // l
    "0K0D ~0G0K4K4G 4G4D ~4G4K8K8G 8G8D",  // m
    "0K0D ~0G0K5K5G 5G5D",                 // n
    "~0K5K5D0D0K",                         // o
    "0K0A ~0K5K5D0D0K",                    // p
    "5K5A ~0K5K5D0D0K",                    // q
    "0K0D ~0G0K4K",                        // r
    "~5J5K0K0H5G5D0D0E",                   // s
    "1M1F ~1F1D4D 0K4K",                   // t
    "0K0G ~0G0D5D5G 5K5D",                 // u
    "0K3D6K",                              // v
    "0K2D4K6D8K",                          // w
    "0D5K 0K5D",                           // x
    "0K3D 6K2A",                           // y
    "0K5K0D5D",                            // z
    "~3O1O1H0H ~3B1B1H0H",                 // {
    "1O1B",                                // |
    "~0O2O2H3H ~0B2B2H3H",                 // }
    "~0H1J3H5F6H",                         // ~
};
constexpr double kUnit = 0.072;             // of the font's size
constexpr double kGap = 2.6, kSpace = 3.2;  // units

using Stroke = std::vector<Point>;

// Corner cutting: each round replaces a corner by two; three rounds are smooth at the size of a
// letter.
Stroke smoothed(Stroke stroke) {
  const bool closed = stroke.front().x == stroke.back().x && stroke.front().y == stroke.back().y;
  const auto between = [](const Point& a, const Point& b, double t) {
    return Point{a.x + t * (b.x - a.x), a.y + t * (b.y - a.y)};
  };
  for (int round = 0; round < 3; ++round) {
    Stroke next;
    if (!closed) next.push_back(stroke.front());
    for (size_t i = 0; i + 1 < stroke.size(); ++i) {
      next.push_back(between(stroke[i], stroke[i + 1], 0.25));
      next.push_back(between(stroke[i], stroke[i + 1], 0.75));
    }
    next.push_back(closed ? next.front() : stroke.back());
    stroke = std::move(next);
  }
  return stroke;
}

// Of the font's unit grid, y downwards.
std::vector<Stroke> glyph_strokes(std::string_view glyph) {
  std::vector<Stroke> all;
  while (!glyph.empty()) {
    std::string_view word = glyph.substr(0, glyph.find(' '));
    glyph.remove_prefix(std::min(glyph.size(), word.size() + 1));
    const bool smooth = word.starts_with('~');
    if (smooth) word.remove_prefix(1);
    Stroke stroke;
    for (size_t i = 0; i + 1 < word.size(); i += 2)
      stroke.push_back(
          {static_cast<double>(word[i] - '0'), static_cast<double>('D' - word[i + 1])});
    all.push_back(smooth ? smoothed(std::move(stroke)) : std::move(stroke));
  }
  return all;
}

double glyph_width(std::string_view glyph) {
  char widest = '0';
  for (const char c : glyph)
    if (c >= '0' && c <= '9') widest = std::max(widest, c);
  return glyph.empty() ? kSpace : widest - '0';
}

std::string_view plain(char32_t c) {
  switch (c) {
    case U'…': return "...";
    case U'–':
    case U'—':
    case U'−': return "-";
    case U'·': return ".";
    case U'×': return "x";
    default: return "?";
  }
}

template <class Each>
void each_glyph(std::string_view text, const Each& each) {
  for (CodePoint c; !text.empty(); text.remove_prefix(c.bytes)) {
    c = decode_utf8(text);
    const bool ascii = c.value >= 0x20 && c.value < 0x7F;
    const std::string_view word = ascii ? text.substr(0, 1) : plain(c.value);
    for (const char letter : word) each(kGlyphs[static_cast<size_t>(letter - ' ')]);
  }
}

}  // namespace

double text_width(std::string_view text) {
  double width = -kGap;
  each_glyph(text, [&](std::string_view glyph) { width += glyph_width(glyph) + kGap; });
  return std::max(0.0, width) * kUnit;
}

std::vector<std::vector<Point>> text_strokes(std::string_view text) {
  std::vector<Stroke> all;
  double left = 0;
  each_glyph(text, [&](std::string_view glyph) {
    for (Stroke& stroke : glyph_strokes(glyph)) {
      for (Point& p : stroke) p = {(left + p.x) * kUnit, p.y * kUnit};
      all.push_back(std::move(stroke));
    }
    left += glyph_width(glyph) + kGap;
  });
  return all;
}

}  // namespace vitrum
