#include "vitrum/data/augment.h"

#include <algorithm>
#include <cassert>
#include <cmath>

#include "vitrum/core/error.h"
#include "vitrum/data/decode.h"

namespace vitrum {
namespace {

// Half to even, as Python rounds.
int64_t round_half_even(double x) { return static_cast<int64_t>(std::nearbyint(x)); }

// Pillow's L: ITU-R 601 luma in 16-bit fixed point.
uint8_t luma(int red, int green, int blue) {
  return static_cast<uint8_t>((red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16);
}

// One row of the output: columns [left, left + width) of `row`, with zeros outside of it; null is a
// row of zeros.
void copy_row(const uint8_t* row, int row_width, int left, bool mirror, std::span<uint8_t> out) {
  std::fill(out.begin(), out.end(), uint8_t{0});
  if (!row) return;
  const int begin = std::max(0, -left),
            end = std::min(static_cast<int>(out.size()), row_width - left);
  if (begin < end) std::copy(row + left + begin, row + left + end, out.begin() + begin);
  if (mirror) std::reverse(out.begin(), out.end());
}

}  // namespace

std::pair<int64_t, int64_t> resize_target(const Preprocess& p, int height, int width) {
  const auto scaled_height = p.resize ? p.resize : static_cast<int64_t>(p.height / p.crop_pct);
  const auto scaled_width = p.resize ? p.resize : static_cast<int64_t>(p.width / p.crop_pct);
  if (p.crop_mode == CropMode::kSquash) return {scaled_height, scaled_width};
  if (scaled_height == scaled_width) {  // torchvision's Resize(int): the long edge is rounded down
    const int64_t edge = scaled_height;
    return height <= width ? std::pair(edge, edge * width / height)
                           : std::pair(edge * height / width, edge);
  }
  // timm's ResizeKeepRatio, for models that are not square.
  const double ratio = std::min(height / static_cast<double>(scaled_height),
                                width / static_cast<double>(scaled_width));
  return {round_half_even(height / ratio), round_half_even(width / ratio)};
}

Transform::Transform(const Preprocess& preprocess, const Augment& augment)
    : preprocess_(preprocess), augment_(augment) {
  const auto& p = preprocess_;
  if (p.channels != 1 && p.channels != 3)
    fail_usage("images have 1 or 3 channels; the model wants {}", p.channels);
  constexpr int kMaxEdge = 1 << 14;
  if (p.height < 1 || p.width < 1 || p.height > kMaxEdge || p.width > kMaxEdge) {
    fail_usage("image size {} x {}; expected 1 to {} on each edge", p.height, p.width, kMaxEdge);
  }
  if (!(p.crop_pct >= 0.1 && p.crop_pct <= 1.0))
    fail_usage("crop_pct is {}; expected 0.1 to 1", p.crop_pct);
  if (p.resize != 0 && (p.resize < std::max(p.height, p.width) || p.resize > kMaxEdge))
    fail_usage("images are resized to {} pixels, which a crop of {} x {} does not fit", p.resize,
               p.height, p.width);
  if (augment_.crop_padding < 0 || augment_.crop_padding > kMaxEdge) {
    fail_usage("crop_padding is {}; expected 0 to {}", augment_.crop_padding, kMaxEdge);
  }
}

const Image& Transform::with_channels(const Image& image) {
  if (image.channels == preprocess_.channels) return image;
  converted_.reshape(preprocess_.channels, image.height, image.width);
  const size_t n = image.plane_size();
  if (image.channels == 1) {
    for (int c = 0; c < 3; ++c) std::copy_n(image.plane(0), n, converted_.plane(c));
  } else {
    const uint8_t *red = image.plane(0), *green = image.plane(1), *blue = image.plane(2);
    uint8_t* const grey = converted_.plane(0);
    for (size_t i = 0; i < n; ++i) grey[i] = luma(red[i], green[i], blue[i]);
  }
  return converted_;
}

const Image& Transform::with_size(const Image& image) {
  const auto [height, width] = resize_target(preprocess_, image.height, image.width);
  if (height == image.height && width == image.width) return image;
  if (width > kMaxPixels / height) {
    fail_input("{} x {} pixels are too long and thin to be resized by the shortest edge",
               image.width, image.height);
  }
  resizer_.resize(image, static_cast<int>(height), static_cast<int>(width),
                  preprocess_.interpolation, resized_);
  return resized_;
}

void Transform::apply(const Image& image, PhiloxStream& random, std::span<uint8_t> out) {
  const Image& source = with_size(with_channels(image));
  const int height = preprocess_.height, width = preprocess_.width, padding = augment_.crop_padding;
  assert(out.size() == static_cast<size_t>(source.channels) * static_cast<size_t>(height) *
                           static_cast<size_t>(width));
  const auto corner = [&](int slack) {
    return preprocess_.crop_floor ? int64_t{slack} >> 1 : round_half_even(slack / 2.0);
  };
  const auto top = corner(source.height - height), left = corner(source.width - width);
  // All draws are made whether used or not, so that one switch does not change what another one
  // does.
  const auto window = static_cast<uint32_t>(2 * padding + 1);
  const int down = static_cast<int>(random.below(window)) - padding;
  const int right = static_cast<int>(random.below(window)) - padding;
  const bool mirror = (random.next_u32() >> 31) != 0 && augment_.flip;
  for (int channel = 0; channel < source.channels; ++channel) {
    for (int y = 0; y < height; ++y) {
      const int from = y + down;
      const bool inside = from >= 0 && from < height;
      const uint8_t* row =
          source.plane(channel) + (top + (inside ? from : 0)) * source.width + left;
      copy_row(inside ? row : nullptr, width, right, mirror, out.first(static_cast<size_t>(width)));
      out = out.subspan(static_cast<size_t>(width));
    }
  }
}

}  // namespace vitrum
