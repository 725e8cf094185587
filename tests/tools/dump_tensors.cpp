// dump_tensors FILE OUT.safetensors: whatever open_tensors() reads, for
// tools/check/check_readers.py to compare.
#include <cstdio>

#include "vitrum/core/error.h"
#include "vitrum/weights/open_tensors.h"
#include "vitrum/weights/safetensors.h"

int main(int argc, char** argv) try {
  if (argc != 3) return 2;
  const auto source = vitrum::open_tensors(argv[1]);
  std::vector<vitrum::NamedTensor> tensors;
  for (const vitrum::TensorInfo& t : source->tensors()) {
    // The writer only reads.
    auto* data = const_cast<std::byte*>(source->bytes(t).data());
    tensors.push_back({t.name, {data, t.shape, t.dtype}});
  }
  vitrum::write_safetensors(argv[2], tensors);
  return 0;
} catch (const vitrum::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.kind());
}
