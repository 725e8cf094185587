#include "vitrum/data/decode.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "vitrum/core/error.h"
#include "vitrum/data/codecs.h"
#include "vitrum/data/orientation.h"
#include "vitrum/data/pixel_loops.h"

namespace vitrum {
namespace {

// A pipe would be waited for, and devices have no end.
void refuse_special_file(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (fs::is_directory(status)) fail_input("{}: is a folder; expected a file", path);
  if (fs::exists(status) && !fs::is_regular_file(status))
    fail_input("{}: is a pipe, a socket or a device; expected a file", path);
}

// Of the image that this thread decodes: what decoders allocate goes through allocate_rgb, which
// is the one place that knows it.
thread_local int64_t pixel_limit = kMaxPixels;

class PixelLimit {
 public:
  explicit PixelLimit(int64_t limit) { pixel_limit = std::min(limit, kMaxPixels); }
  ~PixelLimit() { pixel_limit = kMaxPixels; }
  PixelLimit(const PixelLimit&) = delete;
  PixelLimit& operator=(const PixelLimit&) = delete;
};

using Bytes = std::span<const uint8_t>;

bool is_jpeg(Bytes bytes) { return starts_with(bytes, "\xff\xd8\xff"); }

// A box "ftyp" comes first, with the brands a file keeps to behind it: the first of them tells.
bool is_heif(Bytes bytes) {
  if (!starts_with(bytes, "ftyp", 4)) return false;
  constexpr std::string_view kBrands[] = {"heic", "heix", "heim", "heis", "mif1", "avif"};
  return std::ranges::any_of(kBrands, [&](auto brand) { return starts_with(bytes, brand, 8); });
}

struct Format {
  bool (*recognizes)(Bytes);
  Image (*decode)(Bytes, const std::string& name);
};
constexpr Format kFormats[] = {
    {is_jpeg, [](Bytes bytes, const std::string& name) { return decode_jpeg(bytes, name); }},
    {[](Bytes bytes) { return starts_with(bytes, "\x89PNG\r\n\x1a\n"); }, decode_png},
    {[](Bytes bytes) { return starts_with(bytes, "RIFF") && starts_with(bytes, "WEBP", 8); },
     decode_webp},
    {[](Bytes bytes) { return starts_with(bytes, "GIF87a") || starts_with(bytes, "GIF89a"); },
     decode_gif},
    {[](Bytes bytes) { return starts_with(bytes, "BM"); }, decode_bmp},
    {is_tiff, decode_tiff},
    {is_heif, decode_heif},
};

Image decode_as_stored(Bytes bytes, const std::string& name) {
  constexpr const char* kKnown = "JPEG, PNG, WebP, GIF, BMP, TIFF, HEIC or AVIF image";
  if (bytes.empty()) fail_input("{}: the file is empty; expected a {}", name, kKnown);
  for (const Format& format : kFormats)
    if (format.recognizes(bytes)) return format.decode(bytes, name);
  fail_input("{}: not a {}", name, kKnown);
}

}  // namespace

Image decode_image(std::span<const uint8_t> bytes, const std::string& name,
                   const DecodeOptions& options) {
  const PixelLimit limit(options.max_pixels);
  Image image = decode_as_stored(bytes, name);
  if (options.exif_orientation) apply_orientation(read_orientation(bytes), image);
  return image;
}

Image decode_part(std::span<const uint8_t> bytes, const std::string& name,
                  const ChooseWindow& choose) {
  if (is_jpeg(bytes)) return decode_jpeg(bytes, name, &choose);
  Image image = decode_as_stored(bytes, name);
  crop(choose(image.height, image.width), image);
  return image;
}

Image read_image(const std::string& path, const DecodeOptions& options) {
  return decode_image(read_bytes(path), path, options);
}

std::vector<uint8_t> read_bytes(const std::string& path) {
  refuse_special_file(path);
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) fail_input("{}: cannot be opened: {}", path, std::strerror(errno));
  const std::streamoff size = std::max<std::streamoff>(file.tellg(), 0);
  if (size > kMaxImageFile)
    fail_input("{}: {} bytes are more than the limit of {}", path, size, kMaxImageFile);
  std::vector<uint8_t> bytes(static_cast<size_t>(size));
  file.seekg(0);
  file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!file) fail_input("{}: cannot be read: {}", path, std::strerror(errno));
  return bytes;
}

bool starts_with(std::span<const uint8_t> bytes, std::string_view magic, size_t at) {
  return bytes.size() >= at + magic.size() &&
         std::memcmp(bytes.data() + at, magic.data(), magic.size()) == 0;
}

bool is_tiff(std::span<const uint8_t> bytes) {
  return starts_with(bytes, {"II*\0", 4}) || starts_with(bytes, {"MM\0*", 4});
}

Image allocate_rgb(int64_t width, int64_t height, const std::string& name) {
  if (width <= 0 || height <= 0)
    fail_input("{}: the image has no pixels ({} x {})", name, width, height);
  if (width > pixel_limit / height)
    fail_input("{}: {} x {} pixels are more than the limit of {}", name, width, height,
               pixel_limit);
  if (width > kMaxSide || height > kMaxSide)
    fail_input("{}: {} x {} pixels are more than the limit of {} on a side", name, width, height,
               kMaxSide);
  Image image;
  image.reshape(3, static_cast<int>(height), static_cast<int>(width));
  return image;
}

void store_row(const uint8_t* row, int components, Image& image, int y) {
  const auto width = static_cast<size_t>(image.width);
  const size_t offset = static_cast<size_t>(y) * width;
  uint8_t *red = image.plane(0) + offset, *green = image.plane(1) + offset,
          *blue = image.plane(2) + offset;
  if (components == 1) {
    for (uint8_t* plane : {red, green, blue}) std::copy_n(row, width, plane);
    return;
  }
  split_rgb(row, width, red, green, blue);
}

}  // namespace vitrum
