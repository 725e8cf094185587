#include "vitrum/data/encode_png.h"

#include <png.h>

#include <cassert>

#include "vitrum/core/error.h"

namespace vitrum {

std::string encode_png(const Image& image) {
  assert(image.channels == 1 || image.channels == 3);
  const auto channels = static_cast<size_t>(image.channels);
  std::vector<uint8_t> interleaved(image.pixels.size());
  for (size_t c = 0; c < channels; ++c)
    for (size_t i = 0; i < image.plane_size(); ++i)
      interleaved[i * channels + c] = image.plane(static_cast<int>(c))[i];

  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  header.width = static_cast<png_uint_32>(image.width);
  header.height = static_cast<png_uint_32>(image.height);
  header.format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  png_alloc_size_t bytes = PNG_IMAGE_PNG_SIZE_MAX(header);
  std::string out(bytes, '\0');
  if (!png_image_write_to_memory(&header, out.data(), &bytes, 0, interleaved.data(), 0, nullptr))
    fail("cannot make a PNG of {}x{}: {}", image.width, image.height, header.message);
  out.resize(bytes);
  return out;
}

}  // namespace vitrum
