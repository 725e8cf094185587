#include "vitrum/data/encode_webp.h"

#include <webp/encode.h>

#include <cassert>

#include "vitrum/core/error.h"

namespace vitrum {

std::string encode_webp(const Image& image, float quality) {
  assert(image.channels == 3);
  std::vector<uint8_t> interleaved(image.pixels.size());
  for (size_t c = 0; c < 3; ++c)
    for (size_t i = 0; i < image.plane_size(); ++i)
      interleaved[i * 3 + c] = image.plane(static_cast<int>(c))[i];
  uint8_t* bytes = nullptr;
  const size_t size = WebPEncodeRGB(interleaved.data(), image.width, image.height, image.width * 3,
                                    quality, &bytes);
  std::string out(reinterpret_cast<const char*>(bytes), size);
  WebPFree(bytes);
  if (size == 0) fail("cannot make a WebP of {}x{}", image.width, image.height);
  return out;
}

}  // namespace vitrum
