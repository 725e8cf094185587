// From a decoded image to the pixels a model sees, byte for byte as timm, torchvision and Hugging
// Face make them with Pillow: channels, resize, centre crop.
#pragma once
#include <array>
#include <cstdint>
#include <span>
#include <utility>

#include "vitrum/data/image.h"
#include "vitrum/data/input_size.h"
#include "vitrum/data/resize.h"

namespace vitrum {

enum class CropMode : uint8_t {
  kSquash,  // resize both edges, whatever the aspect ratio (Hugging Face; recipes from scratch)
  kCenter,  // resize the shortest edge, keeping the aspect ratio (timm, torchvision)
  kBorder,  // resize the longest edge, and put a border round what is smaller (timm)
};

// The resize aims at `resize` or floor(size / crop_pct), then the centre is cropped.
struct Preprocess {
  int channels = 3, height = 224, width = 224;
  Filter interpolation = Filter::kBilinear;
  double crop_pct = 1.0;  // in (0, 1]
  CropMode crop_mode = CropMode::kSquash;
  int resize = 0;           // the edge to aim at instead, in pixels; 0: as crop_pct says
  bool crop_floor = false;  // round the crop's corner down as transformers does, not to even
  std::array<uint8_t, 3> border = {};  // its colour
  // Images keep their shapes instead, as SigLIP 2's NaFlex has it: each is resized to as many whole
  // patches as there may be (0: it is not), and height and width do not matter.
  int max_patches = 0, patch_h = 16, patch_w = 16;
};

// Size that a (height, width) image has for the model.
InputSize input_size(const Preprocess& preprocess, int height, int width);

// Size to which a (height, width) image is resized before the centre crop.
std::pair<int64_t, int64_t> resize_target(const Preprocess& preprocess, int height, int width);

// The part of the resized image that the model sees; with a border it begins before the image.
Window crop_window(const Preprocess& preprocess, int64_t resized_height, int64_t resized_width);

// Keeps scratch memory between images, so give each thread its own.
class Preprocessor {
 public:
  explicit Preprocessor(const Preprocess& preprocess);  // fails on what makes no sense

  size_t bytes() const;  // of one image, or of the largest where they keep their shapes
  // Writes (channels, height, width) to the beginning of `out`, and returns these sizes.
  InputSize apply(const Image& image, std::span<uint8_t> out);

 private:
  const Image& with_channels(const Image& image);
  void apply_bordered(const Image& image, const Window& window, InputSize resized,
                      std::span<uint8_t> out);

  Preprocess preprocess_;
  Resizer resizer_;
  Image converted_;
  PixelVector inner_;  // of a bordered image
};

}  // namespace vitrum
