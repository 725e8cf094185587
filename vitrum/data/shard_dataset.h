// Images that lie in tar shards, read where they are: any of them at any time.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "vitrum/core/random_file.h"
#include "vitrum/data/encoded_dataset.h"
#include "vitrum/data/shard_index.h"

namespace vitrum {

// Where shards are. Members may be called from several threads at once.
class ShardFiles {
 public:
  virtual ~ShardFiles() = default;
  // A file of this machine that is shard number `shard`; one far away is fetched first.
  virtual std::string path_of(int32_t shard) const = 0;
  // Whether they are too many to have all of them here at a time.
  virtual bool streamed() const { return false; }
  // Which shards will be read, the soonest first.
  virtual void will_read(const std::vector<int32_t>& shards) const { static_cast<void>(shards); }
};

class LocalShards final : public ShardFiles {
 public:
  LocalShards(std::string folder, const std::vector<ShardFile>& shards);
  std::string path_of(int32_t shard) const override { return paths_[static_cast<size_t>(shard)]; }

 private:
  std::vector<std::string> paths_;
};

class ShardDataset final : public EncodedDataset {
 public:
  // `place` is for messages: the folder or URL of the shards.
  ShardDataset(std::string place, ShardIndex index, std::shared_ptr<const ShardFiles> files,
               const DecodeOptions& options);

  int64_t size() const override { return static_cast<int64_t>(index_.samples.size()); }
  const std::vector<std::string>& classes() const override { return index_.classes; }
  int label(int64_t index) const override { return sample(index).label; }
  std::string name(int64_t index) const override;
  std::vector<uint8_t> file(int64_t index) const override;
  std::vector<int32_t> groups() const override;
  void will_read(std::span<const int64_t> order) const override;

 private:
  RandomFile open(int32_t shard) const;
  const ShardSample& sample(int64_t index) const {
    return index_.samples[static_cast<size_t>(index)];
  }

  std::string place_;
  ShardIndex index_;
  std::shared_ptr<const ShardFiles> files_;
};

}  // namespace vitrum
