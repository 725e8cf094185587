#include <webp/decode.h>
#include <zlib.h>

#include <algorithm>
#include <vector>

#include "fuzz/support.h"
#include "tests/support/png_files.h"
#include "vitrum/data/decode.h"

namespace vitrum::fuzz {
namespace {

constexpr std::string_view kPng = "\x89PNG\r\n\x1a\n";

uint64_t big_endian(std::string_view bytes) {
  uint64_t n = 0;
  for (const char c : bytes) n = n << 8 | static_cast<uint8_t>(c);
  return n;
}
uint64_t little_endian(std::string_view bytes) {
  uint64_t n = 0;
  for (size_t i = bytes.size(); i-- > 0;) n = n << 8 | static_cast<uint8_t>(bytes[i]);
  return n;
}

// The most pixels that a file may claim to have.
uint64_t claimed_pixels(std::string_view bytes) {
  if (bytes.starts_with("\x89PNG") && bytes.size() >= 24)
    return big_endian(bytes.substr(16, 4)) * big_endian(bytes.substr(20, 4));
  if (bytes.starts_with("BM") && bytes.size() >= 26) {  // the height may be negative
    constexpr char kShortHeader = 12;
    if (bytes[14] == kShortHeader)
      return little_endian(bytes.substr(18, 2)) * little_endian(bytes.substr(20, 2));
    return little_endian(bytes.substr(18, 4)) * (little_endian(bytes.substr(22, 4)) & 0x7fffffff);
  }
  if (bytes.starts_with("GIF") && bytes.size() >= 13) {
    const uint64_t canvas = little_endian(bytes.substr(6, 2)) * little_endian(bytes.substr(8, 2));
    const size_t palette = bytes[10] & 0x80 ? 6u << (bytes[10] & 7) : 0;
    const size_t frame = bytes.find(',', 13 + palette);
    if (frame == bytes.npos || frame + 9 > bytes.size()) return canvas;
    const auto number = [&](size_t at) { return little_endian(bytes.substr(frame + at, 2)); };
    return std::max(canvas, (number(1) + number(5)) * (number(3) + number(7)));
  }
  int width = 0, height = 0;
  if (WebPGetInfo(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), &width, &height))
    return static_cast<uint64_t>(width) * static_cast<uint64_t>(height);
  if (!bytes.starts_with("\xff\xd8")) return 0;
  uint64_t most = 0;  // of all that may be a JPEG's frame header
  for (size_t at = 0; (at = bytes.find('\xff', at)) + 9 <= bytes.size() && at != bytes.npos; ++at)
    if ((bytes[at + 1] & 0xf0) == 0xc0)
      most =
          std::max(most, big_endian(bytes.substr(at + 5, 2)) * big_endian(bytes.substr(at + 7, 2)));
  return most;
}

// Large images take time, which is no finding; tests/weights/hostile_test.cpp has them.
void decode(Input bytes, std::string_view magic, size_t at = 0) {
  constexpr uint64_t kMaxClaim = 1 << 20;
  const std::string_view text = text_of(bytes);
  if (text.size() < at || !text.substr(at).starts_with(magic)) return;
  if (claimed_pixels(text) > kMaxClaim) return;
  judge([&] { decode_image(bytes, "image", {.exif_orientation = true}); });
}

// A fuzzer does not guess a checksum: behind a wrong one nothing would be reached.
std::vector<uint8_t> with_checksums(Input png) {
  std::vector<uint8_t> mended(png.begin(), png.end());
  for (size_t at = kPng.size(); at + 12 <= mended.size();) {
    const uint64_t length = big_endian(text_of(mended).substr(at, 4));
    if (length > mended.size() - at - 12) break;
    const auto crc = crc32(0, &mended[at + 4], static_cast<uInt>(length + 4));
    for (size_t i = 0; i < 4; ++i)
      mended[at + 8 + length + i] = static_cast<uint8_t>(crc >> (24 - 8 * i));
    at += 12 + length;
  }
  return mended;
}

}  // namespace

void jpeg(Input bytes) { decode(bytes, "\xff\xd8\xff"); }
void png(Input bytes) { decode(with_checksums(bytes), kPng); }
void webp(Input bytes) { decode(bytes, "RIFF"); }
void gif(Input bytes) { decode(bytes, "GIF8"); }
void bmp(Input bytes) { decode(bytes, "BM"); }

void tiff(Input bytes) {
  decode(bytes, {"II*\0", 4});
  decode(bytes, {"MM\0*", 4});
}

void heif(Input bytes) { decode(bytes, "ftyp", 4); }

void png_rows(Input bytes) {
  constexpr int kDepths[] = {1, 2, 4, 8, 16}, kColors[] = {0, 2, 3, 4, 6};
  if (bytes.size() < 4) return;
  const std::string_view rows = text_of(bytes.subspan(4));
  uLongf size = compressBound(rows.size());
  std::string packed(size, '\0');
  compress2(reinterpret_cast<Bytef*>(packed.data()), &size,
            reinterpret_cast<const Bytef*>(rows.data()), rows.size(), 1);
  packed.resize(size);
  const size_t half = packed.size() / 2;  // more than one chunk
  const std::string png = test::png_of(
      bytes[1] % 64 + 1u, bytes[2] % 64 + 1u, kDepths[bytes[0] % 5], kColors[bytes[0] / 8 % 5],
      test::png_chunk("PLTE", rows.substr(0, 3 * (bytes[3] % 86u))) +
          test::png_chunk("IDAT", packed.substr(0, half)) +
          test::png_chunk("IDAT", packed.substr(half)) + test::png_chunk("IEND", ""),
      bytes[0] >= 128);
  judge([&] { decode_image({reinterpret_cast<const uint8_t*>(png.data()), png.size()}, "image"); });
}

}  // namespace vitrum::fuzz
