#include <webp/decode.h>

#include "vitrum/core/error.h"
#include "vitrum/data/codecs.h"

namespace vitrum {

Image decode_webp(std::span<const uint8_t> bytes, const std::string& name) {
  WebPBitstreamFeatures features;
  if (WebPGetFeatures(bytes.data(), bytes.size(), &features) != VP8_STATUS_OK) {
    fail_input("{}: broken WebP: the header cannot be read", name);
  }
  if (features.has_animation) fail_input("{}: animated WebP; expected a still image", name);
  Image image = allocate_rgb(features.width, features.height, name);
  const auto stride = 3 * static_cast<size_t>(image.width);
  PixelVector rgb(stride * static_cast<size_t>(image.height));
  if (!WebPDecodeRGBInto(bytes.data(), bytes.size(), rgb.data(), rgb.size(),
                         static_cast<int>(stride))) {
    fail_input("{}: broken WebP: the data is damaged or truncated", name);
  }
  for (int y = 0; y < image.height; ++y)
    store_row(rgb.data() + static_cast<size_t>(y) * stride, 3, image, y);
  return image;
}

}  // namespace vitrum
