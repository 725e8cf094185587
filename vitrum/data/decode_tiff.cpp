// TIFF through libtiff (4.5 or later, whose errors do not go through globals), whose interface is
// declared here as far as it is used: its headers are no dependency.
#include <algorithm>
#include <array>
#include <cstdarg>
#include <cstdio>
#include <memory>
#include <vector>

#include "vitrum/core/error.h"
#include "vitrum/core/shared_library.h"
#include "vitrum/data/codecs.h"
#include "vitrum/data/optional_codecs.h"
#include "vitrum/data/orientation.h"

namespace vitrum {
namespace {

struct Tiff;
struct OpenOptions;
using OnMessage = int (*)(Tiff*, void* self, const char* module, const char* format, va_list);

struct LibTiff {
  const char* (*get_version)();
  OpenOptions* (*options_alloc)();
  void (*options_free)(OpenOptions*);
  void (*set_max_alloc)(OpenOptions*, int64_t);
  void (*set_on_error)(OpenOptions*, OnMessage, void* self);
  void (*set_on_warning)(OpenOptions*, OnMessage, void* self);
  Tiff* (*open)(const char* name, const char* mode, void* self,
                int64_t (*read)(void*, void*, int64_t), int64_t (*write)(void*, void*, int64_t),
                uint64_t (*seek)(void*, uint64_t, int), int (*close)(void*),
                uint64_t (*size)(void*), int (*map)(void*, void**, uint64_t*),
                void (*unmap)(void*, void*, uint64_t), OpenOptions*);
  void (*close)(Tiff*);
  int (*get_field)(Tiff*, uint32_t tag, ...);
  int (*set_field)(Tiff*, uint32_t tag, ...);
  int (*is_tiled)(Tiff*);
  uint32_t (*strip_count)(Tiff*);
  uint32_t (*tile_count)(Tiff*);
  uint64_t (*byte_count)(Tiff*, uint32_t strip_or_tile);
  int64_t (*row_bytes)(Tiff*);
  int64_t (*tile_row_bytes)(Tiff*);
  int64_t (*tile_bytes)(Tiff*);
  int (*read_row)(Tiff*, void*, uint32_t row, uint16_t sample);
  int64_t (*read_tile)(Tiff*, void*, uint32_t x, uint32_t y, uint32_t z, uint16_t sample);
};

// Null where it is not installed, or too old.
const LibTiff* lib_tiff() {
  static const std::unique_ptr<const LibTiff> opened = [] {
    auto lib = std::make_unique<LibTiff>();
    const SharedLibrary so{"libtiff.so.6"};
    const bool complete =
        so && so.find("TIFFGetVersion", lib->get_version) &&
        so.find("TIFFOpenOptionsAlloc", lib->options_alloc) &&
        so.find("TIFFOpenOptionsFree", lib->options_free) &&
        so.find("TIFFOpenOptionsSetMaxSingleMemAlloc", lib->set_max_alloc) &&
        so.find("TIFFOpenOptionsSetErrorHandlerExtR", lib->set_on_error) &&
        so.find("TIFFOpenOptionsSetWarningHandlerExtR", lib->set_on_warning) &&
        so.find("TIFFClientOpenExt", lib->open) && so.find("TIFFClose", lib->close) &&
        so.find("TIFFGetFieldDefaulted", lib->get_field) &&
        so.find("TIFFSetField", lib->set_field) && so.find("TIFFIsTiled", lib->is_tiled) &&
        so.find("TIFFNumberOfStrips", lib->strip_count) &&
        so.find("TIFFNumberOfTiles", lib->tile_count) &&
        so.find("TIFFGetStrileByteCount", lib->byte_count) &&
        so.find("TIFFScanlineSize", lib->row_bytes) &&
        so.find("TIFFTileRowSize", lib->tile_row_bytes) &&
        so.find("TIFFTileSize", lib->tile_bytes) && so.find("TIFFReadScanline", lib->read_row) &&
        so.find("TIFFReadTile", lib->read_tile);
    return complete ? std::move(lib) : nullptr;
  }();
  return opened.get();
}

enum Tag : uint32_t {
  kWidth = 256,
  kHeight = 257,
  kBits = 258,
  kCompression = 259,
  kPhotometric = 262,
  kOrientation = 274,
  kSamples = 277,
  kPlanar = 284,
  kColorMap = 320,
  kTileWidth = 322,
  kTileHeight = 323,
  kExtraSamples = 338,
  kSampleFormat = 339,
  kJpegColorMode = 65538,
};
enum Photometric : uint16_t { kWhiteIsZero, kBlackIsZero, kRgb, kPalette, kYCbCr = 6 };
constexpr uint16_t kJpeg = 7;

// The first page: 8 bits a sample, grey, RGB or palette, alpha dropped.
class TiffReader {
 public:
  TiffReader(const LibTiff& lib, std::span<const uint8_t> bytes, const std::string& name)
      : lib_(lib), bytes_(bytes), name_(name), tiff_(nullptr, lib.close) {
    const std::unique_ptr<OpenOptions, void (*)(OpenOptions*)> options(lib.options_alloc(),
                                                                       lib.options_free);
    lib.set_max_alloc(options.get(), static_cast<int64_t>(kMaxStored));
    lib.set_on_error(options.get(), on_error, this);
    lib.set_on_warning(
        options.get(), [](Tiff*, void*, const char*, const char*, va_list) { return 1; }, this);
    tiff_.reset(lib.open(
        "image", "r", this, read, [](void*, void*, int64_t) { return int64_t{0}; }, seek,
        [](void*) { return 0; }, [](void* self) { return of(self).bytes_.size(); }, map,
        [](void*, void*, uint64_t) {}, options.get()));
    if (!tiff_) broken();
  }
  TiffReader(const TiffReader&) = delete;
  TiffReader& operator=(const TiffReader&) = delete;

