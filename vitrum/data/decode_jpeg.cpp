#include <cstddef>
#include <cstdio>
#include <vector>
// libjpeg's header needs size_t and FILE declared before it.
#include <jpeglib.h>

#include <algorithm>
#include <cstring>

#include "vitrum/core/error.h"
#include "vitrum/data/codecs.h"
#include "vitrum/data/decode.h"

namespace vitrum {
namespace {

// A progressive file may repeat scans without end, each costing a pass over the whole image: a
// second's worth is allowed. Encoders write 6 to 24; ten fit the largest image.
constexpr int64_t kMaxScans = 100, kMaxScannedPixels = 10 * kMaxPixels;
// From this size on, a file must have the bits that so many blocks of 8 x 8 take at the least.
constexpr int64_t kLargeImage = 16'000'000, kMaxPixelsPerByte = 512;

struct ErrorManager : jpeg_error_mgr {
  std::jmp_buf jump;
  char text[JMSG_LENGTH_MAX] = {};
};

[[noreturn]] void on_error(j_common_ptr jpeg) {
  auto* errors = static_cast<ErrorManager*>(jpeg->err);
  if (errors->text[0] == '\0') errors->format_message(jpeg, errors->text);
  std::longjmp(errors->jump, 1);
}

[[noreturn]] void stop(j_common_ptr jpeg, const char* text) {
  std::strcpy(static_cast<ErrorManager*>(jpeg->err)->text, text);
  on_error(jpeg);
}

// Like Pillow, we decode through warnings about damaged data, but not past the end of the file.
void on_message(j_common_ptr, int) {}

boolean on_end(j_decompress_ptr jpeg) {
  stop(reinterpret_cast<j_common_ptr>(jpeg), "it ends early");
}

void on_progress(j_common_ptr jpeg) {
  const auto* image = reinterpret_cast<j_decompress_ptr>(jpeg);
  const int64_t scans = image->input_scan_number,
                pixels = int64_t{image->image_width} * image->image_height;
  if (scans <= kMaxScans && scans * pixels <= kMaxScannedPixels) return;
  stop(jpeg, scans > kMaxScans ? "it has more than 100 scans"
                               : "it has more scans than are allowed of so many pixels");
}

class JpegReader {
 public:
  explicit JpegReader(const std::string& name) : name_(name) {
    jpeg_.err = jpeg_std_error(&errors_);
    errors_.error_exit = on_error;
    errors_.emit_message = on_message;
    progress_.progress_monitor = on_progress;
  }
  ~JpegReader() { jpeg_destroy_decompress(&jpeg_); }
  JpegReader(const JpegReader&) = delete;
  JpegReader& operator=(const JpegReader&) = delete;

  Image decode(std::span<const uint8_t> bytes, const ChooseWindow* choose) {
    guard([&] {
      jpeg_create_decompress(&jpeg_);
      jpeg_.progress = &progress_;
      jpeg_mem_src(&jpeg_, bytes.data(), bytes.size());
      jpeg_.src->fill_input_buffer = on_end;
      jpeg_read_header(&jpeg_, TRUE);
    });
    choose_output();
    refuse_empty_claim(bytes.size());
    Image image = allocate_rgb(jpeg_.image_width, jpeg_.image_height, name_);
    const Window window =
        choose ? (*choose)(image.height, image.width) : Window{0, 0, image.height, image.width};
    std::vector<uint8_t> row(static_cast<size_t>(image.width) *
                             static_cast<size_t>(jpeg_.num_components));
    image.reshape(3, window.height, window.width);
    guard([&] { read_rows(row.data(), window, image); });
    return image;
  }

 private:
  template <class Body>
  void guard(const Body& body) {
    if (!completes(errors_.jump, body)) fail_input("{}: broken JPEG: {}", name_, errors_.text);
  }

  void choose_output() {
    switch (jpeg_.num_components) {
      case 1: jpeg_.out_color_space = JCS_GRAYSCALE; return;
      case 3: jpeg_.out_color_space = JCS_RGB; return;
      case 4: jpeg_.out_color_space = JCS_CMYK; return;
      default:
        fail_input("{}: JPEG with {} colour components; expected 1, 3 or 4", name_,
                   jpeg_.num_components);
    }
  }

  // Data that ends early in the proper way (a marker) is filled up with grey, which is no reason to
  // fill gigabytes. Arithmetic coding needs less than a bit a block.
  void refuse_empty_claim(size_t bytes) const {
    const int64_t pixels = int64_t{jpeg_.image_width} * jpeg_.image_height;
    if (jpeg_.arith_code || pixels < kLargeImage || pixels > kMaxPixels) return;
    if (pixels / kMaxPixelsPerByte > static_cast<int64_t>(bytes))
      fail_input("{}: broken JPEG: {} bytes cannot hold {} x {} pixels", name_, bytes,
                 jpeg_.image_width, jpeg_.image_height);
  }

  // The defaults are what Pillow uses: accurate integer DCT and fancy upsampling.
  void read_rows(uint8_t* row, const Window& window, Image& image) {
    jpeg_start_decompress(&jpeg_);
    const int left = window.left - skip_to(window, row);
    for (int y = 0; y < image.height; ++y) {
      jpeg_read_scanlines(&jpeg_, &row, 1);
      uint8_t* const first = row + left * jpeg_.num_components;
      if (jpeg_.num_components == 4) cmyk_to_rgb(first, image.width);
      store_row(first, jpeg_.num_components == 1 ? 1 : 3, image, y);
    }
  }

  // Leaves out what no pixel of the window depends on; returns the first column that is decoded.
  // Chroma is interpolated between blocks, so that a block's width is kept on all sides.
  int skip_to(const Window& window, uint8_t* row) {
    constexpr int kMargin = 32;  // the widest block of chroma
    const auto width = static_cast<int>(jpeg_.output_width);
    JDIMENSION left = static_cast<JDIMENSION>(std::max(0, window.left - kMargin));
    const int right = std::min(width, window.left + window.width + kMargin);
    if (right - static_cast<int>(left) < width) {
      auto columns = static_cast<JDIMENSION>(right) - left;
      jpeg_crop_scanline(&jpeg_, &left, &columns);
    }
    const int above = std::max(0, window.top - kMargin);
    if (above > 0) jpeg_skip_scanlines(&jpeg_, static_cast<JDIMENSION>(above));
    for (int y = above; y < window.top; ++y) jpeg_read_scanlines(&jpeg_, &row, 1);
    return static_cast<int>(left);
  }

  // Files hold inverted ink (Adobe's convention, assumed of every file): 255 is none. In place,
  // four bytes to three.
  static void cmyk_to_rgb(uint8_t* row, int width) {
    const uint8_t* in = row;
    for (int x = 0; x < width; ++x, in += 4) {
      const int white = in[3];
      for (int c = 0; c < 3; ++c) {
        const int product = (255 - in[c]) * white + 128;
        *row++ = static_cast<uint8_t>(white - (((product >> 8) + product) >> 8));
      }
    }
  }

  const std::string& name_;
  ErrorManager errors_{};
  jpeg_progress_mgr progress_{};
  jpeg_decompress_struct jpeg_{};
};

}  // namespace

Image decode_jpeg(std::span<const uint8_t> bytes, const std::string& name,
                  const ChooseWindow* choose) {
  return JpegReader(name).decode(bytes, choose);
}

}  // namespace vitrum
