// Shards far away: a server on this machine that may lie.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <stdlib.h>

#include <atomic>
#include <map>
#include <set>

#include "tests/support/data_files.h"
#include "tests/support/http_server.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/sha.h"
#include "vitrum/data/epoch_order.h"
#include "vitrum/data/loader.h"
#include "vitrum/data/pack.h"
#include "vitrum/data/shard_place.h"
#include "vitrum/fetch/remote_place.h"

namespace vitrum::test {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kImages = 40;

// A folder as a web server shows it.
Reply file_reply(const std::string& folder, const Request& request) {
  const std::string path = folder + request.path;
  if (!fs::is_regular_file(path)) return {.status = 404};
  const std::string all = read_file(path);
  const std::string range = request.header("range");
  if (!range.starts_with("bytes=")) return {.body = all};
  const auto from = static_cast<size_t>(std::stoll(range.substr(6)));
  return {
      .status = 206,
      .body = all.substr(from),
      .headers = {fmt::format("Content-Range: bytes {}-{}/{}", from, all.size() - 1, all.size())}};
}

// What the server answers to the request for a shard; status 0: the file.
using Lie = std::function<Reply(const Request&)>;

class RemoteShards : public testing::Test {
 protected:
  void SetUp() override {
    setenv("VITRUM_CACHE", (dir_ / "cache").c_str(), 1);
    for (int i = 0; i < kImages; ++i)
      write_file(dir_ / fmt::format("photos/{}/{:02}.png", i % 2 ? "cat" : "dog", i),
                 encode_png(gradient(3, 8 + i, 9)));
    local_ = open_split("folder:" + (dir_ / "photos"));
    fs::create_directories(dir_ / "packed");
    pack_split(*local_, dir_ / "packed", "images", {.shards = 20});
  }
  void TearDown() override {
    for (const char* name : {"VITRUM_CACHE", "VITRUM_CACHE_SIZE", "AWS_ENDPOINT_URL",
                             "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"})
      unsetenv(name);
  }

  std::unique_ptr<HttpServer> serve(const Lie& lie = {}) const {
    const std::string folder = dir_ / "packed";
    return std::make_unique<HttpServer>([folder, lie](const Request& request) {
      const Reply special = lie ? lie(request) : Reply{.status = 0};
      return special.status ? special : file_reply(folder, request);
    });
  }
  static std::unique_ptr<Dataset> open(const std::string& url, bool streamed) {
    std::optional<ShardPlace> place =
        open_remote_shards(url, {.whole_bytes = streamed ? 0 : 1 << 30, .tries = 4, .pause = 0.01});
    if (!place) throw std::runtime_error("nothing there");
    return std::make_unique<ShardDataset>(place->name, std::move(place->index), place->files,
                                          DecodeOptions{});
  }
  // Reads the first image through a server that lies.
  void expect_read(const Lie& lie) {
    const auto server = serve(lie);
    const auto data = open(server->url(), false);
    EXPECT_EQ(data->read(0).pixels, local_->read(0).pixels);
  }

