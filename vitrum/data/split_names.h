#pragma once
#include <array>
#include <span>
#include <string_view>

namespace vitrum {

inline constexpr std::array<std::string_view, 1> kTrainNames = {"train"};
inline constexpr std::array<std::string_view, 4> kTestNames = {"test", "val", "valid",
                                                               "validation"};
inline constexpr std::array<std::string_view, 4> kValNames = {"val", "valid", "validation", "test"};
inline constexpr std::array<std::string_view, 5> kAllSplitNames = {"train", "val", "valid",
                                                                   "validation", "test"};

// What folders and shards that stand for a split are called, the best name first.
constexpr std::span<const std::string_view> split_names(std::string_view split) {
  if (split == "train") return kTrainNames;
  if (split == "test") return kTestNames;
  return kValNames;
}

}  // namespace vitrum
