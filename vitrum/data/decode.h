// Image files to RGB: JPEG, PNG, WebP, GIF and BMP; TIFF, HEIC and AVIF where their libraries are
// installed (optional_codecs.h). Pixel for pixel what Pillow's Image.open(f).convert("RGB") gives:
// alpha is dropped (not composited), and EXIF orientation is applied only where that is asked for.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "vitrum/data/image.h"

namespace vitrum {

// Images with more pixels are refused before anything is allocated (Pillow's limit).
inline constexpr int64_t kMaxPixels = 178'956'970;
// Nor longer than this on a side: rows cost time of their own.
inline constexpr int64_t kMaxSide = 65'535;
// Nor from more bytes.
inline constexpr int64_t kMaxImageFile = int64_t{2} << 30;

struct DecodeOptions {
  bool exif_orientation = false;    // turn the image upright, as Pillow's ImageOps.exif_transpose
  int64_t max_pixels = kMaxPixels;  // a server takes fewer
};

// The format is told by the first bytes, not by a file name; `name` is for messages.
Image decode_image(std::span<const uint8_t> bytes, const std::string& name,
                   const DecodeOptions& options = {});
// Only a part, the same pixels: of a JPEG, what lies outside it is not computed.
Image decode_part(std::span<const uint8_t> bytes, const std::string& name,
                  const ChooseWindow& choose);
Image read_image(const std::string& path, const DecodeOptions& options = {});

std::vector<uint8_t> read_bytes(const std::string& path);

}  // namespace vitrum
