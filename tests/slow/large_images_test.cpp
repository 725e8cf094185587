// The largest images that are read: each costs about two seconds and three times its pixels at
// most, whatever it takes to write it.
#include <gtest/gtest.h>

#include "tests/support/data_files.h"
#include "tests/support/hostile_files.h"
#include "tests/support/measured.h"
#include "vitrum/data/decode.h"

namespace vitrum::test {
namespace {

#ifdef NDEBUG
constexpr double kMaxSeconds = 4;  // on any machine
#else
constexpr double kMaxSeconds = 18;
#endif

void expect_cheap(const std::string& name, int height, int width, const std::string& bytes) {
  SCOPED_TRACE(name);
  const Bytes file(bytes.begin(), bytes.end());
  const Measured cost = measure([&] {
    const Image image = decode_image(file, name);
    EXPECT_EQ(std::pair(image.height, image.width), std::pair(height, width));
  });
  EXPECT_EQ(cost.code, 0) << cost.message;
  EXPECT_LT(cost.seconds, kMaxSeconds);
  EXPECT_LT(cost.grown_kb, int64_t{3} * 3 * height * width / 1024 + 65536);
  std::printf("%s: %.2f s, %ld MB\n", name.c_str(), cost.seconds,
              static_cast<long>(cost.grown_kb / 1024));
}

// Rows with filter 4 (Paeth), the dearest.
std::string png(int side, int depth, int color, int samples) {
  const size_t row = 1 + static_cast<size_t>(side * samples * depth / 8);
  std::string block;
  const size_t rows = std::max<size_t>(1, (1 << 20) / row);
  for (size_t i = 0; i < rows; ++i) block += '\4' + std::string(row - 1, '\0');
  const size_t times = static_cast<size_t>(side) / rows + 1;
  const auto size = static_cast<uint32_t>(side);
  return png_of(size, size, depth, color,
                png_chunk("IDAT", zlib_repeated(block, times)) + png_chunk("IEND", ""));
}

std::string interlaced_png(int side, int depth, int color, int samples) {
  const auto size = static_cast<uint32_t>(side);
  const size_t bytes = size_t{size} * size * static_cast<size_t>(samples * depth / 8) + 4 * size;
  const std::string zeros(1 << 20, '\0');
  return png_of(
      size, size, depth, color,
      png_chunk("IDAT", zlib_repeated(zeros, bytes / zeros.size() + 1)) + png_chunk("IEND", ""),
      true);
}

TEST(LargeImages, CostLittle) {
  expect_cheap("PNG, grey", 13377, 13377, png(13377, 8, 0, 1));
  expect_cheap("PNG, RGB", 11500, 11500, png(11500, 8, 2, 3));
  expect_cheap("PNG, RGB of 16 bits", 8100, 8100, png(8100, 16, 2, 3));
  expect_cheap("PNG, interlaced RGB", 9990, 9990, interlaced_png(9990, 8, 2, 3));
  expect_cheap("PNG, interlaced RGBA of 16 bits", 6100, 6100, interlaced_png(6100, 16, 6, 4));
  expect_cheap("JPEG of 10 scans", 13300, 13300, jpeg_of_scans(13300, 13300, 10));
  expect_cheap("JPEG of 100 scans", 4200, 4200, jpeg_of_scans(4200, 4200, 100));
  expect_cheap("GIF", 13377, 13377, gif_of(13377, 13377));
}

}  // namespace
}  // namespace vitrum::test
