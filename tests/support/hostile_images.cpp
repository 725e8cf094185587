#include <webp/encode.h>
#include <zlib.h>

#include <algorithm>

#include "tests/support/data_files.h"
#include "tests/support/hostile_files.h"

namespace vitrum::test {
namespace {

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

// A GIF of 6 x 5 pixels; `bytes` replaces those from `at` on.
std::string gif_with(size_t at, std::string_view bytes) {
  std::string s = gif_of(6, 5);
  return s.replace(at, bytes.size(), bytes);
}

std::string bmp_of(int32_t width, int32_t height, uint32_t bits, uint32_t packing,
                   std::string_view more) {
  const auto word = [](uint32_t n) { return little_endian(n); };
  const auto half = [](uint32_t n) { return little_endian(static_cast<uint16_t>(n)); };
  return "BM" + word(0) + word(0) + word(54) + word(40) + word(static_cast<uint32_t>(width)) +
         word(static_cast<uint32_t>(height)) + half(1) + half(bits) + word(packing) +
         std::string(20, '\0') + std::string(more);
}

// A box of HEIF's: its length, its kind, what is in it.
std::string box(std::string_view kind, std::string_view content) {
  return big_endian(static_cast<uint32_t>(content.size() + 8)) + std::string(kind) +
         std::string(content);
}

}  // namespace

std::string zlib_repeated(std::string_view block, size_t times) {
  z_stream stream{};
  deflateInit(&stream, 9);
  std::string out(compressBound(block.size()) + 64, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(block.data()));
  stream.avail_in = static_cast<uInt>(block.size());
  stream.next_out = reinterpret_cast<Bytef*>(out.data());
  stream.avail_out = static_cast<uInt>(out.size());
  deflate(&stream, Z_FULL_FLUSH);  // ends on a byte, and nothing behind it looks back
  out.resize(stream.total_out);
  deflateEnd(&stream);
  const auto sum =
      adler32(1, reinterpret_cast<const Bytef*>(block.data()), static_cast<uInt>(block.size()));
  uLong check = 1;
  std::string all = out.substr(0, 2);
  for (size_t i = 0; i < times; ++i) {
    all.append(out, 2);
    check = adler32_combine(check, sum, static_cast<z_off_t>(block.size()));
  }
  return all + std::string("\3\0", 2) + big_endian(static_cast<uint32_t>(check));
}

std::string jpeg_of_scans(uint32_t height, uint32_t width, int scans) {
  std::string s = jpeg_sized(height, width, '\xc2');
  s.resize(s.find("\xff\xda"));
  const size_t least = size_t{height} * width / 512;  // what a large image must have
  while (s.size() < least) s += "\xff\xfe\xff\xff" + std::string(65533, ' ');
  s += std::string("\xff\xda\0\x0c\3\1\0\2\x11\3\x11\0\0\0\0", 15);
  for (int i = 1; i < scans; ++i) s += std::string("\xff\xda\0\x08\1\1\0\1\x05\0", 10);
  return s + "\xff\xd9";
}

std::string gif_of(int width, int height) {
  const auto half = [](int n) { return little_endian(static_cast<uint16_t>(n)); };
  std::string data;
  uint64_t held = 0;
  int count = 0;
  const auto put = [&](int code, int bits) {
    held |= uint64_t{static_cast<uint32_t>(code)} << count;
    for (count += bits; count >= 8; count -= 8, held >>= 8) data += static_cast<char>(held);
  };
  // Each code's string is one longer than that before it.
  constexpr int kClear = 4, kEnd = 5, kFull = 4096;
  const int64_t pixels = int64_t{width} * height;
  for (int64_t done = 0; done < pixels;) {
    int bits = 3, next = kEnd + 1;
    put(kClear, next == kEnd + 1 && done > 0 ? 12 : 3);
    put(1, bits), ++done;
    for (int length = 2; next < kFull - 1 && done < pixels; ++length) {
      put(next, bits), done += length;
      if (++next == 1 << bits && bits < 12) ++bits;
    }
    if (done >= pixels) put(kEnd, bits), put(0, 8);
  }
  std::string s = "GIF89a" + half(width) + half(height) + std::string("\x81\0\0", 3) +
                  "abcdefghijkl" + "," + std::string(4, '\0') + half(width) + half(height) +
                  std::string("\0\2", 2);
  for (size_t at = 0; at < data.size(); at += 255) {
    const std::string block = data.substr(at, 255);
    s += static_cast<char>(block.size()) + block;
  }
  return s + std::string("\0;", 2);
}

std::string tiff_of(std::vector<std::pair<uint16_t, uint32_t>> tags, std::string_view data) {
  // The data first, then the directory; the tags 273 and 279 say where the only strip is.
  tags.push_back({273, 8});
  tags.push_back({279, static_cast<uint32_t>(data.size())});
  std::ranges::stable_sort(tags, {}, &std::pair<uint16_t, uint32_t>::first);
  std::string s("II*\0", 4);
  s += little_endian(static_cast<uint32_t>(8 + data.size())) + std::string(data);
  s += little_endian(static_cast<uint16_t>(tags.size()));
  for (const auto& [tag, value] : tags)
    s += little_endian(tag) + little_endian<uint16_t>(4) + little_endian<uint32_t>(1) +
         little_endian(value);
  return s + little_endian<uint32_t>(0);
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
      hostile("a GIF of no version", "not a JPEG, PNG, WebP, GIF",
              "GIF88a" + std::string(20, '\0')),
      hostile("HTML", "not a JPEG, PNG, WebP, GIF", "<!DOCTYPE html><title>404</title>"),
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
      hostile("101 scans", "more than 100 scans", jpeg_of_scans(40, 50, 101)),
      {"a hundred thousand scans", "more than 100 scans",
       [] { return jpeg_of_scans(3000, 3000, 100'000); }},
  };
}

HostileFiles hostile_pngs() {
  const std::string four = std::string("\0\1\2\0\3\4", 6);  // two rows with their filter bytes
  const std::string good = grey_png(zlib_of(four)), idat = png_chunk("IDAT", zlib_of(four));
  const std::string mega(1 << 20, '\0'), bomb = zlib_repeated(mega, 8);
  std::string wrong_crc = good;
  wrong_crc[30] = static_cast<char>(wrong_crc[30] ^ 1);
  std::string long_chunk = good;
  long_chunk.replace(33, 4, "\x7f\xff\xff\xff");
  return {
      hostile("only the signature", "broken PNG", png_signature()),
      hostile("cut in the header", "premature end", good.substr(0, 20)),
      hostile("cut in the data", "premature end", good.substr(0, 45)),
      hostile("65535 x 65535", "more than the limit", png_of(65535, 65535, 8, 2, idat)),
      hostile("2^31-1 x 1", "more than the limit", png_of(0x7fffffff, 1, 8, 0, idat)),
      hostile("2^32-1 x 2^32-1", "broken PNG", png_of(UINT32_MAX, UINT32_MAX, 8, 0, idat)),
      hostile("13000 x 13000 of nothing", "cannot hold 13000 x 13000",
              png_of(13000, 13000, 8, 0, idat + png_chunk("IEND", ""))),
      hostile("1 x 178956970, all of it", "65535 on a side",
              png_of(1, 178'956'970, 8, 0, png_chunk("IDAT", zlib_repeated(mega, 342)))),
      hostile("178956970 x 1, all of it", "65535 on a side",
              png_of(178'956'970, 1, 8, 2, png_chunk("IDAT", zlib_repeated(mega, 512)))),
      hostile("13377 x 13377 of 64 bits, all of it", "limit of 400000000 bytes",
              png_of(13377, 13377, 16, 6, png_chunk("IDAT", zlib_repeated(mega, 1366)))),
      hostile("13377 x 13377 interlaced, all of it", "limit of 300000000 bytes",
              png_of(13377, 13377, 8, 2, png_chunk("IDAT", zlib_repeated(mega, 513)), true)),
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
      hostile("data before the header", "broken PNG", png_signature() + idat),
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
      hostile(
          "16139 x 9766 of nothing", "broken WebP",
          riff("VP8 " + little_endian<uint32_t>(200) +
               std::string("\x90\2\0\x9d\x01\x2a\x0b\x3f\x26\x26", 10) + std::string(190, '\x5a'))),
      hostile("16000 x 11000 lossless of nothing", "broken WebP",
              riff("VP8L" + little_endian<uint32_t>(40) + "\x2f" +
                   little_endian<uint32_t>(15999 | 10999 << 14) + std::string(35, '\x5a'))),
      hostile("canvas of 2^24 x 2^24", "broken WebP", extended_webp(0, lossy.substr(12))),
      hostile("animation", "WebP", extended_webp(2, "")),
      hostile("chunk of 4 GB", "broken WebP", riff("VP8 " + little_endian(UINT32_MAX) + "abcd")),
  };
}

HostileFiles hostile_gifs() {
  const std::string good = gif_of(6, 5);
  const size_t frame = good.find(','), data = frame + 10;
  const std::string full("\xff\xff\xff\xff", 4);
  std::string blocks = good.substr(0, frame);
  for (int i = 0; i < 1'000'000; ++i) blocks += std::string("!\xfe\0", 3);
  return {
      hostile("only the magic", "ends early", "GIF89a"),
      hostile("cut in the palette", "ends early", good.substr(0, 20)),
      hostile("cut in the frame", "ends early", good.substr(0, frame + 5)),
      hostile("cut in the data", "ends early", good.substr(0, good.size() - 3)),
      hostile("no picture", "no picture", good.substr(0, frame) + ";"),
      hostile("a million comments", "ends early", blocks),
      hostile("65535 x 65535", "more than the limit", gif_with(6, full)),
      hostile("picture of 65535 x 65535", "more than the limit", gif_with(frame + 5, full)),
      hostile("picture beside its canvas", "more than the limit", gif_with(frame + 1, full)),
      hostile("13000 x 13000 of nothing", "ends early",
              gif_with(frame + 5, little_endian<uint32_t>(13000 << 16 | 13000))),
      hostile("canvas of 13000 x 13000, cut in the data", "ends early",
              gif_with(6, little_endian<uint32_t>(13000 << 16 | 13000)).substr(0, data + 3)),
      hostile("picture of no pixels", "without pixels", gif_with(frame + 5, std::string(4, '\0'))),
      hostile("codes of 0 bits", "number of bits", gif_with(data, std::string(1, '\0'))),
      hostile("codes of 12 bits", "number of bits", gif_with(data, "\x0c")),
      hostile("an end at once", "ends early", gif_with(data + 2, "\x2c")),
      hostile("a code before its meaning", "before its meaning", gif_with(data + 2, "\xfc")),
  };
}

HostileFiles hostile_bmps() {
  const std::string rows(60, 'x');
  return {
      hostile("only the magic", "ends early", "BM"),
      hostile("header of 13 bytes", "header of 13 bytes",
              "BM" + std::string(12, '\0') + little_endian<uint32_t>(13) + rows),
      hostile("cut in the header", "ends early", bmp_of(4, 5, 24, 0, rows).substr(0, 27)),
      hostile("cut in the rows", "cannot hold", bmp_of(4, 5, 24, 0, rows.substr(1))),
      hostile("cut in the palette", "ends early", bmp_of(4, 5, 8, 0, rows)),
      hostile("65536 x 1", "65535 on a side", bmp_of(65536, 1, 24, 0, rows)),
      hostile("2^31-1 x 2^31-1", "more than the limit", bmp_of(INT32_MAX, INT32_MAX, 24, 0, rows)),
      hostile("height of -2^31", "more than the limit", bmp_of(5, INT32_MIN, 24, 0, rows)),
      hostile("width of -4", "no pixels", bmp_of(-4, 5, 24, 0, rows)),
      hostile("no height", "no pixels", bmp_of(4, 0, 24, 0, rows)),
      hostile("13000 x 13000 of nothing", "cannot hold", bmp_of(13000, 13000, 24, 0, rows)),
      hostile("run lengths", "compression 1", bmp_of(4, 5, 8, 1, rows)),
      hostile("5 bits", "BMP of 5 bits", bmp_of(4, 5, 5, 0, rows)),
      hostile("mask of no bits", "colour mask", bmp_of(4, 5, 32, 3, std::string(200, '\0'))),
      hostile("mask of 32 bits", "colour mask", bmp_of(4, 5, 32, 3, std::string(200, '\xff'))),
      hostile("masks beside a palette", "beside a palette", bmp_of(4, 5, 8, 3, rows)),
  };
}

HostileFiles hostile_tiffs() {
  using Tags = std::vector<std::pair<uint16_t, uint32_t>>;
  const Tags good = {{256, 4}, {257, 5}, {258, 8}, {259, 1}, {262, 1}, {277, 1}, {278, 5}};
  const std::string rows(20, 'x');
  const auto with = [&](uint16_t tag, uint32_t value, std::string_view data) {
    Tags tags;
    for (const auto& t : good)
      if (t.first != tag) tags.push_back(t);
    tags.push_back({tag, value});
    return tiff_of(tags, data);
  };
  const auto tiled = [&](uint32_t side, std::string_view data) {
    Tags tags = good;
    tags.push_back({322, side}), tags.push_back({323, side});
    return tiff_of(tags, data);
  };
  return {
      hostile("only the magic", "broken TIFF", std::string("II*\0", 4)),
      hostile("directory beyond the end", "broken TIFF", std::string("MM\0*\xff\0\0\0", 8)),
      hostile("no tags", "broken TIFF", tiff_of({}, rows)),
      hostile("no meaning", "samples mean",
              tiff_of({{256, 4}, {257, 5}, {258, 8}, {259, 1}, {277, 1}, {278, 5}}, rows)),
      hostile("65535 x 65535", "more than the limit",
              tiff_of({{256, 65535}, {257, 65535}, {258, 8}, {259, 1}, {262, 1}, {277, 1}}, rows)),
      hostile(
          "1 x 100000000", "65535 on a side",
          tiff_of({{256, 1}, {257, 100'000'000}, {258, 8}, {259, 1}, {262, 1}, {277, 1}}, rows)),
      hostile("2^32-1 x 2^32-1", "TIFF",
              tiff_of({{256, UINT32_MAX}, {257, UINT32_MAX}, {258, 8}, {262, 1}}, rows)),
      hostile("cut in the rows", "broken TIFF", with(257, 50, rows)),
      hostile("16 bits", "bits per sample 16", with(258, 16, std::string(40, 'x'))),
      hostile("CMYK", "photometric interpretation 5", with(262, 5, rows)),
      hostile("fax", "compression 4", with(259, 4, rows)),
      hostile("five samples", "samples per pixel 5", with(277, 5, std::string(100, 'x'))),
      hostile("a plane a colour", "planar configuration 2", with(284, 2, rows)),
      hostile("deflate of garbage", "broken TIFF", with(259, 8, rows)),
      hostile("LZW of garbage", "broken TIFF", with(259, 5, rows)),
      hostile("JPEG of garbage", "broken TIFF", with(259, 7, rows)),
      hostile("tiles of 1 x 1", "tiles of 1 x 1", tiled(1, rows)),
      hostile("tiles of 2^20 x 2^20", "TIFF", tiled(1 << 20, rows)),
      hostile("strips larger than the file", "larger than the file",
              tiff_of({{256, 4}, {257, 5}, {258, 8}, {259, 8}, {262, 1}, {277, 1}, {279, 1 << 30}},
                      rows)),
  };
}

HostileFiles hostile_heifs() {
  const std::string type = box("ftyp", "heic" + std::string(4, '\0') + "mif1heic");
  const std::string zero(4, '\0');
  std::string nested;
  for (int i = 0; i < 2000; ++i) nested = box("meta", zero + nested);
  return {
      hostile("only the type", "HEIC or AVIF", type),
      hostile("AVIF, only the type", "HEIC or AVIF", box("ftyp", "avif" + zero + "avif")),
      hostile("cut in the type", "HEIC or AVIF", type.substr(0, 14)),
      hostile("garbage behind the type", "HEIC or AVIF", type + std::string(5000, 'x')),
      hostile("empty boxes", "HEIC or AVIF", type + box("meta", zero)),
      hostile("box of 4 GB", "HEIC or AVIF", type + std::string("\xff\xff\xff\xffmeta", 8)),
      hostile("boxes in boxes", "HEIC or AVIF", type + nested),
      hostile("a picture that is not there", "HEIC or AVIF",
              type + box("meta", zero + box("pitm", zero + std::string("\0\1", 2)))),
  };
}

}  // namespace vitrum::test