  TempDir dir_;
  std::unique_ptr<Dataset> local_;
};

// A lie that is told `times` times of shards.
Lie first(int times, const Reply& reply) {
  auto left = std::make_shared<std::atomic<int>>(times);
  return [=](const Request& r) {
    if (!r.path.ends_with("000000.tar") || (*left)-- <= 0) return Reply{.status = 0};
    return reply;
  };
}

TEST_F(RemoteShards, GiveTheImagesThatWerePacked) {
  const auto server = serve();
  const auto data = open(server->url(), false);
  ASSERT_EQ(data->size(), kImages);
  EXPECT_EQ(data->classes(), local_->classes());
  EXPECT_TRUE(data->groups().empty());
  for (int64_t i = 0; i < kImages; ++i) {
    EXPECT_EQ(data->label(i), local_->label(i));
    EXPECT_EQ(data->read(i).pixels, local_->read(i).pixels);
  }
  EXPECT_EQ(server->count("/images-000003.tar"), 1u);
  // Another process finds them in the cache.
  const auto again = open(server->url(), false);
  for (int64_t i = 0; i < kImages; ++i) again->read(i);
  EXPECT_EQ(server->count("/images-000003.tar"), 1u);
}

TEST_F(RemoteShards, AreASplitByTheSpelledName) {
  const auto server = serve();
  EXPECT_EQ(open_split("shards:" + server->url())->size(), kImages);
  EXPECT_FALSE(has_splits("shards:" + server->url() + "/"));
  EXPECT_THAT(input_error([&] { open_split("shards:" + server->url() + "/nothing"); }),
              HasSubstr("holds no shards"));
  fs::create_directories(dir_ / "packed/val");
  pack_split(*local_, dir_ / "packed/val", "val", {});
  fs::rename(dir_ / "packed/images-000000.tar", dir_ / "elsewhere");
  fs::create_directories(dir_ / "packed/train");
  pack_split(*local_, dir_ / "packed/train", "train", {});
  fs::remove(dir_ / "packed/shards.index");
  const DataSplits splits = open_data("shards:" + server->url());
  EXPECT_EQ(splits.train->size(), kImages);
  EXPECT_EQ(splits.test->name(0), server->url() + "/val/val-000000.tar/00000000_01.png");
}

std::vector<int64_t> epoch_of(const Dataset& data, int64_t epoch, int64_t first_batch = 0) {
  LoaderConfig config{.batch_size = 3, .shuffle = true, .seed = 7, .threads = 2};
  config.preprocess.height = config.preprocess.width = 8;
  Loader loader(data, config);
  loader.start(epoch, first_batch);
  std::vector<int64_t> order;
  for (Batch batch; loader.next(batch);)
    order.insert(order.end(), batch.indices.begin(), batch.indices.begin() + batch.count);
  return order;
}

// The order depends on seed and epoch only, each image comes once, and few shards are used at a
// time.
TEST_F(RemoteShards, StreamInWindows) {
  const auto server = serve();
  const auto data = open(server->url(), true);
  const std::vector<int32_t> groups = data->groups();
  ASSERT_EQ(groups.size(), static_cast<size_t>(kImages));
  EXPECT_TRUE(std::ranges::is_sorted(groups));
  const std::vector<int64_t> all = epoch_of(*data, 3);
  std::vector<int64_t> sorted = all;
  std::ranges::sort(sorted);
  for (int64_t i = 0; i < kImages; ++i) ASSERT_EQ(sorted[static_cast<size_t>(i)], i);
  for (size_t first = 0; first < all.size(); first += 2 * kShuffleWindow) {
    std::set<int32_t> used;
    for (size_t i = first; i < std::min(first + 2 * kShuffleWindow, all.size()); ++i)
      used.insert(groups[static_cast<size_t>(all[i])]);
    EXPECT_LE(used.size(), static_cast<size_t>(kShuffleWindow));
  }
  EXPECT_NE(epoch_of(*data, 4), all);
  // Entered in the middle, with a cache that has nothing: the rest of the same.
  fs::remove_all(dir_ / "cache");
  const auto later = open(server->url(), true);
  EXPECT_EQ(epoch_of(*later, 3, 5), std::vector(all.begin() + 15, all.end()));
  // Every image is the one that its number says.
  for (const int64_t i : {0, 1, 17, 39}) {
    const std::string name = data->name(i);
    const int64_t packed = std::stoll(name.substr(name.rfind('/') + 1, 8));
    EXPECT_EQ(data->read(i).pixels, local_->read(packed).pixels);
    EXPECT_EQ(data->label(i), local_->label(packed));
  }
}

// Two processes with two leaves each: together they read what one reads, and of the shards each
// fetches its own half, and one more at most where a shard is cut.
TEST_F(RemoteShards, AreDealtToTheLeavesOfAStep) {
  const auto server = serve();
  const auto epoch = [&](const Dataset& data, Turns turns, int repeat = 1) {
    LoaderConfig config{.batch_size = 3, .shuffle = true, .seed = 7, .repeat = repeat};
    config.turns = turns;
    config.preprocess.height = config.preprocess.width = 8;
    Loader loader(data, config);
    loader.start(2);
    std::map<int64_t, std::vector<int64_t>> batches;
    for (Batch batch; loader.next(batch);) batches[batch.number] = batch.indices;
    return batches;
  };
  const auto all = epoch(*open(server->url(), true), {.every = 4, .first = 0, .count = 4});
  std::multiset<int64_t> seen;
  for (const auto& [number, images] : all) seen.insert(images.begin(), images.end());
  for (int64_t i = 0; i < kImages; ++i) EXPECT_EQ(seen.count(i), 1u) << i;
  for (const int repeat : {1, 2, 4}) {
    SCOPED_TRACE(repeat);
    const auto whole =
        epoch(*open(server->url(), true), {.every = 4, .first = 0, .count = 4}, repeat);
    auto halves = epoch(*open(server->url(), true), {.every = 4, .first = 0, .count = 2}, repeat);
    halves.merge(epoch(*open(server->url(), true), {.every = 4, .first = 2, .count = 2}, repeat));
    EXPECT_EQ(halves, whole);
  }
  fs::remove_all(dir_ / "cache");
  const auto fresh = serve();
  epoch(*open(fresh->url(), true), {.every = 4, .first = 2, .count = 2});
  EXPECT_LE(fresh->requests().size(), 1 + 20u / 2 + 2);
}

TEST_F(RemoteShards, KeepNoMoreThanTheCacheHolds) {
  const auto server = serve();
  int64_t largest = 0;
  for (const auto& entry : fs::directory_iterator(dir_ / "packed"))
    if (entry.path().extension() == ".tar")
      largest = std::max(largest, static_cast<int64_t>(entry.file_size()));
  const int64_t limit = (2 * kShuffleWindow + 2) * largest;
  setenv("VITRUM_CACHE_SIZE", std::to_string(limit).c_str(), 1);
  const auto data = open(server->url(), true);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    EXPECT_EQ(epoch_of(*data, epoch).size(), static_cast<size_t>(kImages));
    int64_t total = 0;
    for (const auto& entry : fs::directory_iterator(dir_ / "cache/shards"))
      total += static_cast<int64_t>(entry.file_size());
    EXPECT_LE(total, limit);
  }
  setenv("VITRUM_CACHE_SIZE", "10K", 1);
  try {
    open(server->url(), true);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kExhausted);
    EXPECT_THAT(error.what(), HasSubstr("VITRUM_CACHE_SIZE"));
  }
  setenv("VITRUM_CACHE_SIZE", "many", 1);
  EXPECT_THROW(open(server->url(), true), Error);
}

