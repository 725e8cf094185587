#include "vitrum/train/skipped.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/json_text.h"

namespace vitrum {

std::string skipped_path(const std::string& run) { return run + "/skipped.jsonl"; }

void save_skipped(const std::string& run, const std::vector<SkippedImage>& skipped) {
  std::string text;
  for (const SkippedImage& s : skipped) {
    JsonWriter json;
    json.begin_object().field("image", s.image).field("error", s.error).end_object();
    text += json.str() + "\n";
  }
  write_file_atomic(skipped_path(run), text);
}

std::optional<std::vector<SkippedImage>> load_skipped(const std::string& run) {
  const std::string path = skipped_path(run);
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  std::vector<SkippedImage> all;
  std::istringstream lines(read_file(path));
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("image") || !json["image"].is_string())
      fail_input("'{}' is not a list of skipped images: {}", path, line);
    all.push_back({json["image"], json.value("error", "")});
  }
  return all;
}

}  // namespace vitrum
