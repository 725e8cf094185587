// PNG by strips of rows that are filtered and compressed independently of each other.
#include <zlib.h>

#include <algorithm>
#include <cassert>

#include "vitrum/data/encode_png.h"
#include "vitrum/data/huffman.h"

namespace vitrum {
namespace {

constexpr size_t kStripBytes = 128 << 10;
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
  std::string compressed;
  uLong checksum = 0;
  size_t bytes = 0;  // before compression
};

}  // namespace

std::string encode_png(const Image& image, ThreadPool& pool) {
  assert(image.channels == 1 || image.channels == 3);
  const size_t row = static_cast<size_t>(image.width) * static_cast<size_t>(image.channels);
  const int rows = static_cast<int>(std::max<size_t>(1, kStripBytes / std::max<size_t>(1, row))),
            strips = (image.height + rows - 1) / rows;
  std::vector<Strip> done(static_cast<size_t>(strips));
  pool.run(strips, [&](int64_t i, int) {
    const int first = static_cast<int>(i) * rows, last = std::min(image.height, first + rows);
    const std::vector<uint8_t> bytes = filtered(image, first, last);
    done[static_cast<size_t>(i)] = {deflate_literals(bytes, last == image.height),
                                    adler32(1, bytes.data(), static_cast<uInt>(bytes.size())),
                                    bytes.size()};
  });
  std::string out = "\x89PNG\r\n\x1a\n" + header_of(image);
  uLong checksum = 1;
  for (size_t i = 0; i < done.size(); ++i) {
    checksum = adler32_combine(checksum, done[i].checksum, static_cast<z_off_t>(done[i].bytes));
    const std::string begin = i == 0 ? "\x78\x01" : "",
                      end = i + 1 == done.size() ? big_endian(static_cast<uint32_t>(checksum)) : "";
    out += chunk("IDAT", begin + done[i].compressed + end);
  }
  return out + chunk("IEND", "");
}

}  // namespace vitrum