  Image decode() {
    const auto width = field<uint32_t>(kWidth), height = field<uint32_t>(kHeight);
    Image image = allocate_rgb(width, height, name_);
    choose_layout();
    const uint64_t stored = uint64_t{width} * height * samples_;
    if (stored > kMaxStored)
      fail_input("{}: {} x {} pixels in {} bytes are more than the limit of {} bytes", name_, width,
                 height, stored, kMaxStored);
    refuse_overlap();
    lib_.is_tiled(tiff_.get()) ? read_tiles(image) : read_rows(image);
    apply_orientation(field<uint16_t>(kOrientation), image);  // as Pillow does without being asked
    return image;
  }

 private:
  static TiffReader& of(void* self) { return *static_cast<TiffReader*>(self); }

  static int on_error(Tiff*, void* self, const char*, const char* format, va_list values) {
    char* const text = of(self).text_;
    if (text[0] == '\0') std::vsnprintf(text, sizeof text_, format, values);
    for (char* c = text; *c; ++c)
      if (*c == '\n') *c = ' ';
    return 1;
  }
  static int64_t read(void* self, void* out, int64_t count) {
    const auto& bytes = of(self).bytes_;
    const uint64_t from = std::min<uint64_t>(of(self).at_, bytes.size());
    const uint64_t got = std::min<uint64_t>(static_cast<uint64_t>(count), bytes.size() - from);
    std::copy_n(bytes.data() + from, got, static_cast<uint8_t*>(out));
    of(self).at_ = from + got;
    return static_cast<int64_t>(got);
  }
  static uint64_t seek(void* self, uint64_t to, int from) {
    uint64_t& at = of(self).at_;
    return at = from == SEEK_SET ? to : from == SEEK_CUR ? at + to : of(self).bytes_.size() + to;
  }
  // Read only: libtiff writes to copies.
  static int map(void* self, void** base, uint64_t* size) {
    *base = const_cast<uint8_t*>(of(self).bytes_.data());
    *size = of(self).bytes_.size();
    return 1;
  }

  [[noreturn]] void broken() const {
    fail_input("{}: broken TIFF: {}", name_, text_[0] ? text_ : "it cannot be read");
  }

  template <class T>
  T field(Tag tag) const {
    T value{};
    return lib_.get_field(tiff_.get(), tag, &value) ? value : T{};
  }
  void expect(const char* what, int found, std::initializer_list<int> known, const char* names) {
    if (std::find(known.begin(), known.end(), found) == known.end())
      fail_input("{}: TIFF with {} {}; expected {}", name_, what, found, names);
  }

  void choose_layout() {
    const auto compression = field<uint16_t>(kCompression);
    expect("compression", compression, {1, 5, kJpeg, 8, 32773, 32946},
           "none (1), LZW (5), JPEG (7), deflate (8) or PackBits (32773)");
    expect("bits per sample", field<uint16_t>(kBits), {8}, "8");
    expect("sample format", field<uint16_t>(kSampleFormat), {1}, "whole numbers (1)");
    expect("planar configuration", field<uint16_t>(kPlanar), {1}, "samples side by side (1)");
    if (!lib_.get_field(tiff_.get(), kPhotometric, &photometric_))
      fail_input("{}: broken TIFF: it does not say what its samples mean", name_);
    if (photometric_ == kYCbCr && compression == kJpeg) {
      constexpr int kAsRgb = 1;
      lib_.set_field(tiff_.get(), kJpegColorMode, kAsRgb);
      photometric_ = kRgb;
    }
    expect("photometric interpretation", photometric_, {kWhiteIsZero, kBlackIsZero, kRgb, kPalette},
           "grey (0 or 1), RGB (2) or palette (3)");
    samples_ = field<uint16_t>(kSamples);
    const int colors = photometric_ == kRgb ? 3 : 1;
    expect("samples per pixel", samples_, {colors, photometric_ == kPalette ? colors : colors + 1},
           photometric_ == kRgb ? "3 or 4" : "1, or 2 where they are grey");
    refuse_premultiplied();
    if (photometric_ == kPalette) read_palette();
  }

