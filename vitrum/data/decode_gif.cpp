#include <algorithm>
#include <array>
#include <vector>

#include "vitrum/core/error.h"
#include "vitrum/data/codecs.h"

namespace vitrum {
namespace {

using Palette = std::array<Rgb, 256>;  // colours that a file does not give are black
constexpr Rgb kNothing{};

// The first picture of a file, on its canvas; what it leaves free has colour 0 or, where the
// picture has one, the transparent colour, whose alpha is dropped.
class GifReader {
 public:
  GifReader(std::span<const uint8_t> bytes, const std::string& name) : left_(bytes), name_(name) {}

  Image decode() {
    take(6);  // the magic
    const auto screen = take(7);
    const bool coloured = read_palette(screen[4]);
    read_extensions();
    const auto frame = take(9);
    left_edge_ = word(frame, 0), top_edge_ = word(frame, 2);
    frame_width_ = word(frame, 4), frame_height_ = word(frame, 6);
    if (frame_width_ == 0 || frame_height_ == 0) broken("a picture without pixels");
    if (!read_palette(frame[8]) && !coloured)
      for (size_t i = 0; i < palette_.size(); ++i) {
        const auto grey = static_cast<uint8_t>(i);
        palette_[i] = {grey, grey, grey};
      }
    Image image = allocate_rgb(std::max(word(screen, 0), left_edge_ + frame_width_),
                               std::max(word(screen, 2), top_edge_ + frame_height_), name_);
    read_pixels(image, (frame[8] & kInterlaced) != 0);
    fill_around(image);
    return image;
  }

 private:
  static constexpr uint8_t kInterlaced = 0x40, kHasPalette = 0x80;
  static constexpr int kMaxCodes = 4096, kMaxBits = 12;

  [[noreturn]] void broken(const char* what) const {
    fail_input("{}: broken GIF: {}", name_, what);
  }

  std::span<const uint8_t> take(size_t count) {
    if (count > left_.size()) broken("it ends early");
    const auto taken = left_.first(count);
    left_ = left_.subspan(count);
    return taken;
  }
  static int word(std::span<const uint8_t> bytes, size_t at) {
    return bytes[at] | bytes[at + 1] << 8;
  }

  bool read_palette(uint8_t flags) {
    if (!(flags & kHasPalette)) return false;
    const size_t count = size_t{2} << (flags & 7);
    const auto colors = take(3 * count);
    palette_.fill(kNothing);
    for (size_t i = 0; i < count; ++i)
      palette_[i] = {colors[3 * i], colors[3 * i + 1], colors[3 * i + 2]};
    return true;
  }

  // Up to the first picture.
  void read_extensions() {
    constexpr uint8_t kPicture = ',', kExtension = '!', kEnd = ';', kControl = 0xf9;
    for (;;) {
      const uint8_t kind = take(1)[0];
      if (kind == kPicture) return;
      if (kind == kEnd) broken("it holds no picture");
      if (kind != kExtension) continue;  // as others do with bytes between blocks
      const bool control = take(1)[0] == kControl;
      for (auto block = next_block(); !block.empty(); block = next_block())
        if (control && block.size() >= 4 && block[0] & 1) background_ = block[3];
    }
  }

  std::span<const uint8_t> next_block() { return take(take(1)[0]); }

  // Last: a file that ends early should not cost a large canvas.
  void fill_around(Image& image) const {
    const Rgb color = palette_[background_];
    const uint8_t values[] = {color.red, color.green, color.blue};
    for (int c = 0; c < 3; ++c)
      for (int y = 0; y < image.height; ++y) {
        uint8_t* const row =
            image.plane(c) + static_cast<size_t>(y) * static_cast<size_t>(image.width);
        const bool covered = y >= top_edge_ && y < top_edge_ + frame_height_;
        std::fill(row, row + (covered ? left_edge_ : image.width), values[c]);
        if (covered) std::fill(row + left_edge_ + frame_width_, row + image.width, values[c]);
      }
  }

