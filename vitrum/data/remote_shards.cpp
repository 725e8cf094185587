#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <tuple>

#include "vitrum/core/cache_directory.h"
#include "vitrum/core/checked.h"
#include "vitrum/core/error.h"
#include "vitrum/data/epoch_order.h"
#include "vitrum/data/shard_place.h"
#include "vitrum/fetch/file_cache.h"
#include "vitrum/fetch/remote_place.h"

namespace vitrum {
namespace {

constexpr int64_t kUsualCache = int64_t{16} << 30;

// VITRUM_CACHE_SIZE: bytes, or as 64G.
int64_t cache_size() {
  const char* text = std::getenv("VITRUM_CACHE_SIZE");
  if (!text || !*text) return kUsualCache;
  const std::string_view all(text);
  int64_t n = 0;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), n);
  const std::string_view unit = all.substr(static_cast<size_t>(end - all.data()));
  const size_t power = unit.empty() ? 0 : std::string_view("KMGT").find(unit[0]) + 1;
  if (error != std::errc() || n < 0 || unit.size() > 1 || (!unit.empty() && power == 0))
    fail_usage("VITRUM_CACHE_SIZE={}: expected bytes, or a number with K, M, G or T, as 64G", text);
  for (size_t i = 0; i < power; ++i) n = capped_mul(n, int64_t{1024});
  return n;
}

class RemoteShards final : public ShardFiles {
 public:
  RemoteShards(std::vector<CachedFile> files, FileCacheOptions options, bool streamed)
      : cache_(std::move(files), std::move(options)), streamed_(streamed) {}
  std::string path_of(int32_t shard) const override { return cache_.path_of(shard); }
  bool streamed() const override { return streamed_; }
  void will_read(const std::vector<int32_t>& shards) const override { cache_.will_read(shards); }

 private:
  mutable FileCache cache_;
  bool streamed_;
};

// Nothing where there is none: S3 says 403 of what does not exist to those who may not list.
std::optional<ShardIndex> fetch_index(const std::string& url, HttpClient& client,
                                      const RemoteShardOptions& options) {
  for (int n = 1;; ++n) {
    std::string text;
    const HttpAnswer answer = client.get_text(url, kMaxShardIndex, text);
    if (answer.status == 404 || answer.status == 403) return std::nullopt;
    try {
      if (answer.status != 200 || !answer.problem.empty()) throw status_error(answer, url);
      return parse_shard_index(text, url);
    } catch (const Error&) {  // damaged on the way, or for good
      if (n >= options.tries) throw;
    }
    pause_unless_stopped(client, options.pause * (1 << (n - 1)));
  }
}

}  // namespace

std::optional<ShardPlace> open_remote_shards(const std::string& place,
                                             const RemoteShardOptions& options) {
  const RemotePlace remote = remote_place(place);
  HttpClient client(remote.http);
  const std::string url = remote.url + "/" + kShardIndexName;
  std::optional<ShardIndex> index = fetch_index(url, client, options);
  if (!index) return std::nullopt;
  std::vector<CachedFile> files;
  int64_t total = 0, largest = 0;
  for (const ShardFile& shard : index->shards) {
    if (shard.sha256.empty())
      fail_input("{}: has no digest of {}; write the index with `vitrum data pack`", url,
                 shard.name);
    files.push_back({.url = remote.url + "/" + percent_encoded(shard.name),
                     .sha256 = shard.sha256,
                     .size = shard.size});
    total = capped_add(total, shard.size), largest = std::max(largest, shard.size);
  }
  const bool streamed = total > options.whole_bytes;
  if (streamed)
    std::ranges::stable_sort(index->samples, {},
                             [](const ShardSample& s) { return std::tuple(s.shard, s.at); });
  const std::string cache = cache_directory();
  if (cache.empty()) fail_input("{}: needs a cache; set VITRUM_CACHE to a folder for it", place);
  // Two windows of the shuffled order, and what is on its way.
  const int64_t needed = streamed ? capped_mul<int64_t>(2 * kShuffleWindow + 2, largest) : total;
  if (cache_size() < needed)
    fail_exhausted(
        "{}: a cache of {} bytes is too small for shards of up to {}; set "
        "VITRUM_CACHE_SIZE to {} or more",
        place, cache_size(), largest, needed);
  auto fetched = std::make_shared<RemoteShards>(std::move(files),
                                                FileCacheOptions{.folder = cache + "/shards",
                                                                 .most_bytes = cache_size(),
                                                                 .http = remote.http,
                                                                 .tries = options.tries,
                                                                 .pause = options.pause,
                                                                 .ahead = kShuffleWindow},
                                                streamed);
  return ShardPlace{place, std::move(*index), std::move(fetched)};
}

}  // namespace vitrum
