#include <array>
#include <bit>
#include <cstdlib>

#include "vitrum/core/error.h"
#include "vitrum/data/codecs.h"

namespace vitrum {
namespace {

// Rows of 1, 4 or 8 bits with a palette, or of 16, 24 or 32 bits with a mask a colour. Run-length
// coding is left out: nobody writes it.
class BmpReader {
 public:
  BmpReader(std::span<const uint8_t> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  Image decode() {
    const uint32_t header = number(14, 4);
    const bool core = header == kCoreHeader;  // of OS/2, with short numbers
    if (!core && (header < kInfoHeader || header > kMaxHeader))
      broken(fmt::format("a header of {} bytes", header));
    const int64_t width = core ? number(18, 2) : int64_t{static_cast<int32_t>(number(18, 4))};
    const int64_t height = core ? number(20, 2) : int64_t{static_cast<int32_t>(number(22, 4))};
    bits_ = number(core ? 24 : 28, 2);
    Image image = allocate_rgb(width, std::abs(height), name_);
    read_colors(header);
    read_rows(number(10, 4), height < 0, image);
    return image;
  }

 private:
  static constexpr uint32_t kCoreHeader = 12, kInfoHeader = 40, kMaxHeader = 124;
  static constexpr size_t kFileHeader = 14;

  [[noreturn]] void broken(const std::string& what) const {
    fail_input("{}: broken BMP: {}", name_, what);
  }

  uint32_t number(size_t at, size_t count) const {
    if (at + count > bytes_.size()) broken("it ends early");
    uint32_t value = 0;
    for (size_t i = count; i-- > 0;) value = value << 8 | bytes_[at + i];
    return value;
  }

  void read_colors(uint32_t header) {
    const uint32_t packing = header == kCoreHeader ? 0 : number(30, 4);
    constexpr uint32_t kPlain = 0, kMasked = 3, kMaskedAlpha = 6;
    if (packing != kPlain && packing != kMasked && packing != kMaskedAlpha)
      fail_input("{}: BMP with compression {}; expected an uncompressed one", name_, packing);
    const bool masked = packing != kPlain;
    switch (bits_) {
      case 1:
      case 4:
      case 8:
        if (masked) broken("masks beside a palette");
        return read_palette(header);
      case 16: masks_ = {0x7c00, 0x3e0, 0x1f}; break;
      case 24:
      case 32: masks_ = {0xff0000, 0xff00, 0xff}; break;
      default: fail_input("{}: BMP of {} bits; expected 1, 4, 8, 16, 24 or 32", name_, bits_);
    }
    for (size_t c = 0; masked && c < 3; ++c)
      masks_[c] = number(kFileHeader + kInfoHeader + 4 * c, 4);
    for (const uint32_t mask : masks_) {
      const int ones = std::popcount(mask);
      const bool run = ones >= 1 && ones <= 8 && mask >> std::countr_zero(mask) == (1u << ones) - 1;
      if (!run)
        fail_input("{}: BMP with the colour mask {:#010x}; expected up to 8 bits side by side",
                   name_, mask);
    }
  }

  void read_palette(uint32_t header) {
    const uint32_t most = 1u << bits_, entry = header == kCoreHeader ? 3 : 4;
    uint32_t count = header == kCoreHeader ? 0 : number(46, 4);
    if (count == 0) count = most;
    if (count > most) broken(fmt::format("{} colours of {} bits", count, bits_));
    for (uint32_t i = 0; i < count; ++i) {
      const size_t at = kFileHeader + header + size_t{entry} * i;
      const uint32_t color = number(at, 3);
      palette_[i] = {static_cast<uint8_t>(color >> 16), static_cast<uint8_t>(color >> 8),
                     static_cast<uint8_t>(color)};
    }
  }

  // Bottom row first, unless the height is negative; each fills whole words of four bytes.
  void read_rows(size_t offset, bool downwards, Image& image) const {
    const auto width = static_cast<size_t>(image.width), height = static_cast<size_t>(image.height);
    const size_t stride = (width * bits_ + 31) / 32 * 4;
    if (offset > bytes_.size() || stride > (bytes_.size() - offset) / height)
      broken(fmt::format("{} bytes cannot hold {} x {} pixels of {} bits", bytes_.size(), width,
                         height, bits_));
    for (size_t y = 0; y < height; ++y) {
      const uint8_t* const row = bytes_.data() + offset + y * stride;
      const size_t at = (downwards ? y : height - 1 - y) * width;
      for (size_t x = 0; x < width; ++x) store_pixel(pixel(row, x), image, at + x);
    }
  }

  Rgb pixel(const uint8_t* row, size_t x) const {
    if (bits_ <= 8) {
      const size_t per_byte = 8 / bits_, shift = bits_ * (per_byte - 1 - x % per_byte);
      return palette_[row[x / per_byte] >> shift & ((1u << bits_) - 1)];
    }
    uint32_t value = 0;
    for (size_t size = bits_ / 8, i = size; i-- > 0;) value = value << 8 | row[x * size + i];
    return {sample(value, masks_[0]), sample(value, masks_[1]), sample(value, masks_[2])};
  }

  // Fewer bits than 8 are spread over 0 to 255.
  static uint8_t sample(uint32_t value, uint32_t mask) {
    const int shift = std::countr_zero(mask);
    return static_cast<uint8_t>(((value & mask) >> shift) * 255 / (mask >> shift));
  }

  std::span<const uint8_t> bytes_;
  const std::string& name_;
  uint32_t bits_ = 0;
  std::array<uint32_t, 3> masks_{};  // red, green, blue
  std::array<Rgb, 256> palette_{};
};

}  // namespace

Image decode_bmp(std::span<const uint8_t> bytes, const std::string& name) {
  return BmpReader(bytes, name).decode();
}

}  // namespace vitrum