  // Colours multiplied with alpha cannot be had back exactly.
  void refuse_premultiplied() const {
    uint16_t count = 0;
    const uint16_t* kinds = nullptr;
    if (lib_.get_field(tiff_.get(), kExtraSamples, &count, &kinds) && count > 0 && kinds[0] == 1)
      fail_input("{}: TIFF with colours multiplied with alpha; expected plain ones", name_);
  }

  void read_palette() {
    uint16_t* maps[3] = {};
    if (!lib_.get_field(tiff_.get(), kColorMap, &maps[0], &maps[1], &maps[2]) || !maps[2])
      fail_input("{}: broken TIFF: it has no palette", name_);
    for (size_t i = 0; i < palette_.size(); ++i)
      palette_[i] = {static_cast<uint8_t>(maps[0][i] >> 8), static_cast<uint8_t>(maps[1][i] >> 8),
                     static_cast<uint8_t>(maps[2][i] >> 8)};
  }

  // Every strip may point to the same bytes, which would be read for each.
  void refuse_overlap() const {
    const uint32_t count =
        lib_.is_tiled(tiff_.get()) ? lib_.tile_count(tiff_.get()) : lib_.strip_count(tiff_.get());
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count && sum <= bytes_.size(); ++i)
      sum += std::min<uint64_t>(lib_.byte_count(tiff_.get(), i), bytes_.size() + 1);
    if (sum > bytes_.size())
      fail_input("{}: broken TIFF: its parts are larger than the file of {} bytes", name_,
                 bytes_.size());
  }

  void read_rows(Image& image) {
    const auto needed = static_cast<int64_t>(samples_) * image.width;
    if (lib_.row_bytes(tiff_.get()) != needed) broken();
    std::vector<uint8_t> row(static_cast<size_t>(needed));
    for (int y = 0; y < image.height; ++y) {
      if (lib_.read_row(tiff_.get(), row.data(), static_cast<uint32_t>(y), 0) < 0) broken();
      store(row.data(), image, y, 0, image.width);
    }
  }

  void read_tiles(Image& image) {
    const auto width = field<uint32_t>(kTileWidth), height = field<uint32_t>(kTileHeight);
    constexpr uint32_t kSmallest = 16, kLargest = 8192;  // smaller ones cost more than their pixels
    if (width < kSmallest || height < kSmallest || width > kLargest || height > kLargest)
      fail_input("{}: TIFF with tiles of {} x {} pixels; expected {} to {} on a side", name_, width,
                 height, kSmallest, kLargest);
    const int64_t stride = int64_t{width} * samples_;
    if (lib_.tile_row_bytes(tiff_.get()) != stride ||
        lib_.tile_bytes(tiff_.get()) != stride * height)
      broken();
    PixelVector tile(static_cast<size_t>(stride * height));
    for (int top = 0; top < image.height; top += static_cast<int>(height))
      for (int left = 0; left < image.width; left += static_cast<int>(width)) {
        if (lib_.read_tile(tiff_.get(), tile.data(), static_cast<uint32_t>(left),
                           static_cast<uint32_t>(top), 0, 0) < 0)
          broken();
        const int bottom = std::min(image.height, top + static_cast<int>(height));
        for (int y = top; y < bottom; ++y)
          store(tile.data() + (y - top) * stride, image, y, left,
                std::min(static_cast<int>(width), image.width - left));
      }
  }

  void store(const uint8_t* samples, Image& image, int y, int left, int width) const {
    const size_t at =
        static_cast<size_t>(y) * static_cast<size_t>(image.width) + static_cast<size_t>(left);
    for (size_t x = 0; x < static_cast<size_t>(width); ++x, samples += samples_)
      store_pixel(color(samples), image, at + x);
  }

  Rgb color(const uint8_t* sample) const {
    if (photometric_ == kRgb) return {sample[0], sample[1], sample[2]};
    if (photometric_ == kPalette) return palette_[*sample];
    const uint8_t grey =
        photometric_ == kWhiteIsZero ? static_cast<uint8_t>(255 - *sample) : *sample;
    return {grey, grey, grey};
  }

  const LibTiff& lib_;
  std::span<const uint8_t> bytes_;
  const std::string& name_;
  uint64_t at_ = 0;
  char text_[200] = {};
  uint16_t photometric_ = 0, samples_ = 0;
  std::array<Rgb, 256> palette_{};
  std::unique_ptr<Tiff, void (*)(Tiff*)> tiff_;
};

constexpr const char* kRemedy = "install the package libtiff6";

}  // namespace

CodecStatus tiff_status() {
  const LibTiff* const lib = lib_tiff();
  std::string version = lib ? lib->get_version() : kRemedy;  // a line of it, then who wrote it
  version = version.substr(0, version.find('\n'));
  return {"TIFF", lib != nullptr, version};
}

Image decode_tiff(std::span<const uint8_t> bytes, const std::string& name) {
  const LibTiff* const lib = lib_tiff();
  if (!lib)
    fail_input("{}: TIFF images need libtiff.so.6, version 4.5 or later; {}", name, kRemedy);
  return TiffReader(*lib, bytes, name).decode();
}

}  // namespace vitrum
