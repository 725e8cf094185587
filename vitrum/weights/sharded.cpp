#include "vitrum/weights/sharded.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/text_limits.h"
#include "vitrum/weights/open_tensors.h"

namespace vitrum {
namespace {

constexpr size_t kMaxDifferencesShown = 12;  // the rest is counted

struct Entry {
  std::string tensor, shard;
};

// Keeps the entries of "weight_map" and passes over everything else.
class IndexReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Entry> entries;
  std::string problem;

  bool start_object(size_t) override { return enter(true); }
  bool start_array(size_t) override { return enter(false); }
  bool end_object() override { return leave(); }
  bool end_array() override { return leave(); }

  bool key(string_t& name) override {
    if (depth_ == 1) {
      key_is_map_ = name == "weight_map";
      if (key_is_map_ && std::exchange(map_seen_, true)) return stop("it has \"weight_map\" twice");
    } else if (in_map()) {
      if (entries.size() == ShardedFile::kMaxTensors)
        return stop(fmt::format("it has more than {} tensors", ShardedFile::kMaxTensors));
      entries.push_back({name, ""});
    }
    return true;
  }
  bool string(string_t& text) override {
    if (!in_map()) return scalar();
    entries.back().shard = text;
    return true;
  }

  bool null() override { return scalar(); }
  bool boolean(bool) override { return scalar(); }
  bool number_integer(number_integer_t) override { return scalar(); }
  bool number_unsigned(number_unsigned_t) override { return scalar(); }
  bool number_float(number_float_t, const string_t&) override { return scalar(); }
  bool binary(binary_t&) override { return scalar(); }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    return stop(fmt::format("it is not valid JSON at byte {}", position));
  }
  bool found() const { return map_seen_; }

 private:
  bool in_map() const { return depth_ == 2 && key_is_map_; }
  bool enter(bool object) {
    if (in_map() || (depth_ == 1 && key_is_map_ && !object)) return scalar();
    ++depth_;
    return true;
  }
  bool leave() {
    --depth_;
    return true;
  }
  bool scalar() {
    if (in_map())
      return stop(
          fmt::format("the file of tensor {} is no string", shown_name(entries.back().tensor)));
    if (depth_ == 1 && key_is_map_) return stop("\"weight_map\" is no object");
    return true;
  }
  bool stop(std::string what) {
    problem = std::move(what);
    return false;
  }

  size_t depth_ = 0;
  bool key_is_map_ = false, map_seen_ = false;
};

std::vector<Entry> read_index(const std::string& path) {
  const std::string text = read_file(path, ShardedFile::kMaxIndex);
  if (const std::string problem = json_problem(text, {.values = 1 << 20}); !problem.empty())
    fail_input("'{}' is no index of a sharded checkpoint: it {}", path, problem);
  IndexReader reader;
  if (!nlohmann::json::sax_parse(text, &reader))
    fail_input("'{}' is no index of a sharded checkpoint: {}", path, reader.problem);
  if (!reader.found())
    fail_input("'{}' is no index of a sharded checkpoint: it has no \"weight_map\"", path);
  return std::move(reader.entries);
}

// Nothing outside the index's own directory is ever opened.
void require_plain_name(const std::string& name, const std::string& index) {
  const bool plain = !name.empty() && name != "." && name != ".." && name.size() <= 255 &&
                     std::ranges::none_of(name, [](char c) {
                       return c == '/' || c == '\\' || static_cast<unsigned char>(c) < ' ';
                     });
  if (!plain)
    fail_input("'{}' names the file {}; a shard is a plain file name beside the index", index,
               shown_name(name));
}

[[noreturn]] void fail_differing(const std::string& path, std::vector<std::string> wrong) {
  const size_t count = wrong.size();
  if (count > kMaxDifferencesShown) {
    wrong.resize(kMaxDifferencesShown);
    wrong.push_back(fmt::format("and {} more", count - kMaxDifferencesShown));
  }
  std::string list;
  for (const std::string& one : wrong) list += (list.empty() ? "" : "; ") + one;
  fail_input("'{}' and its files differ: {}", path, list);
}

}  // namespace

std::vector<std::string> shards_beside(const std::string& path) {
  std::set<std::string> names;
  try {
    for (const Entry& entry : read_index(path))
      require_plain_name(entry.shard, path), names.insert(entry.shard);
  } catch (const Error&) {
    return {};
  }
  std::vector<std::string> files;
  for (const std::string& name : names)
    files.push_back((std::filesystem::path(path).parent_path() / name).string());
  return files;
}

ShardedFile::ShardedFile(const std::string& index_path) : path_(index_path) {
  const std::filesystem::path directory = std::filesystem::path(path_).parent_path();
  std::map<std::string, size_t> numbers;
  std::vector<std::string> wrong;
  std::map<std::string, std::string> homes;
  for (Entry& entry : read_index(path_)) {
    if (const auto [home, first] = homes.try_emplace(entry.tensor, entry.shard); !first)
      fail_input("'{}' has the tensor {} twice: in {} and in {}", path_, shown_name(entry.tensor),
                 shown_name(home->second), shown_name(entry.shard));
    const auto [shard, fresh] = numbers.try_emplace(entry.shard, shards_.size());
    if (fresh) {
      require_plain_name(entry.shard, path_);
      if (shards_.size() == kMaxShards)
        fail_input("'{}' names more than {} files", path_, kMaxShards);
      shards_.push_back(open_tensor_file((directory / entry.shard).string()));
    }
    const TensorInfo* tensor = shards_[shard->second]->find(entry.tensor);
    if (!tensor) {
      wrong.push_back(fmt::format("{} is not in {}", shown_name(entry.tensor), entry.shard));
      continue;
    }
    tensors_.push_back({entry.tensor, tensor->dtype, tensor->shape, places_.size(), tensor->bytes});
    places_.push_back({shard->second, tensor});
  }
  index_names();
  for (const auto& [name, number] : numbers)
    for (const TensorInfo& tensor : shards_[number]->tensors()) {
      const TensorInfo* mapped = find(tensor.name);
      if (!mapped)
        wrong.push_back(fmt::format("{} of {} is not in the index", shown_name(tensor.name), name));
      else if (places_[mapped->offset].tensor != &tensor)
        wrong.push_back(fmt::format("{} is in {} and in {}, the index names {}",
                                    shown_name(tensor.name), homes[tensor.name], name,
                                    homes[tensor.name]));
    }
  if (!wrong.empty()) fail_differing(path_, std::move(wrong));
}

std::span<const std::byte> ShardedFile::bytes(const TensorInfo& tensor) const {
  const Place& place = places_[tensor.offset];
  return shards_[place.shard]->bytes(*place.tensor);
}

void ShardedFile::check_intact() const {
  for (const auto& shard : shards_) shard->check_intact();
}

void ShardedFile::release(const TensorInfo& tensor) const {
  const Place& place = places_[tensor.offset];
  shards_[place.shard]->release(*place.tensor);
}

}  // namespace vitrum
