// What the three decoders share. Internal to data/.
#pragma once
#include <csetjmp>
#include <cstdint>
#include <span>
#include <string>

#include "vitrum/data/image.h"

namespace vitrum {

// With `choose`, only that window.
Image decode_jpeg(std::span<const uint8_t> bytes, const std::string& name,
                  const ChooseWindow* choose = nullptr);
Image decode_png(std::span<const uint8_t> bytes, const std::string& name);
Image decode_webp(std::span<const uint8_t> bytes, const std::string& name);

// Fails unless 0 < width * height <= kMaxPixels; otherwise an RGB image of that size.
Image allocate_rgb(int64_t width, int64_t height, const std::string& name);

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