TEST_F(RemoteShards, SurviveAServerInTrouble) {
  expect_read(first(2, {.status = 500}));
  fs::remove_all(dir_ / "cache");
  expect_read(first(2, {.status = 503, .body = "busy", .headers = {"Retry-After: 1"}}));
  fs::remove_all(dir_ / "cache");
  expect_read(first(1, {.status = 206, .body = "xx", .headers = {"Content-Range: bytes 7-8/9"}}));
  fs::remove_all(dir_ / "cache");
  expect_read(first(2, {.body = "short"}));
  fs::remove_all(dir_ / "cache");
  const std::string good = read_file(dir_ / "packed/images-000000.tar");
  expect_read(first(2, {.body = good, .cut_after = 700}));  // goes on from there
  fs::remove_all(dir_ / "cache");
  std::string changed = good;
  changed[600] ^= 1;
  expect_read(first(1, {.body = changed}));
}

TEST_F(RemoteShards, FollowARedirectOnlyToTheSameBytes) {
  const Reply elsewhere{.status = 302, .headers = {"Location: /images-000001.tar"}};
  expect_read(first(1, elsewhere));
  fs::remove_all(dir_ / "cache");
  fs::copy(dir_ / "packed/images-000000.tar", dir_ / "packed/copy");
  expect_read(first(100, {.status = 302, .headers = {"Location: /copy"}}));
}

// Named after all tries, as a failure of the run and not of an image; and nothing is kept.
TEST_F(RemoteShards, NameTheShardThatCannotBeHad) {
  std::string changed = read_file(dir_ / "packed/images-000000.tar");
  changed[600] ^= 1;
  const std::vector<std::pair<Reply, std::string>> lies = {
      {{.status = 500}, "answers 500"},
      {{.status = 404}, "404"},
      {{.body = "short"}, "expected"},
      {{.body = changed}, "checksum is wrong"},
      {{.status = 206, .body = "x", .headers = {"Content-Range: bytes 5-5/9"}}, "another part"},
      {{.status = 302, .headers = {"Location: http://example.com/x.tar"}}, "only https"},
      {{.status = 302, .headers = {"Location: /images-000000.tar"}}, "redirects"},
  };
  for (const auto& [reply, part] : lies) {
    SCOPED_TRACE(part);
    const auto server = serve(first(1000, reply));
    const auto data = open(server->url(), false);
    for (int n = 0; n < 2; ++n) {  // the second time at once
      try {
        data->read(0);
        FAIL();
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kFailed) << error.what();
        EXPECT_THAT(error.what(), HasSubstr(part));
        EXPECT_THAT(error.what(), testing::Not(HasSubstr("\n")));
      }
    }
    EXPECT_LE(server->count("/images-000000.tar"), 40u);
    EXPECT_EQ(data->read(1).pixels, local_->read(1).pixels);  // of another shard
    // A tolerant loader does not take it for a bad image.
    LoaderConfig config{.batch_size = 4, .tolerant = true};
    config.preprocess.height = config.preprocess.width = 8;
    Loader loader(*data, config);
    loader.start(0);
    Batch batch;
    EXPECT_THROW(loader.next(batch), Error);
  }
}

