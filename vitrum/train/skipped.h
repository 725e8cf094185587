// Images that a run leaves out because they cannot be read.
#pragma once
#include <optional>
#include <string>
#include <vector>

namespace vitrum {

struct SkippedImage {
  std::string image, error;
  bool operator==(const SkippedImage&) const = default;
};

// The list in a run's directory, one JSON object a line. A resumed run leaves out the same images,
// whatever has become of their files.
std::string skipped_path(const std::string& run);
void save_skipped(const std::string& run, const std::vector<SkippedImage>& skipped);
std::optional<std::vector<SkippedImage>> load_skipped(const std::string& run);  // none: no list yet

}  // namespace vitrum
