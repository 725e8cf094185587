// What the decoders share. Internal to data/.
#pragma once
#include <csetjmp>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "vitrum/data/image.h"

namespace vitrum {

// With `choose`, only that window.
Image decode_jpeg(std::span<const uint8_t> bytes, const std::string& name,
                  const ChooseWindow* choose = nullptr);
Image decode_png(std::span<const uint8_t> bytes, const std::string& name);
Image decode_webp(std::span<const uint8_t> bytes, const std::string& name);
Image decode_gif(std::span<const uint8_t> bytes, const std::string& name);
Image decode_bmp(std::span<const uint8_t> bytes, const std::string& name);
Image decode_tiff(std::span<const uint8_t> bytes, const std::string& name);
Image decode_heif(std::span<const uint8_t> bytes, const std::string& name);

// Bytes of all rows as a lossless file stores them, samples of 16 bits and alpha included: so many
// are inflated and undone in less than two seconds.
inline constexpr uint64_t kMaxStored = 400'000'000;

bool starts_with(std::span<const uint8_t> bytes, std::string_view magic, size_t at = 0);
bool is_tiff(std::span<const uint8_t> bytes);

// Fails unless each side is at most kMaxSide and 0 < width * height <= kMaxPixels; otherwise an RGB
// image of that size.
Image allocate_rgb(int64_t width, int64_t height, const std::string& name);

struct Rgb {
  uint8_t red = 0, green = 0, blue = 0;
};
inline void store_pixel(Rgb color, Image& image, size_t at) {
  image.plane(0)[at] = color.red, image.plane(1)[at] = color.green, image.plane(2)[at] = color.blue;
}

// One row of interleaved grey (components = 1) or RGB (3) pixels into row `y` of a planar RGB
// image.
void store_row(const uint8_t* row, int components, Image& image, int y);

// libjpeg and libpng report errors by a jump, which must not pass over destructors: `body` makes
// plain C calls only.
template <class Body>
bool completes(std::jmp_buf& on_error, const Body& body) {
  if (setjmp(on_error) != 0) return false;
  body();
  return true;
}

}  // namespace vitrum