// Nothing that a pause would mend: asked once, however many tries there are.
TEST_F(RemoteShards, AreNotWaitedForWhereThereAreNone) {
  for (const int status : {401, 403, 404, 410}) {
    SCOPED_TRACE(status);
    const auto server = serve(first(1000, {.status = status}));
    std::optional<ShardPlace> place = open_remote_shards(server->url(), {.tries = 5, .pause = 600});
    const ShardDataset data(place->name, std::move(place->index), place->files, {});
    try {
      data.read(0);
      FAIL();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFailed);
      EXPECT_THAT(error.what(), HasSubstr("/images-000000.tar"));
      EXPECT_THAT(error.what(), HasSubstr(std::to_string(status)));
    }
    EXPECT_LE(server->count("/images-000000.tar"), 2u);  // ahead, and when it was asked for
  }
}

TEST_F(RemoteShards, AskAgainForADamagedIndex) {
  std::atomic<int> left = 2;
  const std::string index = read_file(dir_ / "packed/shards.index");
  const auto server = serve([&](const Request& r) {
    if (r.path != "/shards.index" || left-- <= 0) return Reply{.status = 0};
    return Reply{.body = index.substr(0, index.size() / 2)};
  });
  EXPECT_EQ(open(server->url(), false)->size(), kImages);
  // Nobody could tell whether a shard came over whole.
  const auto anybody = serve([&](const Request& r) {
    if (r.path != "/shards.index") return Reply{.status = 0};
    return Reply{.body = to_text({.classes = {}, .shards = {{.name = "a.tar", .size = 1024}}})};
  });
  EXPECT_THAT(input_error([&] { open(anybody->url(), false); }), HasSubstr("no digest of a.tar"));
  left = 100;
  EXPECT_THAT(input_error([&] { open(server->url(), false); }), HasSubstr("cut short"));
}

// ---- S3: the signature as Amazon documents it, computed anew ----

