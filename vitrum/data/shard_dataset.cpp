#include "vitrum/data/shard_dataset.h"

#include <algorithm>
#include <filesystem>

#include "vitrum/core/error.h"
#include "vitrum/core/tar_header.h"

namespace vitrum {

LocalShards::LocalShards(std::string folder, const std::vector<ShardFile>& shards) {
  for (const ShardFile& shard : shards) paths_.push_back(folder + "/" + shard.name);
}

ShardDataset::ShardDataset(std::string place, ShardIndex index,
                           std::shared_ptr<const ShardFiles> files, const DecodeOptions& options)
    : EncodedDataset(options),
      place_(std::move(place)),
      index_(std::move(index)),
      files_(std::move(files)) {}

std::string ShardDataset::name(int64_t index) const {
  const ShardSample& s = sample(index);
  return place_ + "/" + index_.shards[static_cast<size_t>(s.shard)].name + "/" + s.name;
}

std::vector<int32_t> ShardDataset::groups() const {
  std::vector<int32_t> shards;
  if (!files_->streamed()) return shards;
  for (const ShardSample& s : index_.samples) shards.push_back(s.shard);
  return shards;
}

void ShardDataset::will_read(std::span<const int64_t> order) const {
  std::vector<int32_t> shards;
  std::vector<bool> seen(index_.shards.size());
  for (const int64_t i : order)
    if (const int32_t shard = sample(i).shard; !seen[static_cast<size_t>(shard)])
      seen[static_cast<size_t>(shard)] = true, shards.push_back(shard);
  files_->will_read(shards);
}

// What another process removes from a cache before it is opened is fetched again.
RandomFile ShardDataset::open(int32_t shard) const {
  constexpr int kTries = 5;
  for (int n = 1;; ++n) {
    const std::string path = files_->path_of(shard);
    try {
      return RandomFile(path);
    } catch (const Error&) {
      if (n == kTries || std::filesystem::exists(path)) throw;
    }
  }
}

// Opened for each image: that takes a hundredth of what decoding it takes, and thousands of shards
// would be more than a process may have open. The header comes along, so that a shard which is not
// the one of the index any more is found out.
std::vector<uint8_t> ShardDataset::file(int64_t index) const {
  const ShardSample& s = sample(index);
  const RandomFile shard = open(s.shard);
  TarHeader header;
  std::vector<uint8_t> bytes(static_cast<size_t>(s.size));
  shard.read(s.at - kTarBlock, header.bytes);
  if (!header.is_intact() || !header.is_file() || header.size() != s.size)
    fail_input(
        "{}: the shard has changed since its index was made; pack the data anew, or start "
        "again",
        name(index));
  shard.read(s.at, {reinterpret_cast<char*>(bytes.data()), bytes.size()});
  return bytes;
}

}  // namespace vitrum
