#include "vitrum/data/resize.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <fstream>
#include <sstream>

#include "vitrum/core/error.h"

namespace vitrum {
namespace {

// The generator of tools/golden/image_golden.py.
Image generated(int channels, int height, int width, uint32_t seed) {
  Image image;
  image.reshape(channels, height, width);
  uint32_t state = seed;
  for (size_t i = 0; i < image.pixels.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    const uint32_t noise = state >> 24;
    const uint32_t kinds[] = {noise, noise > 127 ? 255u : 0u,
                              static_cast<uint32_t>(i * 3) + (noise >> 5)};
    image.pixels[i] = static_cast<uint8_t>(kinds[seed % 3]);
  }
  return image;
}

uint32_t crc(const Image& image) {
  return static_cast<uint32_t>(
      crc32(0, image.pixels.data(), static_cast<unsigned>(image.pixels.size())));
}

TEST(Resize, EqualsPillowByteForByte) {
  std::ifstream file(VITRUM_SOURCE_DIR "/tests/golden/resize.txt");
  int cases = 0;
  Resizer kept;  // tables kept between calls must not leak from one size to the next
  Image out;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream fields(line);
    int channels, height, width, new_height, new_width;
    std::string filter;
    uint32_t seed, expected;
    ASSERT_TRUE(fields >> channels >> height >> width >> new_height >> new_width >> filter >>
                seed >> expected);
    const Image in = generated(channels, height, width, seed);
    kept.resize(in, new_height, new_width, parse_filter(filter), out);
    ++cases;
    EXPECT_EQ(crc(out), expected) << line;
    EXPECT_EQ(crc(resize(in, new_height, new_width, parse_filter(filter))), expected) << line;
  }
  EXPECT_GE(cases, 500);
}

TEST(Resize, SameSizeIsACopy) {
  const Image in = generated(3, 5, 7, 1);
  for (const char* filter : {"nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"}) {
    EXPECT_EQ(resize(in, 5, 7, parse_filter(filter)).pixels, in.pixels);
    EXPECT_EQ(name_of(parse_filter(filter)), filter);
  }
}

TEST(Resize, NamesTheNearestFilter) {
  try {
    parse_filter("bicubc");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_NE(std::string(error.what()).find("'bicubic'"), std::string::npos);
  }
}

}  // namespace
}  // namespace vitrum
