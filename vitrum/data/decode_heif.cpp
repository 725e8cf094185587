// HEIC and AVIF through libheif, whose interface (version 1.12 or later) is declared here as far as
// it is used: its headers are no dependency.
#include <memory>
#include <utility>

#include "vitrum/core/error.h"
#include "vitrum/core/shared_library.h"
#include "vitrum/data/codecs.h"
#include "vitrum/data/decode.h"
#include "vitrum/data/optional_codecs.h"

namespace vitrum {
namespace {

// These codecs take ten times as long for a pixel as JPEG does: what phones write fits, 8064 x
// 6048.
constexpr int64_t kMaxHeifPixels = 50'000'000;

struct Context;
struct Handle;
struct Picture;
struct Outcome {  // heif_error
  int code, detail;
  const char* text;
};
// heif_decoding_options as far as version 4 of it, which 1.15 has.
struct DecodingOptions {
  uint8_t version, ignore_transformations;
  void *start_progress, *on_progress, *end_progress, *progress_data;
  uint8_t convert_to_8_bits, strict;
  const char* decoder;  // where there is none of that name, libheif takes the one it likes best
};
constexpr int kRgbSpace = 1, kInterleavedRgb = 10, kInterleavedChannel = 10;
constexpr int kUnsupportedFeature = 4, kUnsupportedCodec = 3000;

struct LibHeif {
  const char* (*get_version)();
  Context* (*context_alloc)();
  void (*context_free)(Context*);
  Outcome (*read_memory)(Context*, const void*, size_t, const void* options);
  void (*set_threads)(Context*, int);
  void (*set_max_size)(Context*, int);
  Outcome (*primary_handle)(Context*, Handle**);
  void (*handle_release)(const Handle*);
  int (*handle_width)(const Handle*);
  int (*handle_height)(const Handle*);
  DecodingOptions* (*options_alloc)();
  void (*options_free)(DecodingOptions*);
  Outcome (*decode)(const Handle*, Picture**, int space, int chroma, const DecodingOptions*);
  void (*picture_release)(const Picture*);
  int (*picture_width)(const Picture*, int channel);
  int (*picture_height)(const Picture*, int channel);
  const uint8_t* (*plane)(const Picture*, int channel, int* stride);
};

// Null where it is not installed, or too old.
const LibHeif* lib_heif() {
  static const std::unique_ptr<const LibHeif> opened = [] {
    auto lib = std::make_unique<LibHeif>();
    const SharedLibrary so{"libheif.so.1"};
    const bool complete = so && so.find("heif_get_version", lib->get_version) &&
                          so.find("heif_context_alloc", lib->context_alloc) &&
                          so.find("heif_context_free", lib->context_free) &&
                          so.find("heif_context_read_from_memory_without_copy", lib->read_memory) &&
                          so.find("heif_context_set_max_decoding_threads", lib->set_threads) &&
                          so.find("heif_context_set_maximum_image_size_limit", lib->set_max_size) &&
                          so.find("heif_context_get_primary_image_handle", lib->primary_handle) &&
                          so.find("heif_image_handle_release", lib->handle_release) &&
                          so.find("heif_image_handle_get_width", lib->handle_width) &&
                          so.find("heif_image_handle_get_height", lib->handle_height) &&
                          so.find("heif_decoding_options_alloc", lib->options_alloc) &&
                          so.find("heif_decoding_options_free", lib->options_free) &&
                          so.find("heif_decode_image", lib->decode) &&
                          so.find("heif_image_release", lib->picture_release) &&
                          so.find("heif_image_get_width", lib->picture_width) &&
                          so.find("heif_image_get_height", lib->picture_height) &&
                          so.find("heif_image_get_plane_readonly", lib->plane);
    return complete ? std::move(lib) : nullptr;
  }();
  return opened.get();
}

class HeifReader {
 public:
  HeifReader(const LibHeif& lib, const std::string& name)
      : lib_(lib), name_(name), context_(lib.context_alloc(), lib.context_free) {}

