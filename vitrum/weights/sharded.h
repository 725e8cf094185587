// A checkpoint in several files, as transformers writes it: an index (JSON) whose "weight_map" says
// which file beside it holds which tensor.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "vitrum/weights/tensor_source.h"

namespace vitrum {

class ShardedFile final : public TensorSource {
 public:
  static constexpr size_t kMaxIndex = 32 << 20;  // bytes
  static constexpr size_t kMaxShards = 1024;
  static constexpr size_t kMaxTensors = 65'536;

  // Opens every shard once. The map and the shards must name the same tensors, each in one shard;
  // all that differ are listed. A file that the map does not name is never opened.
  explicit ShardedFile(const std::string& index_path);

  const std::string& path() const override { return path_; }
  void check_intact() const override;
  std::span<const std::byte> bytes(const TensorInfo& tensor) const override;
  void release(const TensorInfo& tensor) const override;

 private:
  struct Place {
    size_t shard;
    const TensorInfo* tensor;
  };

  std::string path_;
  std::vector<std::unique_ptr<TensorSource>> shards_;
  std::vector<Place> places_;  // of tensors_[i], whose offset is i
};

// Where `path` is such an index: the files beside it that it names. Otherwise, or where the index
// is refused, none.
std::vector<std::string> shards_beside(const std::string& path);

}  // namespace vitrum
