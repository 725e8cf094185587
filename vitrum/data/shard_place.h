// A folder of shards with their index. Internal to data/.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "vitrum/data/shard_dataset.h"
#include "vitrum/data/shard_index.h"

namespace vitrum {

struct ShardPlace {
  std::string name;  // the folder, for messages
  ShardIndex index;
  std::shared_ptr<const ShardFiles> files;
  std::vector<std::string> listed_classes = {};  // of classes.txt, where there is one
};

// Nothing where the folder holds no shards. It may be far away. A folder that `data pack` wrote has
// an index, which the shards must fit; of others it is made, and kept in the cache until a shard's
// size or time differs.
std::optional<ShardPlace> open_shard_place(const std::string& folder);

struct RemoteShardOptions {
  // Data sets of up to so many bytes are fetched whole, and read in any order, as local ones are.
  // Of larger ones images that lie together are read together, so that few shards are here at a
  // time. A constant: the order of reading must not depend on the machine.
  int64_t whole_bytes = int64_t{4} << 30;
  int tries = 5;
  double pause = 1;  // seconds before the second try, twice that before the third, ...
};

// The same of a folder far away, which must have an index with digests. Shards come into the cache,
// which holds up to VITRUM_CACHE_SIZE bytes.
std::optional<ShardPlace> open_remote_shards(const std::string& place,
                                             const RemoteShardOptions& options = {});

}  // namespace vitrum
