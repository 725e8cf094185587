#include "vitrum/data/shards.h"

#include <algorithm>
#include <cctype>

#include "vitrum/core/error.h"
#include "vitrum/core/join.h"
#include "vitrum/core/nearest.h"
#include "vitrum/core/shown.h"
#include "vitrum/data/class_numbers.h"
#include "vitrum/data/shard_place.h"
#include "vitrum/data/split_names.h"

namespace vitrum {
namespace {

// Whether "imagenet-train-0001.tar" has the word "train".
bool has_word(const std::string& name, std::string_view word) {
  const auto is_letter = [](char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; };
  for (size_t at = name.find(word); at != name.npos; at = name.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !is_letter(name[at - 1])) && (end == name.size() || !is_letter(name[end])))
      return true;
  }
  return false;
}

bool any_shard_has(const ShardPlace& place, std::string_view word) {
  return std::ranges::any_of(place.index.shards,
                             [&](const ShardFile& s) { return has_word(s.name, word); });
}

// Only the samples of shards with this word.
void keep_shards(ShardPlace& place, std::string_view word) {
  std::erase_if(place.index.samples, [&](const ShardSample& s) {
    return !has_word(place.index.shards[static_cast<size_t>(s.shard)].name, word);
  });
}

std::optional<ShardPlace> find_split(const std::string& place, const std::string& split) {
  std::vector<std::string> listed;
  std::optional<ShardPlace> root = open_shard_place(place);
  if (!root) {
    for (const std::string_view name : split_names(split))
      if (auto found = open_shard_place(place + "/" + std::string(name))) return found;
    return std::nullopt;
  }
  for (const std::string_view name : split_names(split))
    if (any_shard_has(*root, name)) return keep_shards(*root, name), root;
  return std::nullopt;
}

// The names of the classes that the numbers of a place's own index have.
std::vector<std::string> class_names(const ShardPlace& place) {
  const std::vector<std::string>& own = place.index.classes;
  const std::vector<std::string>& listed = place.listed_classes;
  const auto is_listed = [&](const std::string& name) {
    return std::ranges::find(listed, name) != listed.end();
  };
  if (listed.empty() || std::ranges::all_of(own, is_listed)) return own;
  std::vector<std::string> names;
  for (const std::string& name : own) {
    const auto number = parse_label(name);
    if (!number || static_cast<size_t>(*number) >= listed.size())
      fail_input("{}/classes.txt: lists {} classes, and '{}' is none of them", place.name,
                 listed.size(), shown(name));
    names.push_back(listed[static_cast<size_t>(*number)]);
  }
  return names;
}

// As numbered for training: classes.txt has the order, where it is there.
std::vector<std::string> all_classes(const ShardPlace& train) {
  return train.listed_classes.empty() ? class_names(train)
                                      : (class_names(train), train.listed_classes);
}

std::unique_ptr<Dataset> dataset_of(ShardPlace place, const std::vector<std::string>& classes,
                                    const DecodeOptions& options) {
  ShardIndex& index = place.index;
  if (index.samples.empty()) fail_input("{}: its shards hold no image", place.name);
  std::vector<int32_t> numbers;  // of the place's classes
  const std::vector<std::string> names = class_names(place);
  for (const std::string& name : names) {
    const auto found = std::ranges::find(classes, name);
    numbers.push_back(found == classes.end() ? -1 : static_cast<int32_t>(found - classes.begin()));
  }
  for (ShardSample& s : index.samples) {
    const std::string path =
        place.name + "/" + index.shards[static_cast<size_t>(s.shard)].name + "/" + s.name;
    if (s.label < 0)
      fail_input(
          "{}: has no label; expected one beside it, in a .cls, .json or .txt of the same "
          "name",
          path);
    const std::string& name = names[static_cast<size_t>(s.label)];
    s.label = numbers[static_cast<size_t>(s.label)];
    if (s.label < 0)
      fail_input("{}: no such class as '{}' among the training data{}", path, shown(name),
                 did_you_mean(name, classes));
  }
  index.classes = classes;
  return std::make_unique<ShardDataset>(place.name, std::move(index), place.files, options);
}

}  // namespace

std::vector<std::string> splits_of_shards(const std::string& place) {
  std::vector<std::string> found;
  const std::optional<ShardPlace> root = open_shard_place(place);
  for (const std::string_view name : kAllSplitNames)
    if (root ? any_shard_has(*root, name)
             : open_shard_place(place + "/" + std::string(name)).has_value())
      found.emplace_back(name);
  return found;
}

std::unique_ptr<Dataset> open_shards(const std::string& place, const std::string& split,
                                     bool whole_allowed, const DecodeOptions& options) {
  std::optional<ShardPlace> wanted = find_split(place, split);
  if (wanted) {
    std::optional<ShardPlace> train;
    if (split != "train") train = find_split(place, "train");
    const std::vector<std::string> classes = all_classes(train ? *train : *wanted);
    return dataset_of(std::move(*wanted), classes, options);
  }
  const std::vector<std::string> there = splits_of_shards(place);
  if (whole_allowed && there.empty())
    if (std::optional<ShardPlace> whole = open_shard_place(place)) {
      const std::vector<std::string> classes = all_classes(*whole);
      return dataset_of(std::move(*whole), classes, options);
    }
  if (there.empty() && !open_shard_place(place))
    fail_input("{}: holds no shards (.tar), nor do train/ or val/ in it", place);
  fail_input(
      "{}: has no shards of '{}'{}; expected folders train/ and val/ (or test/) of shards, or "
      "shards with these words in their names; or train with --set holdout=0.2, a part held "
      "back to test on",
      place, split_names(split).front(), there.empty() ? "" : ", only of " + join(there, ", "));
}

std::unique_ptr<Dataset> open_unlabelled_shards(const std::string& place,
                                                const DecodeOptions& options) {
  std::optional<ShardPlace> found = open_shard_place(place);
  if (!found) found = find_split(place, "train");
  if (!found || found->index.samples.empty())
    fail_input("{}: holds no shards (.tar) of images", place);
  for (ShardSample& s : found->index.samples) s.label = 0;
  found->index.classes.clear();
  return std::make_unique<ShardDataset>(found->name, std::move(found->index), found->files,
                                        options);
}

}  // namespace vitrum
