#pragma once
#include <string>

#include "vitrum/data/image.h"

namespace vitrum {

// The bytes of a PNG file: 8-bit grey (one channel) or RGB (three).
std::string encode_png(const Image& image);

}  // namespace vitrum
