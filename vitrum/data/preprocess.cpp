#include "vitrum/data/preprocess.h"

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

std::pair<int64_t, int64_t> resized_size(const Preprocess& p) {
  if (p.resize > 0) return {p.resize, p.resize};
  return {static_cast<int64_t>(p.height / p.crop_pct), static_cast<int64_t>(p.width / p.crop_pct)};
}

// Where there is less image than crop, the border is the smaller one before it.
int crop_start(int64_t slack, bool round_down) {
  if (slack < 0) return static_cast<int>(-(-slack / 2));
  return static_cast<int>(round_down ? slack / 2
                                     : round_half_even(static_cast<double>(slack) / 2.0));
}

void check(const Preprocess& p) {
  if (p.channels != 1 && p.channels != 3)
    fail_usage("images have 1 or 3 channels; the model wants {}", p.channels);
  constexpr int kMaxEdge = 1 << 14, kMaxPatches = 1 << 16, kMaxPatch = 1 << 10;
  if (p.height < 1 || p.width < 1 || p.height > kMaxEdge || p.width > kMaxEdge)
    fail_usage("image size {} x {}; expected 1 to {} on each edge", p.height, p.width, kMaxEdge);
  if (p.max_patches < 0 || p.max_patches > kMaxPatches || p.patch_h < 1 || p.patch_w < 1 ||
      p.patch_h > kMaxPatch || p.patch_w > kMaxPatch)
    fail_usage("images of at most {} patches of {} x {} are not possible", p.max_patches, p.patch_h,
               p.patch_w);
  if (!(p.crop_pct >= 0.1 && p.crop_pct <= 1.0))
    fail_usage("crop_pct is {}; expected 0.1 to 1", p.crop_pct);
  const auto [height, width] = resized_size(p);
  if (height < p.height || width < p.width || height > 10 * kMaxEdge || width > 10 * kMaxEdge)
    fail_usage("a resize to {} x {} before a crop of {} x {}; expected at least the crop's size",
               height, width, p.height, p.width);
}

// transformers' edge at a scale: rounded up to whole patches.
int64_t patched_edge(double scale, int edge, int patch) {
  const double pixels = edge * scale;
  return std::max<int64_t>(patch, static_cast<int64_t>(std::ceil(pixels / patch)) * patch);
}

}  // namespace

// The largest scale at which patches are few enough, found by halving as transformers does it, to
// the last bit: where it stops decides between two sizes.
InputSize input_size(const Preprocess& p, int height, int width) {
  if (p.max_patches == 0) return {p.height, p.width};
  constexpr double kPrecision = 1e-5, kMost = 100;
  const auto at = [&](double scale) {
    return InputSize{patched_edge(scale, height, p.patch_h), patched_edge(scale, width, p.patch_w)};
  };
  double low = kPrecision / 10, high = kMost;
  while (high - low >= kPrecision) {
    const double middle = (low + high) / 2;
    const InputSize size = at(middle);
    const bool fits = size.height / p.patch_h * (size.width / p.patch_w) <= p.max_patches;
    (fits ? low : high) = middle;
  }
  return at(low);
}

std::pair<int64_t, int64_t> resize_target(const Preprocess& p, int height, int width) {
  const auto [target_height, target_width] = resized_size(p);
  if (p.crop_mode == CropMode::kSquash) return {target_height, target_width};
  if (target_height == target_width &&
      p.crop_mode ==
          CropMode::kCenter) {  // torchvision's Resize(int): the long edge is rounded down
    const int64_t edge = target_height;
    return height <= width ? std::pair(edge, edge * width / height)
                           : std::pair(edge * height / width, edge);
  }
  // timm's ResizeKeepRatio, for borders and for models that are not square.
  const double down = height / static_cast<double>(target_height),
               across = width / static_cast<double>(target_width);
  const double ratio =
      p.crop_mode == CropMode::kBorder ? std::max(down, across) : std::min(down, across);
  return {std::max<int64_t>(1, round_half_even(height / ratio)),
          std::max<int64_t>(1, round_half_even(width / ratio))};
}

