#include "vitrum/report/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "vitrum/core/error.h"
#include "vitrum/core/sha.h"

namespace vitrum {
namespace {

// Evenly spread over the images; "" where one cannot be read.
std::string pixels_of_some(const std::vector<SampleResult>& samples, const Dataset& test) {
  constexpr size_t kImages = 8;
  const size_t count = std::min(kImages, samples.size());
  std::string all;
  try {
    for (size_t i = 0; i < count; ++i) {
      const int64_t index = samples[i * samples.size() / count].index;
      if (index >= test.size()) return "";
      const Image image = test.read(index);
      all += sha256({reinterpret_cast<const char*>(image.pixels.data()), image.pixels.size()});
    }
  } catch (const Error&) {
    return "";
  }
  return all;
}

std::string data_in_words(const Recipe& recipe) {
  return fmt::format("{}\n{}\n{}\n{}", recipe.data, recipe.holdout, recipe.subset,
                     recipe.holdout > 0 || recipe.subset > 0 ? recipe.seed : 0);
}

using ClassKey = std::pair<std::string, int>;  // name, how many of that name came before

std::vector<ClassKey> keys_of(const ReportRun& run) {
  std::map<std::string, int> seen;
  std::vector<ClassKey> keys;
  for (const std::string& name : run.classes) keys.emplace_back(name, seen[name]++);
  return keys;
}

std::vector<bool> classes_with_images(const ReportRun& run) {
  std::vector<bool> occurs(run.classes.size());
  for (const ConfusionCell& c : confusion_of(run)) occurs[static_cast<size_t>(c.truth)] = true;
  return occurs;
}

}  // namespace

std::string evaluated_images(const ReportRun& run, const Recipe& recipe, const Dataset* test) {
  std::string all;
  for (const SampleResult& s : run.samples)
    all += fmt::format("{}\n{}\n", s.index, run.classes[static_cast<size_t>(s.label)]);
  const std::string pixels = test ? pixels_of_some(run.samples, *test) : "";
  return sha256(all + (pixels.empty() ? data_in_words(recipe) : pixels));
}

Comparison compare_runs(std::span<const ReportRun> runs) {
  Comparison found;
  std::map<std::string, size_t> group_of;
  std::map<ClassKey, size_t> row_of;
  for (size_t r = 0; r < runs.size(); ++r) {
    const size_t group = group_of.emplace(runs[r].evaluated, found.groups.size()).first->second;
    if (group == found.groups.size()) found.groups.emplace_back();
    found.groups[group].push_back(static_cast<int64_t>(r));
    const std::vector<ClassKey> keys = keys_of(runs[r]);
    const std::vector<bool> occurs = classes_with_images(runs[r]);
    for (size_t c = 0; c < keys.size(); ++c) {
      if (!occurs[c]) continue;
      const size_t row = row_of.emplace(keys[c], found.classes.size()).first->second;
      if (row == found.classes.size()) found.classes.emplace_back(runs.size(), -1);
      found.classes[row][r] = static_cast<int64_t>(c);
    }
  }
  std::erase_if(found.classes, [](const std::vector<int64_t>& at) {
    return std::ranges::count_if(at, [](int64_t c) { return c >= 0; }) < 2;
  });
  return found;
}

}  // namespace vitrum
