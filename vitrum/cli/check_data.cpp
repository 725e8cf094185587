#include "vitrum/cli/check_data.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "vitrum/core/error.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/progress.h"
#include "vitrum/core/utf8.h"
#include "vitrum/data/check.h"

namespace vitrum {
namespace {

struct Found {
  std::string split, image, label, error;
};
using Group = std::vector<Found>;  // the same pixels

struct Report {
  int64_t train = 0, test = 0;
  std::vector<Found> broken, empty;
  std::vector<Group> duplicates;  // within a split
  std::vector<Group> leaks;       // of both
  std::vector<std::string> classes;
  std::vector<int64_t> counts;  // training images that can be read, by class

  bool clean() const {
    return broken.empty() && empty.empty() && duplicates.empty() && leaks.empty();
  }
};

bool is_empty_file(const std::string& path) {
  std::error_code error;
  return std::filesystem::file_size(path, error) == 0 && !error;
}

class Checker {
 public:
  explicit Checker(const CommonOptions& common) : common_(common) {}

  void add(const Dataset& data, const std::string& split) {
    Progress progress("checking " + split, data.size(), common_.quiet);
    const std::vector<CheckedImage> checked =
        check_images(data, {.threads = static_cast<int>(common_.threads),
                            .digests = true,
                            .progress = [&](int64_t done) { progress.update(done); }});
    progress.clear();
    const bool train = split == "train";
    if (train) report_.classes = data.classes(), report_.counts.resize(data.classes().size());
    (train ? report_.train : report_.test) = data.size();
    for (size_t i = 0; i < checked.size(); ++i)
      add(data, static_cast<int64_t>(i), split, checked[i]);
  }

  Report finish() {
    for (auto& [digest, group] : groups_) {
      if (group.size() < 2) continue;
      const bool both = group.front().split != group.back().split;
      (both ? report_.leaks : report_.duplicates).push_back(std::move(group));
    }
    for (auto* list : {&report_.leaks, &report_.duplicates})
      std::sort(list->begin(), list->end(),
                [](const Group& a, const Group& b) { return a[0].image < b[0].image; });
    return std::move(report_);
  }

 private:
  void add(const Dataset& data, int64_t i, const std::string& split, const CheckedImage& image) {
    const auto label = static_cast<size_t>(data.label(i));
    Found found{split, data.name(i), data.classes()[label], image.error};
    if (!image.error.empty())
      return (is_empty_file(found.image) ? report_.empty : report_.broken).push_back(found);
    if (split == "train") ++report_.counts[label];
    groups_[image.digest].push_back(std::move(found));
  }

  const CommonOptions& common_;
  Report report_;
  std::map<std::string, Group> groups_;  // by digest
};

// ---- what is printed ----

void put(JsonWriter& json, const Found& found) {
  json.begin_object().field("split", found.split).field("image", found.image);
  json.field("class", found.label);
  if (!found.error.empty()) json.field("error", found.error);
  json.end_object();
}

std::string to_json(const Report& r) {
  JsonWriter json;
  json.begin_object().field("train", r.train).field("test", r.test).field("clean", r.clean());
  for (const auto& [key, list] : {std::pair("broken", &r.broken), std::pair("empty", &r.empty)}) {
    json.key(key).begin_array();
    for (const Found& found : *list) put(json, found);
    json.end_array();
  }
  for (const auto& [key, groups] :
       {std::pair("duplicates", &r.duplicates), std::pair("leaks", &r.leaks)}) {
    json.key(key).begin_array();
    for (const Group& group : *groups) {
      json.begin_array();
      for (const Found& found : group) put(json, found);
      json.end_array();
    }
    json.end_array();
  }
  json.key("class_counts").begin_object();
  for (size_t i = 0; i < r.classes.size(); ++i) json.field(r.classes[i], r.counts[i]);
  return json.end_object().end_object().str() + "\n";
}

constexpr size_t kShown = 20;

std::string more(size_t all) {
  return all > kShown ? fmt::format("  ... and {} more; --json lists all\n", all - kShown) : "";
}

std::string list(const char* title, const std::vector<Found>& all) {
  std::string out = fmt::format("{:<15}{}\n", title, all.size());
  for (size_t i = 0; i < std::min(all.size(), kShown); ++i)
    out += fmt::format("  {}\n", printable(all[i].error));
  return out + more(all.size());
}

std::string list(const char* title, const std::vector<Group>& groups) {
  std::string out = fmt::format("{:<15}{}\n", title, groups.size());
  for (size_t i = 0; i < std::min(groups.size(), kShown); ++i) {
    out += "  " + printable(groups[i][0].image);
    for (size_t k = 1; k < groups[i].size(); ++k) out += " = " + printable(groups[i][k].image);
    const bool same = std::all_of(groups[i].begin(), groups[i].end(),
                                  [&](const Found& f) { return f.label == groups[i][0].label; });
    out += same ? "\n" : "  (of different classes)\n";
  }
  return out + more(groups.size());
}

constexpr int64_t kUneven = 10;

std::string balance(const Report& r) {
  if (r.counts.empty()) return "";
  const auto [least, most] = std::minmax_element(r.counts.begin(), r.counts.end());
  const auto name = [&](auto at) {
    return printable(r.classes[static_cast<size_t>(at - r.counts.begin())]);
  };
  return fmt::format("classes        {} to {} training images ({}, {}){}\n", with_commas(*least),
                     with_commas(*most), name(least), name(most),
                     *most >= kUneven * *least ? ": very uneven" : "");
}

std::string to_text(const Report& r) {
  return fmt::format("images         {} train, {} test\n", with_commas(r.train),
                     with_commas(r.test)) +
         list("broken", r.broken) + list("empty files", r.empty) +
         list("duplicates", r.duplicates) + list("in two splits", r.leaks) + balance(r) +
         (r.clean() ? "no image is a problem\n" : "");
}

}  // namespace

int check_data(const DataSplits& splits, const CommonOptions& common) {
  Checker checker(common);
  checker.add(*splits.train, "train");
  if (splits.test) checker.add(*splits.test, "test");
  const Report report = checker.finish();
  print_out(common.json ? to_json(report) : to_text(report));
  return report.clean() ? 0 : static_cast<int>(ErrorKind::kFailed);
}

}  // namespace vitrum
