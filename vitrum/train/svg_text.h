// What the pictures of a run share: escaping, the style sheet, ticks.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace vitrum {

std::string xml_escape(std::string_view text);

// Opening tag, style (both themes) and background of a picture of this size in pixels.
std::string svg_begin(int width, int height, std::string_view title);

struct Ticks {
  std::vector<double> at;
  double step = 1;
};
// Multiples of 1, 2 or 5 times a power of ten that enclose [low, high] in about `count` steps;
// `whole` keeps to whole numbers.
Ticks nice_ticks(double low, double high, int count, bool whole = false);

// 0.25, 40, 5e-4: as many digits as the step needs.
std::string tick_label(double x, double step);

}  // namespace vitrum
