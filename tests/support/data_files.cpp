#include "tests/support/data_files.h"

#include <png.h>
#include <stdlib.h>
#include <zlib.h>

#include <cstdio>
#include <fstream>
// libjpeg's header needs FILE declared before it.
#include <jpeglib.h>

#include "vitrum/core/error.h"

namespace vitrum::test {

namespace fs = std::filesystem;

TempDir::TempDir() {
  std::string pattern = (fs::temp_directory_path() / "vitrum-test-XXXXXX").string();
  if (!mkdtemp(pattern.data())) throw std::runtime_error("no temporary folder");
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string TempDir::operator/(const std::string& name) const {
  const fs::path path = path_ / name;
  fs::create_directories(path.parent_path());
  return path.string();
}

void write_file(const std::string& path, const Bytes& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  if (!file) throw std::runtime_error("cannot write " + path);
}

Bytes gzip(const Bytes& bytes) {
  z_stream stream{};
  deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY);
  Bytes out(deflateBound(&stream, bytes.size()) + 32);
  stream.next_in = const_cast<uint8_t*>(bytes.data());
  stream.avail_in = static_cast<unsigned>(bytes.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<unsigned>(out.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  return out;
}

namespace {

void append_u32(Bytes& bytes, int value) {
  for (int shift = 24; shift >= 0; shift -= 8)
    bytes.push_back(static_cast<uint8_t>(static_cast<unsigned>(value) >> shift));
}

}  // namespace

Bytes idx_images(int count, int height, int width, int first) {
  Bytes bytes = {0, 0, 8, 3};
  for (const int dim : {count, height, width}) append_u32(bytes, dim);
  for (int i = 0; i < count * height * width; ++i)
    bytes.push_back(static_cast<uint8_t>((first + i) * 7));
  return bytes;
}

Bytes idx_labels(int count, int classes) {
  Bytes bytes = {0, 0, 8, 1};
  append_u32(bytes, count);
  for (int i = 0; i < count; ++i) bytes.push_back(static_cast<uint8_t>(i % classes));
  return bytes;
}

void write_mnist(const TempDir& dir, int train, int test, bool zipped) {
  const auto write = [&](const std::string& name, const Bytes& bytes) {
    write_file(dir / (zipped ? name + ".gz" : name), zipped ? gzip(bytes) : bytes);
  };
  write("train-images-idx3-ubyte", idx_images(train, 4, 5));
  write("train-labels-idx1-ubyte", idx_labels(train));
  write("t10k-images-idx3-ubyte", idx_images(test, 4, 5, 1));
  write("t10k-labels-idx1-ubyte", idx_labels(test));
}

Image gradient(int channels, int height, int width) {
  Image image;
  image.reshape(channels, height, width);
  size_t i = 0;
  for (int c = 0; c < channels; ++c) {
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x)
        image.pixels[i++] = static_cast<uint8_t>(40 * c + 3 * y + 2 * x);
    }
  }
  return image;
}

namespace {

Bytes interleaved(const Image& image) {
  Bytes out;
  for (size_t i = 0; i < image.plane_size(); ++i) {
    for (int c = 0; c < image.channels; ++c) out.push_back(image.plane(c)[i]);
  }
  return out;
}

}  // namespace

Bytes encode_png(const Image& image) {
  png_image header{};
  header.version = PNG_IMAGE_VERSION;
  header.width = static_cast<unsigned>(image.width);
  header.height = static_cast<unsigned>(image.height);
  header.format = image.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  const Bytes pixels = interleaved(image);
  png_alloc_size_t size = 0;
  EXPECT_TRUE(png_image_write_to_memory(&header, nullptr, &size, 0, pixels.data(), 0, nullptr));
  Bytes out(size);
  EXPECT_TRUE(png_image_write_to_memory(&header, out.data(), &size, 0, pixels.data(), 0, nullptr));
  out.resize(size);
  return out;
}

Bytes encode_jpeg(const Image& image) {
  jpeg_compress_struct jpeg{};
  jpeg_error_mgr errors;
  jpeg.err = jpeg_std_error(&errors);
  jpeg_create_compress(&jpeg);
  unsigned char* data = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&jpeg, &data, &size);
  jpeg.image_width = static_cast<unsigned>(image.width);
  jpeg.image_height = static_cast<unsigned>(image.height);
  jpeg.input_components = image.channels;
  jpeg.in_color_space = image.channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  jpeg_set_defaults(&jpeg);
  jpeg_start_compress(&jpeg, TRUE);
  Bytes pixels = interleaved(image);
  const size_t stride = static_cast<size_t>(image.width) * static_cast<size_t>(image.channels);
  while (jpeg.next_scanline < jpeg.image_height) {
    uint8_t* row = pixels.data() + jpeg.next_scanline * stride;
    jpeg_write_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_compress(&jpeg);
  Bytes out(data, data + size);
  jpeg_destroy_compress(&jpeg);
  free(data);
  return out;
}

std::optional<std::string> shared_data(const std::string& name) {
  const char* const root = std::getenv("VITRUM_SHARED_DATA");
  const fs::path path =
      (root ? fs::path(root) : fs::path(VITRUM_SOURCE_DIR) / "../shared/data") / name;
  return fs::exists(path) ? std::optional(path.string()) : std::nullopt;
}

std::string input_error(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInput) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

void FakeDataset::read_into(int64_t index, Image& image) const {
  if (index == bad_) fail_input("fake {} is bad", index);
  image.reshape(image_size_.channels, image_size_.height, image_size_.width);
  for (size_t i = 0; i < image.pixels.size(); ++i) {
    image.pixels[i] = static_cast<uint8_t>(static_cast<size_t>(index) * 31 + i);
  }
}

}  // namespace vitrum::test
