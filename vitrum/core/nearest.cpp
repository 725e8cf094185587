#include "vitrum/core/nearest.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <utility>
#include <vector>

namespace vitrum {
namespace {

char lower(char c) { return static_cast<char>(std::tolower(static_cast<unsigned char>(c))); }

// Letters added, left out, replaced, or swapped with their neighbour.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before, last, row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    before = std::exchange(last, row);
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const bool same = lower(a[i]) == lower(b[j]);
      row[j + 1] = std::min({last[j] + !same, row[j] + 1, last[j + 1] + 1});
      if (i > 0 && j > 0 && lower(a[i]) == lower(b[j - 1]) && lower(a[i - 1]) == lower(b[j]))
        row[j + 1] = std::min(row[j + 1], before[j - 1] + 1);
    }
  }
  return row.back();
}

// How many edits still look like a typing error. An option's dashes are no letters of it.
size_t most_edits(std::string_view word) {
  const size_t start = std::min(word.find_first_not_of('-'), word.size());
  return 1 + (word.size() - start) / 4;
}

bool same_word(std::string_view a, std::string_view b) {
  const auto plain = [](char c) { return c == '_' ? '-' : lower(c); };
  return std::ranges::equal(a, b, {}, plain, plain);
}

}  // namespace

std::optional<std::string> nearest(std::string_view word, std::span<const std::string> candidates) {
  // Nobody mistypes a word of this length; a file may hold one, and distances are a product.
  constexpr size_t kLongest = 128;
  if (word.size() > kLongest) return std::nullopt;
  const std::string* best = nullptr;
  size_t best_distance = most_edits(word) + 1;
  for (const std::string& candidate : candidates) {
    if (candidate.size() > kLongest) continue;
    const size_t distance = edit_distance(word, candidate);
    if (distance < best_distance && distance < std::max(word.size(), candidate.size())) {
      best = &candidate, best_distance = distance;
    }
  }
  return best ? std::optional(*best) : std::nullopt;
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates) {
  const auto match = nearest(word, candidates);
  return match ? "; did you mean '" + *match + "'?" : "";
}

std::string did_you_mean(std::string_view word, std::span<const std::string> candidates,
                         std::span<const OtherName> others) {
  for (const OtherName& name : others)
    if (same_word(name.other, word) && std::ranges::find(candidates, name.ours) != candidates.end())
      return "; did you mean '" + std::string(name.ours) + "'?";
  return did_you_mean(word, candidates);
}

}  // namespace vitrum
