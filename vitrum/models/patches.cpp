#include "vitrum/models/patches.h"

#include <numeric>

namespace vitrum {

Value whole_patches(Value image, int64_t patch_h, int64_t patch_w) {
  const int64_t h = image.dim(2), w = image.dim(3), rows = h / patch_h * patch_h,
                columns = w / patch_w * patch_w;
  if (rows == h && columns == w) return image;
  // In runs of pixels that both widths are multiples of.
  const int64_t run = std::gcd(w, columns), planes = image.dim(1);
  std::vector<int32_t> from;
  for (int64_t line = 0; line < planes * h; ++line)
    for (int64_t x = 0; x < columns / run && line % h < rows; ++x)
      from.push_back(static_cast<int32_t>(line * (w / run) + x));
  return image.graph().emit("crop", GatherTokens{planes * h * (w / run), run, std::move(from)},
                            {image}, {{image.dim(0), planes, rows, columns}});
}

}  // namespace vitrum
