// JPEG, PNG and WebP to RGB, pixel for pixel what Pillow's Image.open(f).convert("RGB") gives:
// alpha is dropped (not composited), EXIF orientation is not applied.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "vitrum/data/image.h"

namespace vitrum {

// Images with more pixels are refused before anything is allocated (Pillow's limit).
inline constexpr int64_t kMaxPixels = 178'956'970;

// The format is told by the first bytes, not by a file name; `name` is for messages.
Image decode_image(std::span<const uint8_t> bytes, const std::string& name);
Image read_image(const std::string& path);

std::vector<uint8_t> read_bytes(const std::string& path);

}  // namespace vitrum
