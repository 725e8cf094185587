// From a decoded image to what the model sees: channels, size, and for training a random crop and
// flip.
#pragma once
#include <cstdint>
#include <span>
#include <utility>

#include "vitrum/core/philox.h"
#include "vitrum/data/image.h"
#include "vitrum/data/resize.h"

namespace vitrum {

enum class CropMode : uint8_t {
  kSquash,  // resize both edges, whatever the aspect ratio (Hugging Face; recipes from scratch)
  kCenter,  // resize the shortest edge, keeping the aspect ratio (timm, torchvision)
};

// What every image goes through, in training and evaluation. The resize aims at floor(size /
// crop_pct), then the centre is cropped.
struct Preprocess {
  int channels = 3, height = 224, width = 224;
  Filter interpolation = Filter::kBilinear;
  double crop_pct = 1.0;  // in (0, 1]
  CropMode crop_mode = CropMode::kSquash;
  int resize = 0;           // the edge to aim at instead, in pixels; 0: as crop_pct says
  bool crop_floor = false;  // round the crop's corner down as transformers does, not to even
};

// What only training adds, after Preprocess.
struct Augment {
  int crop_padding =
      0;  // as torchvision's RandomCrop(size, padding): zeros round the image, then a random window
  bool flip = false;  // left-right, every second image
};

// Applies both to one image after the other; keeps scratch memory, so give each thread its own.
class Transform {
 public:
  Transform(const Preprocess& preprocess, const Augment& augment);

  // Writes (channels, height, width) to `out`. The draws come from `random` alone.
  void apply(const Image& image, PhiloxStream& random, std::span<uint8_t> out);

 private:
  const Image& with_channels(const Image& image);
  const Image& with_size(const Image& image);

  Preprocess preprocess_;
  Augment augment_;
  Resizer resizer_;
  Image converted_, resized_;
};

// Size to which kCenter or kSquash resizes a (height, width) image before the centre crop.
std::pair<int64_t, int64_t> resize_target(const Preprocess& preprocess, int height, int width);

}  // namespace vitrum
