#include "vitrum/data/orientation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/data_files.h"

namespace vitrum {
namespace {

using test::Bytes;

Bytes bytes_of(std::string_view text) { return Bytes(text.begin(), text.end()); }

// A directory of two entries, the second being the orientation (a SHORT).
Bytes tiff(int orientation, bool big) {
  using namespace std::string_view_literals;
  Bytes exif = bytes_of(big ? "MM\0*\0\0\0\x08\0\x02"
                              "\x01\x0f\0\x02\0\0\0\x01\0\0\0\0"
                              "\x01\x12\0\x03\0\0\0\x01\0?\0\0\0\0\0\0"sv
                            : "II*\0\x08\0\0\0\x02\0"
                              "\x0f\x01\x02\0\x01\0\0\0\0\0\0\0"
                              "\x12\x01\x03\0\x01\0\0\0?\0\0\0\0\0\0\0"sv);
  *std::find(exif.begin() + 20, exif.end(), '?') = static_cast<uint8_t>(orientation);
  return exif;
}

void append(Bytes& to, const Bytes& from) { to.insert(to.end(), from.begin(), from.end()); }
void append_number(Bytes& to, size_t value, int bytes, bool big) {
  for (int i = 0; i < bytes; ++i)
    to.push_back(static_cast<uint8_t>(value >> 8 * (big ? bytes - 1 - i : i)));
}

Bytes with_segment(const Bytes& jpeg, const Bytes& segment) {
  Bytes out(jpeg.begin(), jpeg.begin() + 2);
  append(out, {0xff, 0xe1});
  append_number(out, segment.size() + 2, 2, true);
  append(out, segment);
  out.insert(out.end(), jpeg.begin() + 2, jpeg.end());
  return out;
}

Bytes jpeg_with_exif(const Bytes& jpeg, const Bytes& exif) {
  Bytes segment = {'E', 'x', 'i', 'f', 0, 0};
  append(segment, exif);
  return with_segment(jpeg, segment);
}

const Bytes& plain_jpeg() {
  static const Bytes jpeg = test::encode_jpeg(test::gradient(3, 16, 24));
  return jpeg;
}

// What Pillow's transpose() makes of the pixels 0..5 in two rows of three.
TEST(Orientation, TurnsAsPillowDoes) {
  const std::vector<std::vector<uint8_t>> expected = {
      {0, 1, 2, 3, 4, 5}, {2, 1, 0, 5, 4, 3}, {5, 4, 3, 2, 1, 0}, {3, 4, 5, 0, 1, 2},
      {0, 3, 1, 4, 2, 5}, {3, 0, 4, 1, 5, 2}, {5, 2, 4, 1, 3, 0}, {2, 5, 1, 4, 0, 3}};
  for (int orientation = 1; orientation <= 8; ++orientation) {
    Image image{1, 2, 3, {0, 1, 2, 3, 4, 5}};
    apply_orientation(orientation, image);
    EXPECT_EQ(image.height, orientation < 5 ? 2 : 3);
    EXPECT_THAT(image.pixels,
                testing::ElementsAreArray(expected[static_cast<size_t>(orientation - 1)]))
        << orientation;
  }
}

TEST(Orientation, IsReadFromEveryContainer) {
  for (int orientation = 1; orientation <= 8; ++orientation)
    for (const bool big : {false, true}) {
      const Bytes exif = tiff(orientation, big);
      EXPECT_EQ(read_orientation(jpeg_with_exif(plain_jpeg(), exif)), orientation);

      Bytes png = test::encode_png(test::gradient(3, 2, 2));
      Bytes chunk;
      append_number(chunk, exif.size(), 4, true);
      append(chunk, bytes_of("eXIf"));
      append(chunk, exif);
      append_number(chunk, 0, 4, true);
      png.insert(png.begin() + 33, chunk.begin(), chunk.end());  // after IHDR
      EXPECT_EQ(read_orientation(png), orientation);

      Bytes webp = bytes_of("RIFF....WEBPVP8 ");
      append_number(webp, 3, 4, false);
      append(webp, {1, 2, 3, 0});  // padded to an even length
      append(webp, bytes_of("EXIF"));
      append_number(webp, exif.size(), 4, false);
      append(webp, exif);
      EXPECT_EQ(read_orientation(webp), orientation);
    }
}

TEST(Orientation, ComesFromXmpWhereExifHasNone) {
  Bytes xmp = bytes_of("http://ns.adobe.com/xap/1.0/");
  xmp.push_back(0);
  append(xmp, bytes_of("<x tiff:Orientation=\"6\"/>"));
  const Bytes jpeg = with_segment(plain_jpeg(), xmp);
  EXPECT_EQ(read_orientation(jpeg), 6);
  EXPECT_EQ(read_orientation(jpeg_with_exif(jpeg, tiff(3, true))), 3);
}

TEST(Orientation, IsAppliedOnlyOnRequest) {
  const Bytes jpeg = jpeg_with_exif(plain_jpeg(), tiff(6, false));
  EXPECT_EQ(decode_image(jpeg, "a").width, 24);
  Image upright = decode_image(jpeg, "a", {.exif_orientation = true});
  EXPECT_EQ(upright.width, 16);
  Image expected = decode_image(jpeg, "a");
  apply_orientation(6, expected);
  EXPECT_EQ(upright.pixels, expected.pixels);
}

// Cut anywhere and with any byte changed, it is a number from 1 to 8 and nothing worse.
TEST(Orientation, SurvivesDamage) {
  const Bytes exif = tiff(6, false);
  const Bytes jpeg = jpeg_with_exif({plain_jpeg().begin(), plain_jpeg().begin() + 40}, exif);
  for (size_t cut = 0; cut < jpeg.size(); ++cut)
    EXPECT_LE(read_orientation(std::span(jpeg).first(cut)), 8);
  for (size_t at = 2; at < jpeg.size(); ++at)
    for (const int value : {0, 1, 0x7f, 0xff}) {
      Bytes damaged = jpeg;
      damaged[at] = static_cast<uint8_t>(value);
      const int orientation = read_orientation(damaged);
      EXPECT_TRUE(orientation >= 1 && orientation <= 8);
    }
}

}  // namespace
}  // namespace vitrum
