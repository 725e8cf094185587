// A typeface of pen strokes, for words on PNG plots: a font file is not there on every machine.
#pragma once
#include <string_view>
#include <vector>

#include "vitrum/train/picture.h"

namespace vitrum {

// The strokes of a text in a font of one pixel, its baseline on y = 0 and its start at x = 0; y
// downwards. What is not ASCII becomes the nearest of it, or '?'.
std::vector<std::vector<Point>> text_strokes(std::string_view text);
double text_width(std::string_view text);

}  // namespace vitrum
