// Tar shards as the WebDataset library writes them: files of one sample follow each other and share
// a name up to the first dot. "7.jpg" is an image; its label is in "7.cls" (a number or a name), in
// "7.json" ("label", "cls", "class" or "class_name"), or in "7.txt" (a name).
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/data/shard_index.h"

namespace vitrum {

// Reads the headers and labels of these shards of a folder, in order. Classes are numbered as those
// of a CSV list are. Samples without an image are passed over; one with two is refused.
ShardIndex scan_shards(const std::string& folder, const std::vector<std::string>& names);

// The label that a sample's JSON states, as text.
std::optional<std::string> label_of_json(const std::string& text);

// Whether what stands behind the first dot of a name is that of an image: "jpg", "left.PNG".
bool is_image_extension(std::string_view extension);

}  // namespace vitrum
