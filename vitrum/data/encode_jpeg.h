#pragma once
#include <cstdint>
#include <vector>

#include "vitrum/data/image.h"

namespace vitrum {

// Grey or RGB; quality from 1 to 100 as libjpeg and Pillow have it, colours at half the resolution.
std::vector<uint8_t> encode_jpeg(const Image& image, int quality);

}  // namespace vitrum
