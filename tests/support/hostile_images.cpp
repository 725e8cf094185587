#include <webp/encode.h>
#include <zlib.h>

#include <algorithm>

#include "tests/support/data_files.h"
#include "tests/support/hostile_files.h"

namespace vitrum::test {
namespace {

std::string big_endian(uint32_t n) {
  std::string s = little_endian(n);
  std::ranges::reverse(s);
  return s;
}

std::string zlib_of(std::string_view bytes) {
  uLongf size = compressBound(bytes.size());
  std::string out(size, '\0');
  compress(reinterpret_cast<Bytef*>(out.data()), &size,
           reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  out.resize(size);
  return out;
}

std::string jpeg() {
  const Bytes bytes = encode_jpeg(gradient(3, 40, 50));
  return {bytes.begin(), bytes.end()};
}

// The bytes of a good JPEG from `offset` behind this marker's two on are replaced.
std::string jpeg_with(char marker, size_t offset, std::string_view bytes) {
  std::string s = jpeg();
  return s.replace(s.find(std::string{'\xff', marker}) + 2 + offset, bytes.size(), bytes);
}
std::string jpeg_without(char marker) {
  std::string s = jpeg();
  for (size_t at; (at = s.find(std::string{'\xff', marker})) != s.npos;)
    s.erase(at, 2 + 256 * static_cast<uint8_t>(s[at + 2]) + static_cast<uint8_t>(s[at + 3]));
  return s;
}
// Height and width stand in the frame header behind its length and precision.
std::string jpeg_sized(uint32_t height, uint32_t width, char frame = '\xc0') {
  std::string s = jpeg_with('\xc0', 3, big_endian(height << 16 | width));
  s[s.find("\xff\xc0") + 1] = frame;
  return s;
}

// A progressive image whose second scan comes again and again.
std::string many_scans() {
  std::string s = jpeg_sized(4000, 4000, '\xc2');
  const size_t scan = s.find("\xff\xda");
  s.resize(scan);
  const std::string dc("\xff\xda\0\x0c\3\1\0\2\x11\3\x11\0\0\0\0", 15),
      ac("\xff\xda\0\x08\1\1\0\1\x05\0\xff\xd9", 10);
  s += dc;
  for (int i = 0; i < 100'000; ++i) s += ac;
  return s;
}

const std::string kSignature = "\x89PNG\r\n\x1a\n";

// 2 x 2 grey pixels, of which `idat` is the compressed data.
std::string grey_png(std::string_view idat) {
  return png_of(2, 2, 8, 0, png_chunk("IDAT", idat) + png_chunk("IEND", ""));
}

std::string webp(bool lossless) {
  const std::vector<uint8_t> rgb(40 * 50 * 3, 77);
  uint8_t* out = nullptr;
  const size_t size = lossless ? WebPEncodeLosslessRGB(rgb.data(), 50, 40, 150, &out)
                               : WebPEncodeRGB(rgb.data(), 50, 40, 150, 80, &out);
  std::string s(reinterpret_cast<char*>(out), size);
  WebPFree(out);
  return s;
}

std::string riff(std::string_view chunks) {
  return "RIFF" + little_endian(static_cast<uint32_t>(chunks.size() + 4)) + "WEBP" +
         std::string(chunks);
}
std::string extended_webp(char flags, std::string_view more) {  // canvas of 16777216 x 16777216
  return riff("VP8X" + little_endian<uint32_t>(10) + flags + std::string(3, '\0') +
              std::string(6, '\xff') + std::string(more));
}

}  // namespace

std::string png_chunk(std::string_view type, std::string_view data) {
  const std::string body = std::string(type) + std::string(data);
  const auto crc =
      crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return big_endian(static_cast<uint32_t>(data.size())) + body +
         big_endian(static_cast<uint32_t>(crc));
}

std::string png_of(uint32_t width, uint32_t height, int depth, int color, std::string_view more) {
  return kSignature +
         png_chunk("IHDR",
                   big_endian(width) + big_endian(height) +
                       std::string{static_cast<char>(depth), static_cast<char>(color), 0, 0, 0}) +
         std::string(more);
}

HostileFiles hostile_jpegs() {
  const std::string good = jpeg();
  const auto cut = [&](size_t percent) {
    return hostile("cut at " + std::to_string(percent) + " %", "broken JPEG",
                   good.substr(0, good.size() * percent / 100));
  };
  const std::string start = good.substr(0, good.find("\xff\xda"));
  return {
      hostile("empty", "is empty", ""),
      hostile("a GIF", "not a JPEG, PNG or WebP", "GIF89a" + std::string(20, '\0')),
      hostile("HTML", "not a JPEG, PNG or WebP", "<!DOCTYPE html><title>404</title>"),
      hostile("only the magic", "broken JPEG", "\xff\xd8\xff"),
      hostile("start and end", "broken JPEG", "\xff\xd8\xff\xd9"),
      cut(5),
      cut(10),
      cut(30),
      cut(50),
      cut(80),
      cut(95),
      hostile("no end marker", "broken JPEG", good.substr(0, good.size() - 2)),
      hostile("65535 x 65535", "Maximum supported", jpeg_sized(65535, 65535)),
      hostile("65535 x 65535 progressive", "Maximum supported", jpeg_sized(65535, 65535, '\xc2')),
      hostile("65500 x 65500", "more than the limit", jpeg_sized(65500, 65500)),
      hostile("13000 x 13000 in 1 KB", "cannot hold", jpeg_sized(13000, 13000)),
      hostile("13000 x 13000 progressive", "cannot hold", jpeg_sized(13000, 13000, '\xc2')),
      {"13000 x 13000 cut off", "broken JPEG",
       [start = jpeg_sized(13000, 13000)] {
         return start.substr(0, start.size() - 2) + std::string(400'000, '\x5a');
       }},
      hostile("no height", "broken JPEG", jpeg_sized(0, 50)),
      hostile("no width", "broken JPEG", jpeg_sized(40, 0)),
      hostile("no frame", "broken JPEG", jpeg_without('\xc0')),
      hostile("no quantization tables", "broken JPEG", jpeg_without('\xdb')),
      hostile("no scan", "broken JPEG", start + "\xff\xd9"),
      hostile("12 bits", "broken JPEG", jpeg_with('\xc0', 2, "\x0c")),
      hostile("two components", "broken JPEG", jpeg_with('\xc0', 7, "\2")),
      hostile("sampling factor 0", "broken JPEG", jpeg_with('\xc0', 9, std::string(1, '\0'))),
      hostile("sampling factor 15", "broken JPEG", jpeg_with('\xc0', 9, "\xff")),
      hostile("quantization table 15", "broken JPEG", jpeg_with('\xdb', 2, "\x0f")),
      hostile("Huffman table 9", "broken JPEG", jpeg_with('\xc4', 2, "\x09")),
      hostile("Huffman table too long", "broken JPEG",
              jpeg_with('\xc4', 3, std::string(16, '\xff'))),
      hostile("segment of length 0", "broken JPEG", jpeg_with('\xc4', 0, std::string(2, '\0'))),
      hostile("scan of component 9", "broken JPEG", jpeg_with('\xda', 3, "\x09")),
      hostile("lossless", "broken JPEG", jpeg_sized(40, 50, '\xc3')),
      {"a hundred thousand scans", "too many scans", many_scans},
  };
}

HostileFiles hostile_pngs() {
  const std::string four = std::string("\0\1\2\0\3\4", 6);  // two rows with their filter bytes
  const std::string good = grey_png(zlib_of(four)), idat = png_chunk("IDAT", zlib_of(four));
  const std::string bomb = zlib_of(std::string(8 << 20, '\0'));
  std::string wrong_crc = good;
  wrong_crc[30] = static_cast<char>(wrong_crc[30] ^ 1);
  std::string long_chunk = good;
  long_chunk.replace(33, 4, "\x7f\xff\xff\xff");
  return {
      hostile("only the signature", "broken PNG", kSignature),
      hostile("cut in the header", "premature end", good.substr(0, 20)),
      hostile("cut in the data", "premature end", good.substr(0, 45)),
      hostile("65535 x 65535", "more than the limit", png_of(65535, 65535, 8, 2, idat)),
      hostile("2^31-1 x 1", "more than the limit", png_of(0x7fffffff, 1, 8, 0, idat)),
      hostile("2^32-1 x 2^32-1", "broken PNG", png_of(UINT32_MAX, UINT32_MAX, 8, 0, idat)),
      hostile("13000 x 13000 of nothing", "broken PNG",
              png_of(13000, 13000, 8, 2, idat + png_chunk("IEND", ""))),
      hostile("1 x 178000000 of nothing", "broken PNG",
              png_of(1, 178'000'000, 8, 6, idat + png_chunk("IEND", ""))),
      hostile("no width", "broken PNG", png_of(0, 5, 8, 0, idat)),
      hostile("no height", "broken PNG", png_of(5, 0, 8, 0, idat)),
      hostile("3 bits", "broken PNG", png_of(2, 2, 3, 0, idat)),
      hostile("colour type 5", "broken PNG", png_of(2, 2, 8, 5, idat)),
      hostile("wrong checksum", "broken PNG", wrong_crc),
      hostile("chunk of 2 GB", "broken PNG", long_chunk),
      hostile("no data", "broken PNG", png_of(2, 2, 8, 0, png_chunk("IEND", ""))),
      hostile("no palette", "broken PNG", png_of(2, 2, 8, 3, idat)),
      hostile("palette of 7 bytes", "broken PNG",
              png_of(2, 2, 8, 3, png_chunk("PLTE", "1234567") + idat)),
      hostile("data before the header", "broken PNG", kSignature + idat),
      hostile("data is no zlib", "broken PNG", grey_png("hello world")),
      hostile("zlib ends early", "broken PNG", grey_png(zlib_of(four).substr(0, 8))),
      hostile("too few rows", "broken PNG", grey_png(zlib_of(four.substr(0, 3)))),
      hostile("filter 9", "broken PNG", grey_png(zlib_of("\x09" + four.substr(1)))),
      hostile("bomb behind 20000 x 20000", "more than the limit",
              png_of(20000, 20000, 8, 2, png_chunk("IDAT", bomb))),
      hostile("bomb in a text", "broken PNG",
              png_of(2, 2, 8, 0,
                     png_chunk("zTXt", std::string("k\0\0", 3) + bomb) + png_chunk("IDAT", "x"))),
      hostile("bomb in a profile", "broken PNG",
              png_of(2, 2, 8, 0,
                     png_chunk("iCCP", std::string("k\0\0", 3) + bomb) + png_chunk("IDAT", "x"))),
  };
}

HostileFiles hostile_webps() {
  const std::string lossy = webp(false), lossless = webp(true);
  const std::string big_lossy = riff("VP8 " + little_endian<uint32_t>(10) +
                                     std::string("\x10\0\0\x9d\x01\x2a\xff\x3f\xff\x3f", 10));
  std::string wrong_tag = lossless;
  wrong_tag[20] = 'x';
  return {
      hostile("only the start", "broken WebP", std::string("RIFF\4\0\0\0WEBP", 12).substr(0, 12)),
      hostile("RIFF of nothing", "broken WebP", riff("")),
      hostile("unknown chunk", "broken WebP", riff("JUNK" + little_endian<uint32_t>(4) + "abcd")),
      hostile("lossy, cut in the header", "broken WebP", lossy.substr(0, 25)),
      hostile("lossy, cut", "broken WebP", lossy.substr(0, lossy.size() - 20)),
      hostile("lossless, cut in the header", "broken WebP", lossless.substr(0, 22)),
      hostile("lossless, cut", "broken WebP", lossless.substr(0, lossless.size() - 4)),
      hostile("lossless, wrong tag", "broken WebP", wrong_tag),
      hostile("16383 x 16383 lossy", "16383 x 16383 pixels are more", big_lossy),
      hostile("16384 x 16384 lossless", "16384 x 16384 pixels are more",
              riff("VP8L" + little_endian<uint32_t>(6) + "\x2f" +
                   little_endian<uint32_t>(0x0fffffff) + std::string(1, '\0'))),
      hostile("canvas of 2^24 x 2^24", "broken WebP", extended_webp(0, lossy.substr(12))),
      hostile("animation", "WebP", extended_webp(2, "")),
      hostile("chunk of 4 GB", "broken WebP", riff("VP8 " + little_endian(UINT32_MAX) + "abcd")),
  };
}

}  // namespace vitrum::test