  // As libheif does by itself, the image is turned as its boxes say; EXIF data do not count.
  Image decode(std::span<const uint8_t> bytes) {
    lib_.set_threads(context_.get(), 0);
    lib_.set_max_size(context_.get(), 1 << 13);  // squared: the most pixels that it allocates
    check(lib_.read_memory(context_.get(), bytes.data(), bytes.size(), nullptr));
    Handle* handle = nullptr;
    check(lib_.primary_handle(context_.get(), &handle));
    const Owned<Handle> owned_handle(handle, lib_.handle_release);
    const int width = lib_.handle_width(handle), height = lib_.handle_height(handle);
    Image image = allocate_rgb(width, height, name_);
    if (int64_t{width} * height > kMaxHeifPixels)
      fail_input("{}: {} x {} pixels are more than the limit of {} for HEIC and AVIF", name_, width,
                 height, kMaxHeifPixels);
    Picture* picture = nullptr;
    const Options options = quiet_options();
    check(lib_.decode(handle, &picture, kRgbSpace, kInterleavedRgb, options.get()));
    const Owned<Picture> owned_picture(picture, lib_.picture_release);
    store(*picture, image);
    return image;
  }

 private:
  template <class T>
  using Owned = std::unique_ptr<T, void (*)(const T*)>;
  using Options = std::unique_ptr<DecodingOptions, void (*)(DecodingOptions*)>;

  // libheif's first choice for AVIF, libdav1d, writes to stderr what is wrong with a file; libaom
  // gives the same pixels, and errors as errors.
  Options quiet_options() const {
    Options options(lib_.options_alloc(), lib_.options_free);
    if (options && options->version >= 4) options->decoder = "aom";
    return options;
  }

  void check(const Outcome& outcome) const {
    if (outcome.code == 0) return;
    if (outcome.code == kUnsupportedFeature && outcome.detail == kUnsupportedCodec)
      fail_input(
          "{}: libheif cannot read this codec: {}; install its plugin: libheif-plugin-libde265 for "
          "HEIC, libheif-plugin-dav1d for AVIF",
          name_, one_line(outcome.text));
    fail_input("{}: broken HEIC or AVIF: {}", name_, one_line(outcome.text));
  }

  static std::string one_line(const char* text) {
    std::string line(text ? text : "unknown error");
    for (char& c : line) c = c == '\n' ? ' ' : c;
    return line;
  }

  void store(const Picture& picture, Image& image) const {
    int stride = 0;
    const uint8_t* const rows = lib_.plane(&picture, kInterleavedChannel, &stride);
    if (!rows || lib_.picture_width(&picture, kInterleavedChannel) != image.width ||
        lib_.picture_height(&picture, kInterleavedChannel) != image.height)
      fail_input("{}: broken HEIC or AVIF: not of the size that its header says", name_);
    for (int y = 0; y < image.height; ++y)
      store_row(rows + static_cast<size_t>(y) * static_cast<size_t>(stride), 3, image, y);
  }

  const LibHeif& lib_;
  const std::string& name_;
  std::unique_ptr<Context, void (*)(Context*)> context_;
};

constexpr const char* kRemedy = "install the package libheif1";

}  // namespace

CodecStatus heif_status() {
  const LibHeif* const lib = lib_heif();
  return {"HEIC, AVIF", lib != nullptr,
          lib ? fmt::format("libheif {}", lib->get_version()) : std::string(kRemedy)};
}

Image decode_heif(std::span<const uint8_t> bytes, const std::string& name) {
  const LibHeif* const lib = lib_heif();
  if (!lib) fail_input("{}: HEIC and AVIF images need libheif.so.1; {}", name, kRemedy);
  return HeifReader(*lib, name).decode(bytes);
}

}  // namespace vitrum
