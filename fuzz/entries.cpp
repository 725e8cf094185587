#include "fuzz/entries.h"

#include "fuzz/support.h"
#include "tests/support/archives.h"
#include "vitrum/weights/npy.h"
#include "vitrum/weights/npz.h"
#include "vitrum/weights/open_tensors.h"
#include "vitrum/weights/pytorch.h"
#include "vitrum/weights/quantized_tensors.h"
#include "vitrum/weights/safetensors.h"
#include "vitrum/weights/sharded.h"

namespace vitrum::fuzz {
namespace {

constexpr size_t kMaxGathered = 1 << 24;  // bytes of a tensor; more is only slow

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

}  // namespace

void safetensors(Input bytes) {
  const MemoryFile file(bytes);
  judge([&] {
    auto tensors = std::make_unique<SafetensorsFile>(file.path());
    if (!QuantizedTensors::recognizes(*tensors)) return read_all(*tensors);
    read_all(QuantizedTensors(std::move(tensors)));
  });
}

// In a folder with one good shard.
void index(Input bytes) {
  static const Folder folder;
  static float one = 1;
  [[maybe_unused]] static const bool written = [] {
    write_safetensors(folder.path() + "/one.safetensors",
                      std::vector<NamedTensor>{{"a", {&one, {1}, DType::kF32}}});
    return true;
  }();
  const std::string path = folder.put("index.json", bytes);
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

void npy(Input bytes) {
  const MemoryFile file(bytes);
  judge([&] { read_npy(file.path()); });
}

}  // namespace vitrum::fuzz