std::string raw(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string hmac(std::string key, const std::string& text) {
  key.resize(64);
  std::string inner = key, outer = key;
  for (char& c : inner) c ^= 0x36;
  for (char& c : outer) c ^= 0x5c;
  return raw(sha256(outer + raw(sha256(inner + text))));
}

std::string hex(const std::string& bytes) {
  std::string out;
  for (const char c : bytes) out += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return out;
}

bool is_signed(const Request& r, const std::string& id, const std::string& secret,
               const std::string& region) {
  const std::string given = r.header("authorization"), date = r.header("x-amz-date");
  const auto between = [&](const std::string& from, char to) {
    const size_t at = given.find(from);
    return at == given.npos ? ""
                            : given.substr(at + from.size(), given.find(to, at) - at - from.size());
  };
  const std::string scope = fmt::format("{}/{}/s3/aws4_request", date.substr(0, 8), region);
  if (between("Credential=", ',') != id + "/" + scope) return false;
  const std::string names = between("SignedHeaders=", ',');
  std::string headers;
  for (size_t at = 0; at < names.size();) {
    const size_t end = std::min(names.find(';', at), names.size());
    headers += names.substr(at, end - at) + ":" + r.header(names.substr(at, end - at)) + "\n";
    at = end + 1;
  }
  const std::string request = fmt::format("GET\n{}\n\n{}\n{}\n{}", r.path, headers, names,
                                          r.header("x-amz-content-sha256"));
  const std::string text =
      fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", date, scope, sha256(request));
  std::string key = "AWS4" + secret;
  for (const std::string& part :
       {date.substr(0, 8), region, std::string("s3"), std::string("aws4_request")})
    key = hmac(key, part);
  return given.ends_with("Signature=" + hex(hmac(key, text)));
}

TEST_F(RemoteShards, ComeFromABucket) {
  setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE", 1);
  setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", 1);
  setenv("AWS_REGION", "eu-west-1", 1);
  const std::string folder = dir_ / "packed";
  for (const std::string session : {"", "FQoGZXIvYXdzE+Example=="}) {
    SCOPED_TRACE(session);
    setenv("AWS_SESSION_TOKEN", session.c_str(), 1);
    fs::remove_all(dir_ / "cache");
    const HttpServer server([&](const Request& r) {
      constexpr std::string_view kPrefix = "/bucket/my%20data";
      const bool good =
          is_signed(r, "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "eu-west-1") &&
          r.header("x-amz-security-token") == session && r.path.starts_with(kPrefix);
      if (!good) return Reply{.status = 403};
      Request below = r;
      below.path = r.path.substr(kPrefix.size());
      return file_reply(folder, below);
    });
    setenv("AWS_ENDPOINT_URL", server.url().c_str(), 1);
    const auto data = open("s3://bucket/my data/", false);
    EXPECT_EQ(data->read(0).pixels, local_->read(0).pixels);
    EXPECT_EQ(data->read(7).pixels, local_->read(7).pixels);
    setenv("AWS_SECRET_ACCESS_KEY", "another", 1);
    EXPECT_FALSE(open_remote_shards("s3://bucket/my data", {.tries = 1}).has_value());
    setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", 1);
  }
  unsetenv("AWS_REGION");
  unsetenv("AWS_SECRET_ACCESS_KEY");
  EXPECT_THROW(open_remote_shards("s3://bucket/x"), Error);
  EXPECT_THROW(open_remote_shards("s3://"), Error);
  EXPECT_THROW(open_remote_shards("s3://BUCKET/x"), Error);
  EXPECT_THROW(open_remote_shards("http://example.com/x"), Error);
}

TEST(RemotePlace, IsOnAmazonsOwnServers) {
  for (const char* name : {"AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"}) unsetenv(name);
  setenv("AWS_REGION", "eu-north-1", 1);
  EXPECT_EQ(remote_place("s3://bucket/x/").url, "https://bucket.s3.eu-north-1.amazonaws.com/x");
  // Amazon's certificate is of one name before theirs.
  EXPECT_EQ(remote_place("s3://a.b/x").url, "https://s3.eu-north-1.amazonaws.com/a.b/x");
  unsetenv("AWS_REGION");
}

// The keys go to the bucket's own host and nowhere else.
TEST_F(RemoteShards, KeepTheirKeysFromOthers) {
  setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE", 1);
  setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
  const auto other = serve();
  const HttpServer server([&](const Request& r) {
    return Reply{.status = 302, .headers = {"Location: " + other->url() + r.path.substr(7)}};
  });
  setenv("AWS_ENDPOINT_URL", server.url().c_str(), 1);
  EXPECT_EQ(open("s3://bucket", false)->read(0).pixels, local_->read(0).pixels);
  for (const Request& r : server.requests()) EXPECT_NE(r.header("authorization"), "");
  for (const Request& r : other->requests()) EXPECT_EQ(r.header("authorization"), "");
}

TEST(EpochOrder, WithoutGroupsIsAsEver) {
  std::vector<int64_t> order(5), other(5);
  shuffle_epoch(order, {}, 1, 2);
  EXPECT_THAT(order, testing::UnorderedElementsAre(0, 1, 2, 3, 4));
  shuffle_epoch(other, {}, 1, 2);
  EXPECT_EQ(order, other);
  // Few groups are one window: any image may follow any other.
  const std::vector<int32_t> groups = {0, 0, 1, 5, 5};
  shuffle_epoch(other, groups, 1, 2);
  EXPECT_THAT(other, testing::UnorderedElementsAre(0, 1, 2, 3, 4));
}

// Windows of eight groups of ten images: in no two of them an image goes where the one at its place
// in the other goes.
TEST(EpochOrder, EachWindowHasChancesOfItsOwn) {
  constexpr int64_t kEach = 10, kWindow = kShuffleWindow * kEach, kWindows = 4;
  std::vector<int32_t> groups(static_cast<size_t>(kWindows * kWindow));
  for (size_t i = 0; i < groups.size(); ++i) groups[i] = static_cast<int32_t>(i / kEach);
  std::vector<int64_t> order(groups.size());
  shuffle_epoch(order, groups, 1, 2);
  std::set<std::vector<int64_t>> ways;
  for (auto from = order.begin(); from != order.end(); from += kWindow) {
    std::vector<int64_t> places_in_groups(from, from + kWindow);
    for (int64_t& place : places_in_groups) place %= kEach;
    ways.insert(places_in_groups);
  }
  EXPECT_EQ(ways.size(), static_cast<size_t>(kWindows));
}

}  // namespace
}  // namespace vitrum::test
