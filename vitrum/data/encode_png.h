#pragma once
#include <string>

#include "vitrum/data/image.h"

namespace vitrum {

// The bytes of a PNG file: 8-bit grey (one channel) or RGB (three). `fast` makes it several times
// faster and somewhat larger.
std::string encode_png(const Image& image, bool fast = false);

}  // namespace vitrum
