// PNG by strips of rows that are filtered and compressed independently of each other.
#include <zlib.h>

#include <algorithm>
#include <cassert>

#include "vitrum/core/error.h"
#include "vitrum/data/encode_png.h"

namespace vitrum {
namespace {

constexpr size_t kStripBytes = 192 << 10;  // several of the compressor's windows of 32 KB
constexpr uint8_t kSub = 1;  // the filter: each value less that of the pixel to the left. On photos
                             // it leaves a fifth less than no filter at all.

std::string big_endian(uint32_t x) {
  return {static_cast<char>(x >> 24), static_cast<char>(x >> 16), static_cast<char>(x >> 8),
          static_cast<char>(x)};
}

std::string chunk(std::string_view type, std::string_view data) {
  const std::string body = std::string(type) + std::string(data);
  const auto crc =
      crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return big_endian(static_cast<uint32_t>(data.size())) + body +
         big_endian(static_cast<uint32_t>(crc));
}

std::string header_of(const Image& image) {
  constexpr char kGrey = 0, kColour = 2;
  std::string data = big_endian(static_cast<uint32_t>(image.width)) +
                     big_endian(static_cast<uint32_t>(image.height));
  data += {8, image.channels == 1 ? kGrey : kColour, 0, 0, 0};  // bits; deflate, filters, whole
  return chunk("IHDR", data);
}

std::vector<uint8_t> filtered(const Image& image, int first, int last) {
  const auto channels = static_cast<size_t>(image.channels),
             width = static_cast<size_t>(image.width);
  std::vector<uint8_t> out(static_cast<size_t>(last - first) * (1 + channels * width));
  uint8_t* row = out.data();
  for (int y = first; y < last; ++y, row += channels * width) {
    *row++ = kSub;
    for (size_t c = 0; c < channels; ++c) {
      const uint8_t* from = image.plane(static_cast<int>(c)) + static_cast<size_t>(y) * width;
      row[c] = from[0];
      for (size_t x = 1; x < width; ++x)
        row[x * channels + c] = static_cast<uint8_t>(from[x] - from[x - 1]);
    }
  }
  return out;
}

struct Strip {
  std::string compressed;  // empty where memory ran out
  uLong checksum = 0;
  size_t bytes = 0;  // before compression
};

// Raw deflate that ends on a byte, so that strips can follow each other.
Strip compress(const std::vector<uint8_t>& bytes, bool last) {
  z_stream stream{};
  constexpr int kLevel = 1, kRaw = -15, kMemory = 8;
  if (deflateInit2(&stream, kLevel, Z_DEFLATED, kRaw, kMemory, Z_RLE) != Z_OK)
    return {};
  Strip strip{.checksum = adler32(1, bytes.data(), static_cast<uInt>(bytes.size())),
              .bytes = bytes.size()};
  constexpr size_t kMark = 16;  // room for what ends a strip
  strip.compressed.resize(deflateBound(&stream, static_cast<uLong>(bytes.size())) + kMark);
  stream.next_in = const_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = reinterpret_cast<Bytef*>(strip.compressed.data());
  stream.avail_out = static_cast<uInt>(strip.compressed.size());
  [[maybe_unused]] const int result = deflate(&stream, last ? Z_FINISH : Z_SYNC_FLUSH);
  assert(result == (last ? Z_STREAM_END : Z_OK) && stream.avail_in == 0 && stream.avail_out > 0);
  strip.compressed.resize(stream.total_out);
  deflateEnd(&stream);
  return strip;
}

}  // namespace

std::string encode_png(const Image& image, ThreadPool& pool) {
  assert(image.channels == 1 || image.channels == 3);
  const size_t row = static_cast<size_t>(image.width) * static_cast<size_t>(image.channels);
  const int rows = static_cast<int>(std::max<size_t>(1, kStripBytes / std::max<size_t>(1, row))),
            strips = (image.height + rows - 1) / rows;
  std::vector<Strip> done(static_cast<size_t>(strips));
  pool.run(strips, [&](int64_t i, int) {
    const int first = static_cast<int>(i) * rows, last = std::min(image.height, first + rows);
    done[static_cast<size_t>(i)] = compress(filtered(image, first, last), last == image.height);
  });
  std::string out = "\x89PNG\r\n\x1a\n" + header_of(image);
  uLong checksum = 1;
  for (size_t i = 0; i < done.size(); ++i) {
    if (done[i].compressed.empty())
      fail_exhausted("not enough memory for a PNG of {}x{}", image.width, image.height);
    checksum = adler32_combine(checksum, done[i].checksum, static_cast<z_off_t>(done[i].bytes));
    const std::string begin = i == 0 ? "\x78\x01" : "",
                      end = i + 1 == done.size() ? big_endian(static_cast<uint32_t>(checksum)) : "";
    out += chunk("IDAT", begin + done[i].compressed + end);
  }
  return out + chunk("IEND", "");
}

}  // namespace vitrum
