#pragma once
#include <string>

#include "vitrum/core/parallel.h"
#include "vitrum/data/image.h"

namespace vitrum {

// The bytes of a PNG file: 8-bit grey (one channel) or RGB (three).
std::string encode_png(const Image& image);
// Many times faster and somewhat larger. The same bytes for any number of threads.
std::string encode_png(const Image& image, ThreadPool& pool);

}  // namespace vitrum