// timm's centre crop is bilinear, whatever the model says, where the model is not square.
Filter used_filter(const Preprocess& p) {
  const auto [height, width] = resized_size(p);
  return p.crop_mode == CropMode::kCenter && height != width ? Filter::kBilinear : p.interpolation;
}

Window crop_window(const Preprocess& p, int64_t resized_height, int64_t resized_width) {
  return {crop_start(resized_height - p.height, p.crop_floor),
          crop_start(resized_width - p.width, p.crop_floor), p.height, p.width};
}

Preprocessor::Preprocessor(const Preprocess& preprocess) : preprocess_(preprocess) {
  check(preprocess_);
}

size_t Preprocessor::bytes() const {
  if (preprocess_.max_patches > 0)
    return static_cast<size_t>(preprocess_.channels) *
           static_cast<size_t>(preprocess_.max_patches) * static_cast<size_t>(preprocess_.patch_h) *
           static_cast<size_t>(preprocess_.patch_w);
  return static_cast<size_t>(preprocess_.channels) * static_cast<size_t>(preprocess_.height) *
         static_cast<size_t>(preprocess_.width);
}

const Image& Preprocessor::with_channels(const Image& image) {
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

InputSize Preprocessor::apply(const Image& image, std::span<uint8_t> out) {
  const Preprocess& p = preprocess_;
  assert(out.size() == bytes());
  const InputSize size = input_size(p, image.height, image.width);
  if (p.max_patches > 0) {
    // At the smallest scale that is tried a very long image still has too many.
    if (size.height / p.patch_h * (size.width / p.patch_w) > p.max_patches)
      fail_input("{} x {} pixels are too long and thin for {} patches", image.width, image.height,
                 p.max_patches);
    const auto rows = static_cast<int>(size.height), columns = static_cast<int>(size.width);
    resizer_.resize(with_channels(image), rows, columns, p.interpolation, {0, 0, rows, columns},
                    out.data());
    return size;
  }
  const auto [height, width] = resize_target(p, image.height, image.width);
  if (width > kMaxPixels / height) {
    fail_input("{} x {} pixels are too long and thin to be resized by the shortest edge",
               image.width, image.height);
  }
  const Window window = crop_window(p, height, width);
  if (height < p.height || width < p.width)
    apply_bordered(image, window, {height, width}, out);
  else
    resizer_.resize(with_channels(image), static_cast<int>(height), static_cast<int>(width),
                    used_filter(p), window, out.data());
  return size;
}

void Preprocessor::apply_bordered(const Image& image, const Window& window, InputSize resized,
                                  std::span<uint8_t> out) {
  const int top = std::max(0, -window.top), left = std::max(0, -window.left);
  const Window inner{std::max(0, window.top), std::max(0, window.left),
                     static_cast<int>(std::min<int64_t>(resized.height, window.height)),
                     static_cast<int>(std::min<int64_t>(resized.width, window.width))};
  const auto rows = static_cast<size_t>(inner.height), columns = static_cast<size_t>(inner.width);
  inner_.resize(static_cast<size_t>(preprocess_.channels) * rows * columns);
  resizer_.resize(with_channels(image), static_cast<int>(resized.height),
                  static_cast<int>(resized.width), preprocess_.interpolation, inner, inner_.data());
  const auto width = static_cast<size_t>(window.width),
             plane = static_cast<size_t>(window.height) * width;
  const uint8_t* from = inner_.data();
  for (size_t c = 0; c < static_cast<size_t>(preprocess_.channels); ++c) {
    uint8_t* const to = out.data() + c * plane;
    std::fill_n(to, plane, preprocess_.border[c]);
    for (size_t y = 0; y < rows; ++y, from += columns)
      std::copy_n(from, columns,
                  to + (static_cast<size_t>(top) + y) * width + static_cast<size_t>(left));
  }
}

}  // namespace vitrum
