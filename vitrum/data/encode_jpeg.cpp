#include "vitrum/data/encode_jpeg.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
// libjpeg's header needs FILE declared before it.
#include <jpeglib.h>

#include "vitrum/core/error.h"
#include "vitrum/data/codecs.h"

namespace vitrum {
namespace {

struct ErrorHandler : jpeg_error_mgr {
  std::jmp_buf jump;
};

[[noreturn]] void on_error(j_common_ptr jpeg) {
  std::longjmp(static_cast<ErrorHandler*>(jpeg->err)->jump, 1);
}

struct Encoder {
  jpeg_compress_struct jpeg{};
  ErrorHandler errors;
  unsigned char* data = nullptr;
  unsigned long size = 0;
  ~Encoder() {
    jpeg_destroy_compress(&jpeg);
    std::free(data);
  }
};

void interleave(const Image& image, int y, std::vector<uint8_t>& row) {
  const auto width = static_cast<size_t>(image.width),
             channels = static_cast<size_t>(image.channels);
  for (size_t c = 0; c < channels; ++c) {
    const uint8_t* from = image.plane(static_cast<int>(c)) + static_cast<size_t>(y) * width;
    for (size_t x = 0; x < width; ++x) row[x * channels + c] = from[x];
  }
}

}  // namespace

std::vector<uint8_t> encode_jpeg(const Image& image, int quality) {
  Encoder e;
  std::vector<uint8_t> row(static_cast<size_t>(image.width) * static_cast<size_t>(image.channels));
  e.jpeg.err = jpeg_std_error(&e.errors);
  e.errors.error_exit = on_error;
  const bool done = completes(e.errors.jump, [&] {
    jpeg_create_compress(&e.jpeg);
    jpeg_mem_dest(&e.jpeg, &e.data, &e.size);
    e.jpeg.image_width = static_cast<unsigned>(image.width);
    e.jpeg.image_height = static_cast<unsigned>(image.height);
    e.jpeg.input_components = image.channels;
    e.jpeg.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_set_defaults(&e.jpeg);
    jpeg_set_quality(&e.jpeg, quality, TRUE);
    jpeg_start_compress(&e.jpeg, TRUE);
    while (e.jpeg.next_scanline < e.jpeg.image_height) {
      interleave(image, static_cast<int>(e.jpeg.next_scanline), row);
      uint8_t* rows = row.data();
      jpeg_write_scanlines(&e.jpeg, &rows, 1);
    }
    jpeg_finish_compress(&e.jpeg);
  });
  if (!done)
    fail("an image of {} x {} pixels cannot be written as JPEG", image.width, image.height);
  return {e.data, e.data + e.size};
}

}  // namespace vitrum
