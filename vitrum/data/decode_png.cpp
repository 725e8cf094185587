#include <png.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "vitrum/core/error.h"
#include "vitrum/data/codecs.h"

namespace vitrum {
namespace {

constexpr uint64_t kMaxInterlaced = kMaxStored / 4 * 3;  // put together from seven passes
constexpr uint64_t kMaxDeflateRatio = 1032;

// What the IDAT chunks say they hold.
uint64_t compressed_bytes(std::span<const uint8_t> png) {
  uint64_t sum = 0;
  for (size_t at = 8; at + 8 <= png.size();) {
    const uint32_t length = png_get_uint_32(&png[at]);
    if (std::memcmp(&png[at + 4], "IDAT", 4) == 0) sum += length;
    at += 12 + size_t{length};
  }
  return sum;
}

class PngReader {
 public:
  PngReader(std::span<const uint8_t> bytes, const std::string& name)
      : bytes_(bytes), left_(bytes), name_(name) {}
  ~PngReader() { png_destroy_read_struct(&png_, &info_, nullptr); }
  PngReader(const PngReader&) = delete;
  PngReader& operator=(const PngReader&) = delete;

  Image decode() {
    guard([&] { read_header(); });
    Image image =
        allocate_rgb(png_get_image_width(png_, info_), png_get_image_height(png_, info_), name_);
    const bool interlaced = png_get_interlace_type(png_, info_) != PNG_INTERLACE_NONE;
    refuse_bomb(interlaced ? kMaxInterlaced : kMaxStored);
    guard([&] { choose_output(); });
    const size_t stride = png_get_rowbytes(png_, info_);
    // Interlaced rows are filled in several passes; others are stored as they come.
    PixelVector rows(interlaced ? stride * static_cast<size_t>(image.height) : stride);
    guard([&] { read_rows(rows.data(), interlaced ? stride : 0, image); });
    return image;
  }

 private:
  template <class Body>
  void guard(const Body& body) {
    if (!completes(jump_, body)) fail_input("{}: broken PNG: {}", name_, text_);
  }

  void read_header() {
    png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, on_error,
                                  [](png_structp, png_const_charp) {});
    info_ = png_ ? png_create_info_struct(png_) : nullptr;
    if (!info_) fail_with("out of memory");
    png_set_read_fn(png_, this, read);
    png_set_user_limits(png_, PNG_UINT_31_MAX, PNG_UINT_31_MAX);  // ours come after
    // Chunks that do not matter for pixels are skipped unread: compressed text can be a bomb.
    png_set_keep_unknown_chunks(png_, PNG_HANDLE_CHUNK_NEVER, nullptr, -1);
    png_read_info(png_, info_);
  }

  // From the header, before a row is read.
  void refuse_bomb(uint64_t most) const {
    const uint32_t width = png_get_image_width(png_, info_),
                   height = png_get_image_height(png_, info_);
    const uint64_t stored = uint64_t{height} * png_get_rowbytes(png_, info_);
    if (stored > most)
      fail_input("{}: {} x {} pixels of {} bits in {} bytes are more than the limit of {} bytes",
                 name_, width, height,
                 png_get_bit_depth(png_, info_) * png_get_channels(png_, info_), stored, most);
    const uint64_t data = compressed_bytes(bytes_);
    if (stored / kMaxDeflateRatio > data)
      fail_input("{}: broken PNG: {} bytes of data cannot hold {} x {} pixels", name_, data, width,
                 height);
  }

  void choose_output() {
    const bool grey16 = png_get_bit_depth(png_, info_) == 16 &&
                        png_get_color_type(png_, info_) == PNG_COLOR_TYPE_GRAY;
    if (!grey16) png_set_strip_16(png_);
    if (png_get_color_type(png_, info_) == PNG_COLOR_TYPE_PALETTE) png_set_palette_to_rgb(png_);
    if (png_get_color_type(png_, info_) == PNG_COLOR_TYPE_GRAY)
      png_set_expand_gray_1_2_4_to_8(png_);
    png_set_strip_alpha(png_);
    png_set_interlace_handling(png_);
    png_read_update_info(png_, info_);
  }

  // Rows stand `step` bytes apart; 0: each in the place of the one before.
  void read_rows(uint8_t* rows, size_t step, Image& image) {
    if (step > 0)
      for (int pass = 0; pass < PNG_INTERLACE_ADAM7_PASSES - 1; ++pass)
        for (int y = 0; y < image.height; ++y)
          png_read_row(png_, rows + static_cast<size_t>(y) * step, nullptr);
    for (int y = 0; y < image.height; ++y) {
      uint8_t* row = rows + static_cast<size_t>(y) * step;
      png_read_row(png_, row, nullptr);
      store(row, image, y);
    }
  }

  void store(uint8_t* row, Image& image, int y) const {
    if (png_get_bit_depth(png_, info_) == 16) saturate_grey16(row, image.width);
    store_row(row, png_get_channels(png_, info_), image, y);
  }

  // Pillow keeps 16-bit grey as it is and clips it at 255 on the way to RGB, where all other 16-bit
  // samples lose their low byte. In place, big-endian.
  static void saturate_grey16(uint8_t* row, int width) {
    for (int x = 0; x < width; ++x) row[x] = row[2 * x] ? uint8_t{255} : row[2 * x + 1];
  }

  [[noreturn]] void fail_with(const char* text) {
    std::snprintf(text_, sizeof text_, "%s", text);
    std::longjmp(jump_, 1);
  }
  static void on_error(png_structp png, png_const_charp text) {
    static_cast<PngReader*>(png_get_error_ptr(png))->fail_with(text);
  }
  static void read(png_structp png, png_bytep out, size_t count) {
    auto* self = static_cast<PngReader*>(png_get_io_ptr(png));
    if (count > self->left_.size()) self->fail_with("premature end of file");
    std::memcpy(out, self->left_.data(), count);
    self->left_ = self->left_.subspan(count);
  }

  std::span<const uint8_t> bytes_, left_;
  const std::string& name_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf jump_;
  char text_[200] = {};
};

}  // namespace

Image decode_png(std::span<const uint8_t> bytes, const std::string& name) {
  return PngReader(bytes, name).decode();
}

}  // namespace vitrum
