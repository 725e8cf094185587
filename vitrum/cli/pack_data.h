#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "vitrum/cli/verbs.h"

namespace vitrum {

struct PackArguments {
  std::string source, folder;  // DATA, and where its shards go
  bool copy = false, force = false;
  std::optional<int64_t> size, quality, shards;
};

// `vitrum data pack`: the folder appears when all is written, or not at all.
int pack_data(const PackArguments& arguments, const CommonOptions& common);

}  // namespace vitrum