  // Codes of `bits` bits, the lowest first, in blocks of up to 255 bytes.
  int next_code(int bits) {
    while (held_ < bits) {
      if (block_.empty() && (block_ = next_block()).empty()) broken("its data ends early");
      bits_ |= uint32_t{block_[0]} << held_;
      block_ = block_.subspan(1);
      held_ += 8;
    }
    const auto code = static_cast<int>(bits_ & ((1u << bits) - 1));
    bits_ >>= bits, held_ -= bits;
    return code;
  }

  // Interlaced rows come in four passes.
  std::vector<int> row_order(bool interlaced) const {
    std::vector<int> rows;
    const auto pass = [&](int first, int step) {
      for (int y = first; y < frame_height_; y += step) rows.push_back(y);
    };
    if (!interlaced) pass(0, 1);
    if (interlaced) pass(0, 8), pass(4, 8), pass(2, 4), pass(1, 2);
    return rows;
  }

  // LZW: a code is a colour, or an earlier code's string and one colour more.
  void read_pixels(Image& image, bool interlaced) {
    const int colour_bits = take(1)[0];
    if (colour_bits < 1 || colour_bits > 8) broken("codes start with a wrong number of bits");
    const int clear = 1 << colour_bits, end = clear + 1;
    std::array<uint16_t, kMaxCodes> prefix;
    std::array<uint8_t, kMaxCodes> last, string;  // of codes from `end` + 1 on; a string, reversed
    const std::vector<int> rows = row_order(interlaced);
    std::vector<uint8_t> row(static_cast<size_t>(frame_width_));
    size_t x = 0, y = 0;
    int bits = colour_bits + 1, next = end + 1, previous = -1;
    uint8_t first = 0;
    while (y < rows.size()) {
      int code = next_code(bits);
      if (code == clear) {
        bits = colour_bits + 1, next = end + 1, previous = -1;
        continue;
      }
      if (code == end) broken("its data ends early");
      if (code > next || (code == next && (previous < 0 || next >= kMaxCodes)) ||
          (previous < 0 && code >= clear))
        broken("a code before its meaning");
      const int given = code;
      size_t length = 0;
      if (code == next) string[length++] = first, code = previous;
      for (; code > end; code = prefix[static_cast<size_t>(code)])
        string[length++] = last[static_cast<size_t>(code)];
      string[length++] = first = static_cast<uint8_t>(code);
      if (previous >= 0 && next < kMaxCodes) {
        prefix[static_cast<size_t>(next)] = static_cast<uint16_t>(previous);
        last[static_cast<size_t>(next)] = first;
        if (++next == 1 << bits && bits < kMaxBits) ++bits;
      }
      previous = given;
      while (length > 0 && y < rows.size()) {
        row[x] = string[--length];
        if (++x == row.size()) store(row, image, rows[y]), x = 0, ++y;
      }
    }
  }

  void store(std::span<const uint8_t> row, Image& image, int y) const {
    const size_t at = static_cast<size_t>(top_edge_ + y) * static_cast<size_t>(image.width) +
                      static_cast<size_t>(left_edge_);
    uint8_t *red = image.plane(0) + at, *green = image.plane(1) + at, *blue = image.plane(2) + at;
    for (const uint8_t index : row) {
      const Rgb color = palette_[index];
      *red++ = color.red, *green++ = color.green, *blue++ = color.blue;
    }
  }

  std::span<const uint8_t> left_, block_;
  const std::string& name_;
  Palette palette_{};
  uint8_t background_ = 0;
  int left_edge_ = 0, top_edge_ = 0, frame_width_ = 0, frame_height_ = 0;
  uint32_t bits_ = 0;
  int held_ = 0;
};

}  // namespace

Image decode_gif(std::span<const uint8_t> bytes, const std::string& name) {
  return GifReader(bytes, name).decode();
}

}  // namespace vitrum
