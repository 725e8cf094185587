#include "fuzz/entries.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <webp/decode.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "tests/support/archives.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/data/decode.h"
#include "vitrum/weights/npz.h"
#include "vitrum/weights/open_tensors.h"
#include "vitrum/weights/pytorch.h"
#include "vitrum/weights/safetensors.h"
#include "vitrum/weights/sharded.h"

namespace vitrum::fuzz {
namespace {

constexpr size_t kMaxGathered = 1 << 24;  // bytes of a tensor; more is only slow

// A file without a place on disk.
class MemoryFile {
 public:
  explicit MemoryFile(Input bytes) : fd_(memfd_create("fuzz", MFD_CLOEXEC)) {
    if (fd_ < 0) throw std::runtime_error("no memory file");
    OutputFile(path(), O_TRUNC).write(std::as_bytes(bytes));
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  int fd_;
};

// Every byte of every tensor is looked at.
void read_all(const TensorSource& source) {
  for (const TensorInfo& tensor : source.tensors()) {
    if (tensor.bytes > kMaxGathered) continue;
    const auto bytes = source.bytes(tensor);
    if (bytes.size() != tensor.bytes) std::abort();
    [[maybe_unused]] volatile uint8_t sink = 0;
    for (const std::byte b : bytes) sink = static_cast<uint8_t>(b);
  }
}

// An Error is the right answer to a bad file, if it blames the file in one line.
template <class Body>
void judge(const Body& body) {
  try {
    body();
  } catch (const Error& error) {
    const std::string_view what = error.what();
    if (error.kind() != ErrorKind::kInput || what.empty() || what.find('\n') != what.npos)
      std::abort();
  }
}

// A folder with one good shard, in which the index is put.
std::string shard_folder() {
  std::string name = std::filesystem::temp_directory_path() / "vitrum-fuzz-XXXXXX";
  if (!mkdtemp(name.data())) throw std::runtime_error("no folder");
  static float one = 1;
  write_safetensors(name + "/one.safetensors",
                    std::vector<NamedTensor>{{"a", {&one, {1}, DType::kF32}}});
  return name;
}

uint64_t big_endian(std::string_view bytes) {
  uint64_t n = 0;
  for (const char c : bytes) n = n << 8 | static_cast<uint8_t>(c);
  return n;
}

// The most pixels that a file may claim to have.
uint64_t claimed_pixels(std::string_view bytes) {
  if (bytes.starts_with("\x89PNG") && bytes.size() >= 24)
    return big_endian(bytes.substr(16, 4)) * big_endian(bytes.substr(20, 4));
  int width = 0, height = 0;
  if (WebPGetInfo(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), &width, &height))
    return static_cast<uint64_t>(width) * static_cast<uint64_t>(height);
  uint64_t most = 0;  // of all that may be a JPEG's frame header
  for (size_t at = 0; (at = bytes.find('\xff', at)) + 9 <= bytes.size() && at != bytes.npos; ++at)
    if ((bytes[at + 1] & 0xf0) == 0xc0)
      most =
          std::max(most, big_endian(bytes.substr(at + 5, 2)) * big_endian(bytes.substr(at + 7, 2)));
  return most;
}

// Large images take time, which is no finding; tests/weights/hostile_test.cpp has them.
void decode(Input bytes, std::string_view magic) {
  constexpr uint64_t kMaxClaim = 1 << 20;
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (!text.starts_with(magic) || claimed_pixels(text) > kMaxClaim) return;
  judge([&] { decode_image(bytes, "image"); });
}

}  // namespace

void safetensors(Input bytes) {
  const MemoryFile file(bytes);
  judge([&] { read_all(SafetensorsFile(file.path())); });
}

void index(Input bytes) {
  struct Folder {
    std::string path = shard_folder();
    ~Folder() { std::filesystem::remove_all(path); }
  };
  static const Folder folder;
  const std::string path = folder.path + "/index.json";
  OutputFile(path, O_CREAT | O_TRUNC).write(std::as_bytes(bytes));
  judge([&] { read_all(ShardedFile(path)); });
}

void pytorch(Input bytes) {
  const MemoryFile file(bytes);
  judge([&] {
    ZipFile zip(file.path());
    if (PyTorchFile::recognizes(zip)) read_all(PyTorchFile(std::move(zip)));
  });
}

// As a member of a good archive, which the fuzzer need not learn to write.
void pickle(Input bytes) {
  const std::string file = test::zip_of(
      {{"a/data.pkl", {bytes.begin(), bytes.end()}}, {"a/data/0", std::string(64, 'x')}});
  pytorch({reinterpret_cast<const uint8_t*>(file.data()), file.size()});
}

void npz(Input bytes) {
  const MemoryFile file(bytes);
  judge([&] { read_all(NpzFile(ZipFile(file.path()))); });
}

void jpeg(Input bytes) { decode(bytes, "\xff\xd8\xff"); }
void png(Input bytes) { decode(bytes, "\x89PNG\r\n\x1a\n"); }
void webp(Input bytes) { decode(bytes, "RIFF"); }

}  // namespace vitrum::fuzz
