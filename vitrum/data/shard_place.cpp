#include "vitrum/data/shard_place.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>

#include "vitrum/core/cache_directory.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/random_file.h"
#include "vitrum/core/sha.h"
#include "vitrum/data/shard_scan.h"
#include "vitrum/fetch/remote_place.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

bool is_file(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored);
}

// The shards of a folder, in byte order.
std::vector<std::string> shard_names(const std::string& folder) {
  std::vector<std::string> names;
  std::string compressed;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with('.')) continue;
    if (name.ends_with(".tar")) names.push_back(name);
    if (name.ends_with(".tar.gz") || name.ends_with(".tgz") || name.ends_with(".tar.zst"))
      compressed = name;
  }
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    fail_input("{}: cannot be read: {}", folder, error.message());
  if (names.empty() && !compressed.empty())
    fail_input(
        "{}/{}: a compressed shard cannot be read in parts; images are compressed already, "
        "so unpack it to a plain .tar",
        folder, compressed);
  std::ranges::sort(names);
  return names;
}

std::vector<ShardFile> status_of(const std::string& folder, const std::vector<std::string>& names) {
  std::vector<ShardFile> shards;
  for (const std::string& name : names) {
    const RandomFile file(folder + "/" + name);
    shards.push_back({.name = name, .size = file.size(), .modified = file.modified()});
  }
  return shards;
}

// The index that came with the shards: what it does not fit is no small matter.
ShardIndex packed_index(const std::string& folder, const std::vector<ShardFile>& there) {
  const std::string path = folder + "/" + kShardIndexName;
  ShardIndex index = parse_shard_index(read_file(path, kMaxShardIndex), path);
  for (const ShardFile& shard : index.shards) {
    const auto found = std::ranges::find(there, shard.name, &ShardFile::name);
    if (found == there.end())
      fail_input("{}/{}: this shard of {} is missing; fetch it, or pack the data anew", folder,
                 shard.name, kShardIndexName);
    if (found->size != shard.size)
      fail_input("{}/{}: has {} bytes, and {} says {}; it is damaged or not complete", folder,
                 shard.name, found->size, kShardIndexName, shard.size);
  }
  for (const ShardFile& shard : there)
    if (std::ranges::find(index.shards, shard.name, &ShardFile::name) == index.shards.end())
      fail_input("{}/{}: {} has no such shard; remove one of the two", folder, shard.name,
                 kShardIndexName);
  return index;
}

// Shards of others: what an earlier scan found, as long as they are the same files.
ShardIndex scanned_index(const std::string& folder, const std::vector<std::string>& names,
                         const std::vector<ShardFile>& there) {
  const std::string cache = cache_directory();
  std::error_code ignored;
  const std::string path = fmt::format("{}/shards/{}.index", cache,
                                       sha256(fs::weakly_canonical(folder, ignored).string() +
                                              (names.size() == 1 ? "/" + names[0] : "")));
  try {
    if (is_file(path)) {
      ShardIndex kept = parse_shard_index(read_file(path, kMaxShardIndex), path);
      if (kept.shards == there) return kept;
    }
  } catch (const Error&) {  // damaged: made anew
  }
  ShardIndex index = scan_shards(folder, names);
  try {
    if (!cache.empty()) {
      ensure_directory(cache + "/shards");
      write_file_atomic(path, to_text(index));
    }
  } catch (const Error&) {  // a cache that cannot be written costs the next run a scan, no more
  }
  return index;
}

std::vector<std::string> listed_classes(const std::string& folder) {
  const std::string path = folder + "/classes.txt";
  std::vector<std::string> names;
  if (!is_file(path)) return names;
  const std::string text = read_file(path);
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    std::string_view line = rest.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!fits_a_line(line))
      fail_input("{}:{}: expected the name of a class on every line", path, names.size() + 1);
    names.emplace_back(line);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return names;
}

}  // namespace

std::optional<ShardPlace> open_shard_place(const std::string& place) {
  if (is_remote(place)) return open_remote_shards(place);
  const bool single = place.ends_with(".tar") && is_file(place);
  const fs::path path(place);
  const std::string parent = path.parent_path().string();
  const std::string folder = !single ? place : parent.empty() ? "." : parent;
  const std::vector<std::string> names =
      single ? std::vector{path.filename().string()} : shard_names(place);
  if (names.empty()) return std::nullopt;
  const std::vector<ShardFile> there = status_of(folder, names);
  const bool packed = !single && is_file(folder + "/" + kShardIndexName);
  ShardIndex index = packed ? packed_index(folder, there) : scanned_index(folder, names, there);
  auto files = std::make_shared<LocalShards>(folder, index.shards);
  return ShardPlace{folder, std::move(index), std::move(files), listed_classes(folder)};
}

}  // namespace vitrum
