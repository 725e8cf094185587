// Pictures of maps: laid over the photo they belong to, or on their own; alone or many on a sheet.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "vitrum/data/canvas.h"
#include "vitrum/data/preprocess.h"
#include "vitrum/explain/relevance.h"

namespace vitrum {

// A part of a picture, in pixels that need not be whole.
struct Area {
  double top = 0, left = 0, height = 0, width = 0;
};

// A photo at the size it is shown, and the part of it that the model saw.
struct ShownPhoto {
  Image image;
  Area seen;
};
// `edge`: the longer edge in pixels.
ShownPhoto show_photo(const Image& photo, const Preprocess& preprocess, int edge);

// The values that the ends of the colours stand for.
struct ColourScale {
  double low = 0, high = 1;
};
// From the least to the highest value, of which one patch in twenty may lie outside at either end:
// models keep a few patches for purposes of their own, and these would leave nothing for the
// others.
ColourScale range_of(const PatchMap& map);

// Values between patches are interpolated, patch centres lying where the model had them. The photo
// keeps its colours where the map is high, and has little light and none of them where it is low;
// what the model did not see is hardly there.
Image overlay(const ShownPhoto& photo, const PatchMap& map, const ColourScale& range);
// The map alone, every patch a square of `cell` pixels.
Image heat_map(const PatchMap& map, const ColourScale& range, int cell);

enum class Bar : uint8_t { kColours, kLight };  // of heat maps, of overlays

struct Title {
  std::string text, below = {};
  std::string low = {}, high = {};  // what the ends of the bar mean; no bar where both are empty
  Bar bar = Bar::kColours;
};
Image with_title(const Image& picture, const Title& title);

// Pictures of one size in a grid, row by row, each with its caption below, and with names of rows
// and columns at the edges; whatever is empty takes no room.
struct Sheet {
  size_t columns = 1;
  std::vector<Image> pictures = {};
  std::vector<std::string> captions = {}, row_names = {}, column_names = {};
};
Image lay_out(const Sheet& sheet);

}  // namespace vitrum
