// One change to an image's colours or geometry, byte for byte as Pillow makes it (ImageOps,
// ImageEnhance, ImageFilter, Image.transform). Policies draw edits; an edit itself has no chance in
// it.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "vitrum/data/affine.h"
#include "vitrum/data/image.h"

namespace vitrum {

enum class EditKind : uint8_t {
  kAffine,        // by matrix, filter and fill
  kAutoContrast,  // each channel stretched to 0..255
  kEqualize,
  kInvert,
  kPosterize,    // value: bits to keep, 0 to 8
  kSolarize,     // value: pixels from this one on are inverted
  kSolarizeAdd,  // value: added to pixels below 128
  // value: how much of the image is kept; 1 leaves it, more than 1 exaggerates.
  kColor,       // against its own grey
  kContrast,    // against its mean grey
  kBrightness,  // against black
  kSharpness,   // against a smoothed copy
  kBlur,        // value: standard deviation in pixels
  kHue,         // value: turn of the colour circle, -0.5 to 0.5
};

struct Edit {
  EditKind kind = EditKind::kInvert;
  double value = 0;
  AffineMatrix matrix{};
  Filter filter = Filter::kBicubic;
  ByteColour fill{};
};

// Keeps scratch memory between images, so give each thread its own.
class Editor {
 public:
  // In place; the image is grey or RGB.
  void apply(const Edit& edit, Image& image);

 private:
  void blend_with_grey(Image& image, float keep);
  void sharpen(Image& image, float keep);
  void blur(Image& image, float deviation);
  const uint8_t* grey_of(const Image& image);

  Image scratch_;
  std::vector<uint8_t> grey_, padded_;
};

}  // namespace vitrum
