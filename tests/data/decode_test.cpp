#include "vitrum/data/decode.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <fstream>

#include "tests/support/archives.h"
#include "tests/support/data_files.h"
#include "tests/support/hostile_files.h"
#include "vitrum/core/error.h"
#include "vitrum/core/philox.h"
#include "vitrum/data/encode_png.h"
#include "vitrum/data/folder.h"
#include "vitrum/data/huffman.h"
#include "vitrum/data/optional_codecs.h"

namespace vitrum {
namespace {

using test::Bytes;
using test::input_error;
using testing::AllOf;
using testing::HasSubstr;

const std::string kGolden = VITRUM_SOURCE_DIR "/tests/golden/images/";

struct Expected {
  std::string file;
  int height, width;
  uint32_t crc;
};

bool available(const std::string& codec) {
  for (const CodecStatus& status : optional_codecs())
    if (status.name == codec) return status.available;
  return false;
}

std::vector<Expected> golden() {
  std::ifstream list(kGolden + "expected.txt");
  std::vector<Expected> all;
  for (Expected e; list >> e.file >> e.height >> e.width >> e.crc;)
    if (!e.file.ends_with(".tif") || available("TIFF")) all.push_back(e);
  return all;
}

// Grey, palette, 16 bits, alpha, CMYK, progressive, EXIF-rotated, WebP, GIF, BMP, TIFF: see
// tools/golden/image_golden.py.
TEST(Decode, EqualsPillowPixelForPixel) {
  const auto all = golden();
  EXPECT_GE(all.size(), 45u);
  for (const Expected& e : all) {
    const Image image = read_image(kGolden + e.file);
    EXPECT_EQ(image.channels, 3) << e.file;
    EXPECT_EQ(image.height, e.height) << e.file;
    EXPECT_EQ(image.width, e.width) << e.file;
    const auto crc = crc32(0, image.pixels.data(), static_cast<unsigned>(image.pixels.size()));
    EXPECT_EQ(static_cast<uint32_t>(crc), e.crc) << e.file;
  }
}

// pillow-heif and Pillow have other builds of the codecs, which round differently.
TEST(Decode, ReadsHeicAndAvif) {
  if (!available("HEIC, AVIF")) GTEST_SKIP() << "libheif is not installed";
  for (const std::string file : {"photo.heic", "turned.heic", "photo.avif"}) {
    const Image image = read_image(kGolden + file), same = read_image(kGolden + file + ".png");
    ASSERT_EQ(std::pair(image.height, image.width), std::pair(same.height, same.width)) << file;
    int most = 0;
    for (size_t i = 0; i < image.pixels.size(); ++i)
      most = std::max(most, std::abs(image.pixels[i] - same.pixels[i]));
    EXPECT_LE(most, 2) << file;
    const DecodeOptions upright{.exif_orientation = true};  // turned by its own boxes already
    EXPECT_EQ(read_image(kGolden + file, upright).pixels, image.pixels) << file;
  }
}

// Phones and scanners write them in capitals, too.
TEST(Decode, FoldersHoldEveryKind) {
  const test::TempDir dir;
  for (const char* name : {"a.JPG", "b.jpeg", "c.png", "d.webp", "e.gif", "f.bmp", "g.tif",
                           "h.TIFF", "i.HEIC", "j.heif", "k.avif", "l.txt", "m"})
    std::ofstream(dir / name).close();
  EXPECT_EQ(image_files(dir.path()).size(), 11u);
}

TEST(Decode, RefusesWhatIsNoImage) {
  const std::string text = "GIF88a this is no JPEG";
  EXPECT_THAT(input_error([&] { decode_image(Bytes(text.begin(), text.end()), "cat.jpg"); }),
              AllOf(HasSubstr("cat.jpg"), HasSubstr("not a JPEG, PNG, WebP, GIF, BMP")));
  EXPECT_THAT(input_error([&] { decode_image({}, "cat.jpg"); }), HasSubstr("empty"));
  EXPECT_THAT(input_error([&] { read_image("/no/such/cat.jpg"); }), HasSubstr("/no/such/cat.jpg"));
  EXPECT_THAT(input_error([&] { read_image(VITRUM_SOURCE_DIR); }), HasSubstr("folder"));
  const Bytes broken = {0xff, 0xd8, 0xff, 0xe0, 1, 2, 3};
  EXPECT_THAT(input_error([&] { decode_image(broken, "cat.jpg"); }),
              HasSubstr("cat.jpg: broken JPEG"));
}

TEST(Decode, RefusesTruncatedFiles) {
  const Bytes jpeg = test::encode_jpeg(test::gradient(3, 40, 50)),
              png = test::encode_png(test::gradient(3, 40, 50));
  for (size_t parts = 1; parts < 10; ++parts) {
    const Bytes half_jpeg(jpeg.begin(),
                          jpeg.begin() + static_cast<int64_t>(jpeg.size() * parts / 10));
    EXPECT_THAT(input_error([&] { decode_image(half_jpeg, "j"); }), HasSubstr("j: broken JPEG: "))
        << parts;
    const Bytes half_png(png.begin(), png.begin() + static_cast<int64_t>(png.size() * parts / 10));
    EXPECT_THAT(input_error([&] { decode_image(half_png, "p"); }),
                HasSubstr("p: broken PNG: premature end"))
        << parts;
  }
}

// 60000 x 60000 pixels in the header, and nothing behind it.
TEST(Decode, RefusesTooManyPixelsFromTheHeader) {
  Bytes png = test::encode_png(test::gradient(1, 2, 2));
  for (const size_t at : {16u, 20u}) png[at + 2] = 0xea, png[at + 3] = 0x60;
  const auto crc = crc32(0, png.data() + 12, 17);
  for (size_t i = 0; i < 4; ++i) png[29 + i] = static_cast<uint8_t>(crc >> (24 - 8 * i));
  EXPECT_THAT(input_error([&] { decode_image(png, "p"); }),
              HasSubstr("60000 x 60000 pixels are more than the limit"));

  Bytes jpeg = test::encode_jpeg(test::gradient(1, 8, 8));
  const Bytes frame = {0xff, 0xc0, 0x00, 0x0b};
  const auto at = std::search(jpeg.begin(), jpeg.end(), frame.begin(), frame.end());
  ASSERT_NE(at, jpeg.end());
  at[5] = 0xea, at[6] = 0x60, at[7] = 0xea, at[8] = 0x60;
  EXPECT_THAT(input_error([&] { decode_image(jpeg, "j"); }),
              HasSubstr("60000 x 60000 pixels are more than the limit"));
}

TEST(Decode, ReadsOnePixel) {
  Image one = test::gradient(3, 1, 1);
  EXPECT_EQ(decode_image(test::encode_png(one), "p").pixels, one.pixels);
  EXPECT_EQ(decode_image(test::encode_jpeg(one), "j").pixels.size(), 3u);
}

// Pillow's reading of a file that names no colours.
TEST(Decode, IndicesWithoutAPaletteAreGrey) {
  std::string gif = test::gif_of(2, 3);
  gif[10] = '\x01';  // no palette follows
  gif.erase(13, 12);
  EXPECT_THAT(decode_image(Bytes(gif.begin(), gif.end()), "g").pixels, testing::Each(1));
}

// A grey TIFF of 20 x 5 pixels in two tiles of 16 x 16, whose places and sizes stand behind them.
TEST(Decode, TilesOfATiffAreJoined) {
  if (!available("TIFF")) GTEST_SKIP() << "libtiff is not installed";
  constexpr uint32_t kSide = 16, kTile = kSide * kSide;
  std::string data;
  for (uint32_t i = 0; i < 2 * kTile; ++i) data += static_cast<char>(7 * i % 251);
  const auto word = [](uint32_t n) { return test::little_endian(n); };
  data += word(8) + word(8 + kTile) + word(kTile) + word(kTile);
  std::string tiff = test::tiff_of(
      {{256, 20}, {257, 5}, {258, 8}, {259, 1}, {262, 1}, {277, 1}, {322, kSide}, {323, kSide}},
      data);
  // Two numbers each, behind the tiles, in place of one.
  for (const auto& [tag, at] : {std::pair(273, 8 + 2 * kTile), {279, 16 + 2 * kTile}}) {
    const std::string entry = test::little_endian(static_cast<uint16_t>(tag)) +
                              test::little_endian(static_cast<uint16_t>(4));
    tiff.replace(tiff.rfind(entry) + 4, 8, word(2) + word(at));
  }
  const Image image = decode_image(Bytes(tiff.begin(), tiff.end()), "t");
  ASSERT_EQ(std::pair(image.height, image.width), std::pair(5, 20));
  for (uint32_t y = 0; y < 5; ++y)
    for (uint32_t x = 0; x < 20; ++x)
      EXPECT_EQ(image.pixels[y * 20 + x],
                static_cast<uint8_t>(data[x / kSide * kTile + y * kSide + x % kSide]))
          << y << " " << x;
}

// Neither waits for a writer nor takes memory for what a file system only claims.
TEST(Decode, RefusesPipesDevicesAndEndlessFiles) {
  const test::TempDir dir;
  const std::string pipe = dir / "pipe.jpg", sparse = dir / "sparse.jpg";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(input_error([&] { read_bytes(pipe); }), HasSubstr("pipe.jpg: is a pipe"));
  EXPECT_THAT(input_error([&] { read_bytes("/dev/zero"); }), HasSubstr("a device"));
  std::ofstream(sparse).close();
  ASSERT_EQ(truncate(sparse.c_str(), off_t{1} << 40), 0);
  EXPECT_THAT(input_error([&] { read_bytes(sparse); }), HasSubstr("more than the limit"));
}

// Damaged bytes and cut ends of every golden file: an image or a clear error, never a crash.
TEST(Decode, SurvivesDamage) {
  for (const Expected& e : golden()) {
    const Bytes good = read_bytes(kGolden + e.file);
    for (uint32_t i = 0; i < 150; ++i) {
      Bytes bytes = good;
      const uint32_t random = (i + 1) * 2654435761u;
      bytes[random % bytes.size()] = static_cast<uint8_t>(random >> 24);
      if (i % 5 == 0) bytes.resize(random % bytes.size());
      try {
        decode_image(bytes, e.file);
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kInput) << error.what();
      }
    }
  }
}

// Strips must fit together, whatever their number and whoever compresses them.
TEST(EncodePng, FastFilesAreRead) {
  ThreadPool one(1), three(3);
  for (const auto& [channels, height, width] :
       {std::tuple(3, 1, 1), {1, 1, 65000}, {1, 700, 1}, {3, 300, 700}, {1, 500, 600}}) {
    SCOPED_TRACE(testing::Message() << channels << " " << height << " " << width);
    Image image = test::gradient(channels, height, width);
    PhiloxStream random(1, 2, 3);
    for (size_t i = 0; i < image.pixels.size(); i += 3)
      image.pixels[i] = static_cast<uint8_t>(image.pixels[i] + random.below(8));
    const std::string png = encode_png(image, three);
    EXPECT_EQ(png, encode_png(image, one));
    const Bytes bytes(png.begin(), png.end());
    const Image back = decode_image(bytes, "p");  // RGB always
    EXPECT_EQ(std::pair(back.height, back.width), std::pair(height, width));
    for (int c = 0; c < 3; ++c)
      EXPECT_TRUE(std::equal(back.plane(c), back.plane(c) + back.plane_size(),
                             image.plane(std::min(c, channels - 1))));
    EXPECT_LT(png.size(), image.pixels.size() + 1000);
  }
}

std::vector<uint8_t> inflated(const std::string& raw, size_t room) {
  std::vector<uint8_t> out(room + 1);
  z_stream stream{};
  inflateInit2(&stream, -15);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(raw.data()));
  stream.avail_in = static_cast<uInt>(raw.size());
  stream.next_out = out.data(), stream.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(inflate(&stream, Z_FINISH), Z_STREAM_END);
  EXPECT_EQ(stream.avail_in, 0u);
  out.resize(stream.total_out);
  inflateEnd(&stream);
  return out;
}

TEST(Huffman, WhateverIsWrittenComesBack) {
  std::vector<std::vector<uint8_t>> cases = {{}, {7}, std::vector<uint8_t>(5000, 0)};
  PhiloxStream random(1, 2, 4);
  for (auto* noise = &cases.emplace_back(); noise->size() < 70000;)
    noise->push_back(static_cast<uint8_t>(random.below(256)));
  // Counts that double want codes of up to 18 bits.
  cases.emplace_back();
  for (int s = 0; s < 18; ++s)
    cases.back().insert(cases.back().end(), size_t{1} << s, static_cast<uint8_t>(9 * s));
  for (const auto& bytes : cases) {
    EXPECT_EQ(inflated(deflate_literals(bytes, true), bytes.size()), bytes);
    const std::string twice = deflate_literals(bytes, false) + deflate_literals(bytes, true);
    std::vector<uint8_t> both = bytes;
    both.insert(both.end(), bytes.begin(), bytes.end());
    EXPECT_EQ(inflated(twice, both.size()), both);
  }
}

}  // namespace
}  // namespace vitrum
