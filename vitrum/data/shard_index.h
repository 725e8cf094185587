// What is where in tar shards of images: one small text file stands for reading every header.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vitrum {

struct ShardFile {
  std::string name;  // in its folder
  int64_t size = 0;
  int64_t modified = 0;     // in nanoseconds since 1970; 0: does not matter
  std::string sha256 = {};  // of all of it, where known
  bool operator==(const ShardFile&) const = default;
};

struct ShardSample {
  int32_t shard = 0, label = -1;  // -1: it has none
  int64_t at = 0, size = 0;       // the image's bytes in the shard
  std::string name;               // of the member
  bool operator==(const ShardSample&) const = default;
};

struct ShardIndex {
  std::vector<std::string> classes;
  std::vector<ShardFile> shards;
  std::vector<ShardSample> samples;  // in the order of the data set
  bool operator==(const ShardIndex&) const = default;
};

inline constexpr const char* kShardIndexName = "shards.index";
inline constexpr size_t kMaxShardIndex = size_t{4} << 30;  // bytes

// Lines of text that end in a digest of all before:
//
//   vitrum shards 1
//   classes 2
//   cat
//   dog
//   shards 1
//   SIZE MODIFIED SHA256 NAME        a dash where the digest is not known
//   samples 1
//   SHARD AT SIZE LABEL NAME         numbers count from 0; a label of -1 is none
//   sha256 DIGEST
std::string to_text(const ShardIndex& index);

// `path` is for messages. Everything is checked: where samples lie, labels, that names of shards
// are names in their own folder.
ShardIndex parse_shard_index(std::string_view text, const std::string& path);

// Of a name that stands on a line of the index.
bool fits_a_line(std::string_view name);

}  // namespace vitrum
