// Drawing into images: colours, lines, text. Coordinates are in pixels from the top left corner;
// the centre of the first pixel is at 0.5.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "vitrum/data/image.h"
#include "vitrum/data/stroke_font.h"

namespace vitrum {

struct Rgb {
  uint8_t r = 0, g = 0, b = 0;
};

inline constexpr Rgb kPaper{24, 24, 28}, kInk{235, 235, 240}, kFaint{150, 150, 160};

// Dark violet over blue-green to yellow (matplotlib's viridis, by nine of its colours): lightness
// grows evenly with x in [0, 1], also for the colour-blind and in grey.
Rgb colour_of(double x);

Image blank(int height, int width, Rgb colour = kPaper);
void fill(Image& image, int top, int left, int height, int width, Rgb colour);
void paste(const Image& from, Image& to, int top, int left);  // grey or RGB, into RGB

// A line with round ends; a dot where both ends are the same.
void draw_line(Image& image, Point from, Point to, double thickness, Rgb colour);

// Text in strokes. `size` is the height of a capital letter, `at` the left end of the base line.
double text_width(std::string_view text, double size);
void draw_text(Image& image, Point at, std::string_view text, double size, Rgb colour = kInk);
// At most `width` wide, ending in "..." where something was cut.
std::string fit_text(std::string_view text, double size, double width);

// A bar of all colours, from low to high.
void draw_colour_bar(Image& image, int top, int left, int height, int width);

}  // namespace vitrum
