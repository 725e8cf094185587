#include "vitrum/data/idx.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <span>

#include "vitrum/core/error.h"
#include "vitrum/data/decode.h"
#include "vitrum/data/memory_dataset.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

// zlib's gz layer reads plain files as they are, so both kinds take one way.
class GzFile {
 public:
  explicit GzFile(const std::string& path) : path_(path), file_(gzopen(path.c_str(), "rb")) {
    if (!file_) fail_input("{}: cannot be opened: {}", path_, std::strerror(errno));
  }
  ~GzFile() { gzclose(file_); }
  GzFile(const GzFile&) = delete;
  GzFile& operator=(const GzFile&) = delete;

  size_t read_some(std::span<uint8_t> out) {
    constexpr size_t kMost = 1 << 30;  // the interface counts in unsigned and answers in int
    const int got = gzread(file_, out.data(), static_cast<unsigned>(std::min(out.size(), kMost)));
    int code = Z_OK;
    const char* const text = gzerror(file_, &code);
    // A gzip stream that stops in its middle is an error only at the next call; here it is one at
    // once.
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END))
      fail_input("{}: cannot be read: {}", path_, text);
    return static_cast<size_t>(got);
  }

  // Memory is taken as the data comes: a header may promise a thousand times what follows.
  void append(std::vector<uint8_t>& to, size_t bytes, const char* what) {
    constexpr size_t kStep = 1 << 20, kMostAtOnce = size_t{256} << 20;
    to.reserve(std::min(bytes, kMostAtOnce));
    while (to.size() < bytes) {
      const size_t done = to.size();
      to.resize(std::min(bytes, done + kStep));
      const size_t got = read_some(std::span(to).subspan(done));
      if (got == 0) fail_input("{}: ends after {} of {} bytes of {}", path_, done, bytes, what);
      to.resize(done + got);
    }
  }

  void read(std::span<uint8_t> out, const char* what) {
    for (size_t done = 0; done < out.size();) {
      const size_t got = read_some(out.subspan(done));
      if (got == 0)
        fail_input("{}: ends after {} of {} bytes of {}", path_, done, out.size(), what);
      done += got;
    }
  }

 private:
  const std::string& path_;
  gzFile file_;
};

int64_t big_endian(const uint8_t* b) {
  return int64_t{b[0]} << 24 | int64_t{b[1]} << 16 | int64_t{b[2]} << 8 | int64_t{b[3]};
}

std::vector<int64_t> read_header(GzFile& file, const std::string& path, int rank) {
  std::vector<uint8_t> header(4 + 4 * static_cast<size_t>(rank));
  file.read(std::span(header).first(4), "the IDX magic");
  const int64_t magic = big_endian(header.data()), wanted = 0x0800 + rank;
  if (magic != wanted)
    fail_input("{}: IDX magic is {:#010x}; expected {:#010x}", path, magic, wanted);
  file.read(std::span(header).subspan(4), "the IDX dimensions");
  std::vector<int64_t> dims;
  for (size_t at = 4; at < header.size(); at += 4) dims.push_back(big_endian(&header[at]));
  return dims;
}

// Bytes that the header promises. Refused before allocation when the file cannot hold them: deflate
// never packs more than 1032 bytes into one, and no images to a hundredth (MNIST's to a fifth).
size_t promised_bytes(const std::vector<int64_t>& dims, const std::string& path) {
  const auto most = static_cast<double>(fs::file_size(path)) * 1032.0;
  double bytes = 1.0;
  for (const int64_t dim : dims) bytes *= static_cast<double>(dim);
  if (bytes == 0.0) fail_input("{}: the IDX header says there is nothing in it", path);
  if (bytes > most)
    fail_input("{}: the IDX header promises {:.0f} bytes, more than the file can hold", path,
               bytes);
  if (dims.size() == 3 && static_cast<double>(dims[1]) * static_cast<double>(dims[2]) > kMaxPixels)
    fail_input("{}: images of {} x {} pixels are too large", path, dims[1], dims[2]);
  constexpr double kAlways = 64 << 20;
  if (bytes > std::max(kAlways, most / 1032.0 * 100))
    fail_input(
        "{}: the IDX header promises {:.0f} bytes, a hundred times the file's: those are no "
        "images",
        path, bytes);
  return static_cast<size_t>(bytes);
}

std::string find_file(const fs::path& dir, const std::string& stem, int rank,
                      const std::string& remedy) {
  const std::string name = fmt::format("{}-idx{}-ubyte", stem, rank);
  const std::string dotted = fmt::format("{}.idx{}-ubyte", stem, rank);
  for (const char* below : {"", "raw", "MNIST/raw", "FashionMNIST/raw"}) {
    for (const std::string& file : {name, name + ".gz", dotted, dotted + ".gz"}) {
      const fs::path path = dir / below / file;
      std::error_code ignored;
      if (fs::is_regular_file(path, ignored)) return path.string();
    }
  }
  fail_input("{}: neither {} nor {}.gz is there{}", dir.string(), name, name, remedy);
}

}  // namespace

IdxArray read_idx(const std::string& path, int rank) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) fail_input("{}: is not a file", path);
  GzFile file(path);
  IdxArray array;
  array.dims = read_header(file, path, rank);
  file.append(array.data, promised_bytes(array.dims, path), "data that the IDX header promises");
  uint8_t beyond;  // also makes zlib check the checksum behind the data
  if (file.read_some({&beyond, 1}) != 0) {
    fail_input("{}: goes on after the {} bytes that the IDX header promises", path,
               array.data.size());
  }
  return array;
}

std::unique_ptr<Dataset> open_idx(const std::string& dir, const std::string& split,
                                  std::vector<std::string> classes, const std::string& remedy) {
  const std::string stem = split == "train" ? "train" : "t10k";
  const std::string image_path = find_file(dir, stem + "-images", 3, remedy);
  const std::string label_path = find_file(dir, stem + "-labels", 1, remedy);
  IdxArray images = read_idx(image_path, 3), labels = read_idx(label_path, 1);
  if (images.dims[0] != labels.dims[0]) {
    fail_input("{}: {} labels for the {} images of {}", label_path, labels.dims[0], images.dims[0],
               image_path);
  }
  const int64_t height = images.dims[1], width = images.dims[2];
  for (size_t i = 0; i < labels.data.size(); ++i) {
    if (labels.data[i] >= classes.size()) {
      fail_input("{}: label {} of sample {} is not below {}", label_path, labels.data[i], i,
                 classes.size());
    }
  }
  return std::make_unique<MemoryDataset>(
      MemoryData{.split = split,
                 .image_size = {1, static_cast<int>(height), static_cast<int>(width)},
                 .classes = std::move(classes),
                 .pixels = std::move(images.data),
                 .labels = std::move(labels.data)});
}

}  // namespace vitrum
