#include "vitrum/data/dataset.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <optional>

#include "vitrum/core/error.h"
#include "vitrum/core/join.h"
#include "vitrum/core/nearest.h"
#include "vitrum/data/cifar.h"
#include "vitrum/data/data_place.h"
#include "vitrum/data/folder.h"
#include "vitrum/data/idx.h"
#include "vitrum/data/shards.h"
#include "vitrum/data/shuffle.h"
#include "vitrum/data/split_names.h"
#include "vitrum/fetch/remote_place.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDebianFashion = "/usr/share/datasets/fashion-mnist";
const std::array<std::string, 7> kKinds = {"fashion-mnist", "mnist", "cifar10", "cifar100",
                                           "folder",        "csv",   "shards"};
const std::array<std::string, 3> kSplits = {"train", "test", "val"};

constexpr const char* kOrHoldOut = "; or train with --set holdout=0.2, a part held back to test on";

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

struct Spec {
  std::string kind, path;
};

// What to do where a public data set is not there; "" for data of one's own.
std::string how_to_get(const Spec& spec) {
  if (spec.kind == "folder" || spec.kind == "csv" || spec.kind == "shards") return "";
  const std::string to =
      spec.path.empty() || spec.path == spec.kind ? "" : fmt::format(" --to {}", spec.path);
  const std::string download = fmt::format("`vitrum data download {}{}` fetches it", spec.kind, to);
  if (spec.kind != "fashion-mnist") return "; " + download;
  return fmt::format("; `apt install dataset-fashion-mnist` has it as fashion-mnist, or {}",
                     download);
}

Spec parse_spec(const std::string& spec) {
  const size_t colon = spec.find(':');
  Spec parsed{spec.substr(0, colon), colon == std::string::npos ? "" : spec.substr(colon + 1)};
  if (std::find(kKinds.begin(), kKinds.end(), parsed.kind) == kKinds.end()) {
    const std::string hint = is_folder(spec) ? fmt::format("; did you mean 'folder:{}'?", spec)
                                             : did_you_mean(parsed.kind, kKinds);
    fail_input("unknown data '{}'{}", spec,
               hint.empty() ? "; expected fashion-mnist, mnist:DIR, cifar10:DIR, cifar100:DIR, "
                              "folder:DIR, csv:FILE or shards:DIR"
                            : hint);
  }
  if (parsed.path.empty() && parsed.kind == "fashion-mnist") {
    if (!is_folder(kDebianFashion)) {
      fail_input("fashion-mnist: {} is not there{} to fashion-mnist:fashion-mnist", kDebianFashion,
                 how_to_get(parsed));
    }
    parsed.path = kDebianFashion;
  }
  if (parsed.path.empty()) {
    fail_usage("data '{}' needs a place: {}:{}{}", spec, parsed.kind,
               parsed.kind == "csv" ? "FILE" : "DIR", how_to_get(parsed));
  }
  std::error_code ignored;
  if (parsed.kind == "shards" && is_remote(parsed.path)) return parsed;
  if (!fs::exists(parsed.path, ignored))
    fail_input("{}: no such file or folder (data '{}'){}", parsed.path, spec, how_to_get(parsed));
  return parsed;
}

