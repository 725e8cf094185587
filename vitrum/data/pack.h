// A data set as tar shards with an index: what training at scale reads fastest and other programs
// (WebDataset) read too. The same images give the same bytes, whoever packs them and when.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "vitrum/data/dataset.h"

namespace vitrum {

struct PackOptions {
  int size = 0;  // shortest edge that images are made smaller to; 0: files stay as they are
  int quality = 95;
  int64_t shards = 0;  // 0: one for 2,000 images; from 33 on a multiple of 64
  int threads = 0;     // 0: all cores
  std::function<void(int64_t done)> progress = {};  // from the caller's thread, now and then
  std::function<bool()> stop = [] { return false; };
};

struct PackedSplit {
  int64_t images = 0, shards = 0, bytes = 0;
  std::string digest;  // of all: classes, order, bytes
};

// Writes `word`-000000.tar, ..., shards.index and classes.txt into a folder, which must be there.
// Image n goes to shard n modulo their number, so that every shard has of all classes; the index
// keeps the order. Returns early, with nothing whole, where it is stopped.
PackedSplit pack_split(const Dataset& data, const std::string& folder, const std::string& word,
                       const PackOptions& options);

}  // namespace vitrum
