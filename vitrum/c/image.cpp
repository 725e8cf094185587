// Interleaved pixels of a caller to planes of ours.
#include "vitrum/c/model.h"
#include "vitrum/core/checked.h"

namespace vitrum::c {

Image image_of(const vitrum_image& in, int64_t max_pixels) {
  given(in.pixels, "image->pixels");
  const bool known = in.channels == 1 || in.channels == 3 || in.channels == 4;
  if (!known) fail_usage("an image of {} channels; expected 1, 3 or 4", in.channels);
  if (in.width < 1 || in.height < 1 || in.width > max_pixels / in.height)
    fail_usage("an image of {} x {} pixels; expected 1 to {}", in.width, in.height, max_pixels);
  const auto step = static_cast<size_t>(in.channels), width = static_cast<size_t>(in.width);
  const size_t stride = in.stride > 0 ? in.stride : width * step;
  if (stride < width * step)
    fail_usage("a stride of {} bytes; {} pixels of {} channels need {}", stride, in.width,
               in.channels, width * step);
  const size_t bytes =
      capped_add(capped_mul(static_cast<size_t>(in.height) - 1, stride), width * step);
  if (bytes > static_cast<size_t>(PTRDIFF_MAX))
    fail_usage("a stride of {} bytes; {} rows of it are more than memory holds", stride, in.height);
  Image out;
  out.reshape(in.channels == 1 ? 1 : 3, in.height, in.width);
  for (int c = 0; c < out.channels; ++c) {
    uint8_t* to = out.plane(c);
    for (size_t y = 0; y < static_cast<size_t>(in.height); ++y) {
      const uint8_t* row = in.pixels + y * stride + static_cast<size_t>(c);
      for (size_t x = 0; x < width; ++x) *to++ = row[x * step];
    }
  }
  return out;
}

}  // namespace vitrum::c
