#include <nlohmann/json.hpp>

#include "vitrum/core/text_limits.h"
#include "vitrum/data/shard_scan.h"

namespace vitrum {

std::optional<std::string> label_of_json(const std::string& text) {
  if (!json_problem(text).empty()) return std::nullopt;
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  for (const char* key : {"label", "cls", "class", "class_name"}) {
    const auto found = json.find(key);
    if (found == json.end()) continue;
    if (found->is_number_unsigned()) return std::to_string(found->get<uint64_t>());
    if (found->is_string()) return found->get<std::string>();
  }
  return std::nullopt;
}

}  // namespace vitrum
