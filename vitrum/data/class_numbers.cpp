#include "vitrum/data/class_numbers.h"

#include <algorithm>
#include <charconv>

namespace vitrum {
namespace {

constexpr int kMaxLabel = 1'000'000;

}  // namespace

std::optional<int> parse_label(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size();
  return whole && value >= 0 && value <= kMaxLabel ? std::optional(value) : std::nullopt;
}

std::map<std::string, int> number_classes(const std::set<std::string>& labels) {
  std::map<std::string, int> numbered;
  const bool numbers =
      std::ranges::all_of(labels, [](const std::string& l) { return parse_label(l).has_value(); });
  int next = 0;
  for (const std::string& label : labels) numbered[label] = numbers ? *parse_label(label) : next++;
  return numbered;
}

std::vector<std::string> names_of(const std::map<std::string, int>& labels) {
  int most = -1;
  for (const auto& [name, label] : labels) most = std::max(most, label);
  std::vector<std::string> names;
  for (int i = 0; i <= most; ++i) names.push_back(std::to_string(i));
  for (const auto& [name, label] : labels) names[static_cast<size_t>(label)] = name;
  return names;
}

}  // namespace vitrum