std::vector<std::string> idx_classes(const std::string& kind) {
  if (kind == "mnist") return {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
  return {"T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
          "Sandal",      "Shirt",   "Sneaker",  "Bag",   "Ankle boot"};
}

std::optional<std::string> find_split(const std::string& dir, const std::string& split) {
  for (const std::string_view name : split_names(split)) {
    const fs::path path = fs::path(dir) / name;
    if (is_folder(path)) return path.string();
  }
  return std::nullopt;
}

std::vector<std::string> splits_of_folder(const std::string& dir) {
  std::vector<std::string> found;
  for (const std::string_view name : kAllSplitNames)
    if (is_folder(fs::path(dir) / name)) found.emplace_back(name);
  return found;
}

[[noreturn]] void fail_without_splits(const std::string& path, const std::string& split) {
  fail_input(
      "{}: has no splits, so no '{}'; leave out --split to take all of its images, or --split "
      "holdout for those that a run with holdout = X did not train on",
      path, split);
}

std::unique_ptr<Dataset> open_folder_split(const std::string& dir, const std::string& split,
                                           bool whole_allowed, const DecodeOptions& options) {
  const auto train = find_split(dir, "train"), wanted = find_split(dir, split);
  if (wanted) return open_folder(*wanted, class_folders(train.value_or(*wanted)), options);
  const std::vector<std::string> there = splits_of_folder(dir);
  if (whole_allowed && there.empty()) return open_folder(dir, class_folders(dir), options);
  fail_input("{}: has no {}/{}; expected train/ and val/ (or test/), each with a folder a class{}",
             dir, split_names(split).front(),
             there.empty() ? "" : ", only " + join(there, "/, ") + "/", kOrHoldOut);
}

std::unique_ptr<Dataset> open_csv_split(const std::string& path, const std::string& split,
                                        bool whole_allowed, const DecodeOptions& options) {
  if (csv_has_splits(path)) return open_csv(path, split == "train" ? "train" : "test", options);
  if (whole_allowed) return open_csv(path, "", options);
  fail_input("{}: has no third column; training needs file,class,split with train and test lines{}",
             path, kOrHoldOut);
}

std::unique_ptr<Dataset> open(const Spec& spec, const std::string& split, bool whole_allowed,
                              const DecodeOptions& options = {}) {
  const std::string train_or_test = split == "train" ? "train" : "test";
  const std::string remedy = how_to_get(spec);
  if (spec.kind == "cifar10") return open_cifar(spec.path, train_or_test, 10, remedy);
  if (spec.kind == "cifar100") return open_cifar(spec.path, train_or_test, 100, remedy);
  if (spec.kind == "folder") return open_folder_split(spec.path, split, whole_allowed, options);
  if (spec.kind == "csv") return open_csv_split(spec.path, split, whole_allowed, options);
  if (spec.kind == "shards") return open_shards(spec.path, split, whole_allowed, options);
  return open_idx(spec.path, train_or_test, idx_classes(spec.kind), remedy);
}

std::vector<std::string> splits_of(const Spec& spec) {
  if (spec.kind == "folder") return splits_of_folder(spec.path);
  if (spec.kind == "shards") return splits_of_shards(spec.path);
  if (spec.kind == "csv" && !csv_has_splits(spec.path)) return {};
  return {"train", "test"};
}

bool has_test(const Spec& spec) {
  return std::ranges::any_of(splits_of(spec), [](const auto& split) { return split != "train"; });
}

std::vector<int64_t> shuffled(int64_t n, PhiloxStream random) {
  std::vector<int64_t> order(static_cast<size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  shuffle(order, random);
  return order;
}

class Subset final : public Dataset {
 public:
  Subset(const Dataset& all, std::vector<int64_t> indices, std::unique_ptr<Dataset> owned = nullptr)
      : all_(all), indices_(std::move(indices)), owned_(std::move(owned)) {}

  int64_t size() const override { return static_cast<int64_t>(indices_.size()); }
  ImageSize image_size() const override { return all_.image_size(); }
  const std::vector<std::string>& classes() const override { return all_.classes(); }
  int label(int64_t index) const override { return all_.label(at(index)); }
  std::string name(int64_t index) const override { return all_.name(at(index)); }
  void read_into(int64_t index, Image& image) const override { all_.read_into(at(index), image); }
  void read_part(int64_t index, const ChooseWindow& choose, Image& image) const override {
    all_.read_part(at(index), choose, image);
  }
  std::vector<uint8_t> file(int64_t index) const override { return all_.file(at(index)); }
  std::vector<int32_t> groups() const override {
    const std::vector<int32_t> all = all_.groups();
    std::vector<int32_t> own;
    for (const int64_t i : indices_)
      if (!all.empty()) own.push_back(all[static_cast<size_t>(i)]);
    return own;
  }
  void will_read(std::span<const int64_t> order) const override {
    std::vector<int64_t> all;
    for (const int64_t i : order) all.push_back(at(i));
    all_.will_read(all);
  }

 private:
  int64_t at(int64_t index) const { return indices_[static_cast<size_t>(index)]; }

  const Dataset& all_;
  std::vector<int64_t> indices_;
  std::unique_ptr<Dataset> owned_;
};

}  // namespace

DataSplits open_data(const std::string& spec, bool test_needed, const DecodeOptions& options) {
  const Spec parsed = parse_spec(spec);
  DataSplits splits{open(parsed, "train", !test_needed, options), nullptr};
  if (!test_needed && !has_test(parsed)) return splits;
  splits.test = open(parsed, "", false, options);
  if (splits.train->image_size() != splits.test->image_size()) {
    fail_input("{}: training and test images differ in size", spec);
  }
  return splits;
}

std::unique_ptr<Dataset> open_split(const std::string& spec, const std::string& split,
                                    const DecodeOptions& options) {
  if (!split.empty() && std::find(kSplits.begin(), kSplits.end(), split) == kSplits.end()) {
    fail_usage("unknown split '{}'; expected train, test or val, and of `vitrum eval` holdout",
               split);
  }
  const Spec parsed = parse_spec(spec);
  if (!split.empty() && splits_of(parsed).empty()) fail_without_splits(parsed.path, split);
  return open(parsed, split, true, options);
}

std::string place_of_data(const std::string& spec) {
  const size_t colon = spec.find(':');
  if (colon != spec.npos && colon + 1 < spec.size()) return spec.substr(colon + 1);
  return spec.substr(0, colon) == "fashion-mnist" ? kDebianFashion : "";
}

std::span<const std::string> data_kinds() { return kKinds; }

bool has_splits(const std::string& spec) { return !splits_of(parse_spec(spec)).empty(); }

std::vector<std::string> distinct_splits(const std::string& spec) {
  const std::vector<std::string> there = splits_of(parse_spec(spec));
  const auto meant_by = [&](std::string_view split) -> std::string {
    for (const std::string_view name : split_names(split))
      if (std::ranges::find(there, name) != there.end()) return std::string(name);
    return "";
  };
  std::vector<std::string> distinct;
  const std::string val = meant_by("val"), test = meant_by("test");
  if (!meant_by("train").empty()) distinct.emplace_back("train");
  if (!val.empty()) distinct.emplace_back(val == "test" ? "test" : "val");
  if (test != val) distinct.emplace_back("test");
  return distinct;
}

std::vector<uint8_t> Dataset::file(int64_t index) const {
  fail_input("{}: is not in a file of its own; expected folder:, csv: or shards: data",
             name(index));
}

std::unique_ptr<Dataset> select_images(const Dataset& dataset, std::vector<int64_t> indices) {
  return std::make_unique<Subset>(dataset, std::move(indices));
}

std::unique_ptr<Dataset> take_part(std::unique_ptr<Dataset> dataset, int64_t part, int64_t parts) {
  const int64_t n = dataset->size();
  const auto begin_of = [&](int64_t p) {  // p * n / parts, which may be too large a product
    return n / parts * p + n % parts * p / parts;
  };
  const int64_t begin = begin_of(part - 1), end = begin_of(part);
  if (begin == end) fail_usage("part {} of {} is empty: there are only {} images", part, parts, n);
  std::vector<int64_t> indices(static_cast<size_t>(end - begin));
  std::iota(indices.begin(), indices.end(), begin);
  const Dataset& all = *dataset;
  return std::make_unique<Subset>(all, std::move(indices), std::move(dataset));
}

std::unique_ptr<Dataset> take_images(const Dataset& dataset, int64_t count, uint64_t seed) {
  std::vector<int64_t> some = shuffled(dataset.size(), PhiloxStream(seed, kHoldoutStream, 1));
  some.resize(static_cast<size_t>(std::min(count, dataset.size())));
  std::sort(some.begin(), some.end());
  return select_images(dataset, std::move(some));
}

std::pair<std::unique_ptr<Dataset>, std::unique_ptr<Dataset>> split_holdout(const Dataset& dataset,
                                                                            double fraction,
                                                                            uint64_t seed) {
  const int64_t n = dataset.size();
  const int64_t held =
      std::isfinite(fraction) ? std::llround(fraction * static_cast<double>(n)) : 0;
  if (held < 1 || held >= n) {
    fail_usage("holdout {} of {} images leaves one side empty; expected a fraction between 0 and 1",
               fraction, n);
  }
  const std::vector<int64_t> order = shuffled(n, PhiloxStream(seed, kHoldoutStream, 0));
  std::vector<int64_t> out(order.begin(), order.begin() + held),
      kept(order.begin() + held, order.end());
  std::sort(out.begin(), out.end());
  std::sort(kept.begin(), kept.end());
  return {std::make_unique<Subset>(dataset, std::move(kept)),
          std::make_unique<Subset>(dataset, std::move(out))};
}

}  // namespace vitrum
