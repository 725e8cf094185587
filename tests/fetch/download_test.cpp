// Downloads from a scripted server on this machine.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>

#include "tests/support/data_files.h"
#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"
#include "tests/support/process.h"
#include "vitrum/core/files.h"
#include "vitrum/core/sha.h"
#include "vitrum/fetch/hub.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using namespace test;

constexpr DownloadOptions kQuick{.tries = 3, .pause = 0.01, .quiet = true};
const std::string kConfig = "{\"architecture\": \"vit_tiny_patch16_224\"}\n";
const std::string kWeights = [] {
  std::string bytes;
  for (uint32_t i = 0; i < 100'000; ++i) bytes += static_cast<char>(i * i >> 3);
  return bytes;
}();

// Entries of /api/models/ID/tree/REVISION as the hub sends them.
std::string plain_entry(const std::string& path, const std::string& body) {
  return fmt::format(R"({{"type":"file","oid":"{}","size":{},"path":"{}"}})",
                     digest(DigestKind::kGitBlob, body), body.size(), path);
}
std::string lfs_entry(const std::string& path, const std::string& body) {
  return fmt::format(
      R"({{"type":"file","oid":"{}","size":{},"lfs":{{"oid":"{}","size":{},"pointerSize":134}},"path":"{}"}})",
      digest(DigestKind::kGitBlob, "pointer"), body.size(), digest(DigestKind::kSha256, body),
      body.size(), path);
}
std::string listing(const std::vector<std::string>& entries) {
  return fmt::format("[{}]", fmt::join(entries, ","));
}
std::string usual_listing() {
  return listing({plain_entry("config.json", kConfig), lfs_entry("model.safetensors", kWeights),
                  plain_entry("README.md", "x"), lfs_entry("pytorch_model.bin", "x"),
                  lfs_entry("flax_model.msgpack", "x"), lfs_entry("tf_model.h5", "x"),
                  R"({"type":"directory","oid":"a","size":0,"path":"onnx"})"});
}

const std::string kTree = "/api/models/owner/name/tree/main";
const std::string kResolve = "/owner/name/resolve/main/";

// A hub with one model; `special` may answer instead, and leaves the rest with status 0.
Reply hub(const Request& r, const std::function<Reply(const Request&)>& special = {}) {
  if (special)
    if (Reply reply = special(r); reply.status != 0) return reply;
  if (r.path == kTree) return {.body = usual_listing()};
  if (r.path == kResolve + "config.json") return {.body = kConfig};
  if (r.path != kResolve + "model.safetensors") return {.status = 404};
  const std::string range = r.header("range");
  if (range.empty()) return {.body = kWeights};
  const auto from = std::stoul(range.substr(std::string("bytes=").size()));
  return {.status = 206,
          .body = kWeights.substr(from),
          .headers = {fmt::format("Content-Range: bytes {}-{}/{}", from, kWeights.size() - 1,
                                  kWeights.size())}};
}

struct Case {
  explicit Case(std::function<Reply(const Request&)> special = {})
      : server([special](const Request& r) { return hub(r, special); }) {}

  Downloaded run(HttpOptions http = {}, int64_t max_bytes = 1'000'000, bool replace = false) {
    http.timeout = 1;
    HttpClient client(http);
    return download_model(client, {.id = "owner/name", .endpoint = server.url(), .cache = cache},
                          to(), max_bytes, kQuick, replace);
  }
  std::string to() const { return dir / "model"; }
  std::string kept(const std::string& name) const { return read_file(to() + "/" + name); }
  // Only the complete files, or nothing at all.
  std::vector<std::string> names() const {
    std::vector<std::string> all;
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(to(), ignored))
      all.push_back(entry.path().filename().string());
    std::ranges::sort(all);
    return all;
  }

  test::TempDir dir;
  std::string cache;
  HttpServer server;
};

Reply only(const Request& r, const std::string& path, Reply reply) {
  return r.path == path ? reply : Reply{.status = 0};
}
const std::string kWeightsPath = kResolve + "model.safetensors";

TEST(Download, TakesWhatAModelNeeds) {
  Case c;
  const Downloaded d = c.run();
  EXPECT_FALSE(d.stopped);
  EXPECT_THAT(d.files, ElementsAre("config.json", "model.safetensors"));
  EXPECT_EQ(d.bytes, static_cast<int64_t>(kConfig.size() + kWeights.size()));
  EXPECT_THAT(c.names(), ElementsAre("config.json", "model.safetensors"));
  EXPECT_EQ(c.kept("model.safetensors"), kWeights);
  EXPECT_THAT(c.server.requests()[0].header("user-agent"), StartsWith("vitrum/"));

  c.run();  // all there: only the list is asked for
  EXPECT_EQ(c.server.requests().size(), 4u);
  write_file_atomic(c.to() + "/config.json", std::string(kConfig.size(), 'x'));
  c.run({}, 1'000'000, /*replace=*/true);
  EXPECT_EQ(c.kept("config.json"), kConfig);
}

TEST(Download, ShardsAndOtherFormats) {
  const auto files_of = [](const std::vector<std::string>& entries) {
    Case c([&](const Request& r) -> Reply {
      if (r.path == kTree) return {.body = listing(entries)};
      return {.body = r.path.ends_with("/config.json") ? kConfig : "w"};
    });
    return c.run().files;
  };
  const std::string config = plain_entry("config.json", kConfig);
  EXPECT_THAT(files_of({config, plain_entry("model.safetensors.index.json", "w"),
                        lfs_entry("model-00001-of-00002.safetensors", "w"),
                        lfs_entry("model-00002-of-00002.safetensors", "w"),
                        lfs_entry("pytorch_model.bin", "w")}),
              ElementsAre("config.json", "model.safetensors.index.json",
                          "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"));
  EXPECT_THAT(files_of({config, plain_entry("preprocessor_config.json", "w"),
                        lfs_entry("pytorch_model.bin", "w")}),
              ElementsAre("config.json", "preprocessor_config.json", "pytorch_model.bin"));
  EXPECT_THAT(files_of({config, plain_entry("README.md", "w"), plain_entry("tokenizer.json", "w"),
                        plain_entry("spiece.model", "w"), lfs_entry("model.safetensors", "w")}),
              ElementsAre("config.json", "tokenizer.json", "spiece.model", "model.safetensors"));
  const std::string open_clip =
      plain_entry("open_clip_config.json", "w");  // without another config
  EXPECT_THAT(
      files_of({open_clip, plain_entry("tokenizer.json", "w"),
                lfs_entry("open_clip_pytorch_model.bin", "w"),
                lfs_entry("open_clip_model.safetensors", "w")}),
      ElementsAre("open_clip_config.json", "tokenizer.json", "open_clip_model.safetensors"));
  EXPECT_ERROR(files_of({open_clip, lfs_entry("model.safetensors", "w")}), ErrorKind::kInput,
               "no open_clip_model.safetensors");
  EXPECT_ERROR(files_of({config, lfs_entry("tf_model.h5", "w")}), ErrorKind::kInput,
               "neither model.safetensors nor pytorch_model.bin");
  EXPECT_ERROR(files_of({lfs_entry("model.safetensors", "w")}), ErrorKind::kInput,
               "no config.json");
}

TEST(Download, FollowsPagesOfTheListing) {
  std::string base;
  Case c([&](const Request& r) -> Reply {
    if (r.path == kTree)
      return {.body = listing({plain_entry("config.json", kConfig)}),
              .headers = {"Link: <" + base + "/page2>; rel=\"next\""}};
    if (r.path == "/page2") return {.body = listing({lfs_entry("model.safetensors", kWeights)})};
    return {.status = 0};
  });
  base = c.server.url();
  EXPECT_EQ(c.run().files.size(), 2u);
}

TEST(Download, TokenGoesToTheEndpointOnly) {
  const HttpServer other([](const Request&) -> Reply { return {.body = kWeights}; }, "127.0.0.2");
  Case c([&](const Request& r) {
    if (r.path == kResolve + "config.json")  // a renamed model: the same server
      return Reply{.status = 307, .body = "moved", .headers = {"Location: /renamed"}};
    if (r.path == "/renamed") return Reply{.body = kConfig};
    return only(r, kWeightsPath,
                {.status = 302, .headers = {"Location: " + other.url() + "/blob"}});
  });
  c.run({.token = "hf_secret", .token_url = c.server.url() + "/"});
  EXPECT_EQ(c.kept("model.safetensors"), kWeights);
  for (const Request& r : c.server.requests())
    EXPECT_EQ(r.header("authorization"), "Bearer hf_secret") << r.path;
  ASSERT_EQ(other.requests().size(), 1u);
  EXPECT_EQ(other.requests()[0].header("authorization"), "");
  EXPECT_ERROR(HttpClient({.token = "a\r\nX: b"}), ErrorKind::kUsage, "HF_TOKEN");
}

TEST(Download, RedirectsHaveLimits) {
  Case loop([](const Request& r) {
    return only(r, kWeightsPath, {.status = 302, .headers = {"Location: " + kWeightsPath}});
  });
  EXPECT_ERROR(loop.run(), ErrorKind::kFailed, "more than 5 redirects");
  EXPECT_EQ(loop.server.count(kWeightsPath), 6u);
  Case plain([](const Request& r) {
    return only(r, kWeightsPath, {.status = 302, .headers = {"Location: http://example.com/x"}});
  });
  EXPECT_ERROR(plain.run(), ErrorKind::kUsage, "only https is allowed");
  Case file([](const Request& r) {
    return only(r, kWeightsPath, {.status = 302, .headers = {"Location: file:///etc/passwd"}});
  });
  EXPECT_ERROR(file.run(), ErrorKind::kUsage, "only https is allowed");
}

TEST(Download, OnlyHttpsButToThisMachine) {
  HttpClient client({});
  std::string text;
  for (const char* url : {"http://huggingface.co/x", "http://127.0.0.1.example.com/x",
                          "ftp://127.0.0.1/x", "file:///etc/passwd", "http://10.0.0.1/"})
    EXPECT_ERROR(client.get_text(url, 10, text), ErrorKind::kUsage, "only https");
  EXPECT_ERROR(client.get_text("not a url", 10, text), ErrorKind::kUsage, "not a URL");
}

TEST(Download, GoesOnAfterACut) {
  int tries = 0;
  Case c([&](const Request& r) -> Reply {
    if (r.path != kWeightsPath || tries++ > 0) return {.status = 0};
    return {.body = kWeights, .cut_after = 30'000};
  });
  c.run();
  EXPECT_EQ(c.kept("model.safetensors"), kWeights);
  EXPECT_EQ(c.server.requests().back().header("range"), "bytes=30000-");
  EXPECT_THAT(c.names(), ElementsAre("config.json", "model.safetensors"));
}

TEST(Download, GoesOnInAnotherProcess) {
  bool cut = true;
  Case c([&](const Request& r) {
    return cut ? only(r, kWeightsPath, {.body = kWeights, .cut_after = 100}) : Reply{.status = 0};
  });
  EXPECT_ERROR(c.run(), ErrorKind::kFailed, "the same command goes on");
  ASSERT_EQ(c.names().size(), 2u);
  EXPECT_THAT(c.names()[1], testing::MatchesRegex("model.safetensors.[0-9a-f]+.part"));
  cut = false;
  c.run();
  EXPECT_EQ(c.server.requests().back().header("range"), "bytes=100-");
  EXPECT_EQ(c.kept("model.safetensors"), kWeights);
}

TEST(Download, AServerThatIgnoresRangesIsFine) {
  int tries = 0;
  Case c([&](const Request& r) -> Reply {
    if (r.path != kWeightsPath) return {.status = 0};
    return {.body = kWeights, .cut_after = tries++ == 0 ? 30'000 : -1};
  });
  c.run();
  EXPECT_EQ(tries, 2);
  EXPECT_EQ(c.kept("model.safetensors"), kWeights);
}

TEST(Download, ADamagedPartIsFetchedAnew) {
  Case c;
  ensure_directory(c.to());
  const std::string part = fmt::format("{}/model.safetensors.{}.part", c.to(),
                                       digest(DigestKind::kSha256, kWeights).substr(0, 12));
  for (const size_t size : {size_t{5000}, kWeights.size(), kWeights.size() + 1}) {
    fs::remove(c.to() + "/model.safetensors");
    write_file_atomic(part, std::string(size, 'x'));
    c.run();
    EXPECT_EQ(c.kept("model.safetensors"), kWeights) << size;
  }
  Case refuses([](const Request& r) {
    return r.header("range").empty() ? Reply{.status = 0} : Reply{.status = 416};
  });
  ensure_directory(refuses.to());
  fs::copy(c.to() + "/config.json",
           refuses.to() + "/model.safetensors" + part.substr(part.find(".safetensors.") + 12));
  refuses.run();
  EXPECT_EQ(refuses.kept("model.safetensors"), kWeights);
}

TEST(Download, AWrongPartIsRefused) {
  Case c([](const Request& r) {
    if (r.header("range").empty()) return only(r, kWeightsPath, {.body = kWeights, .cut_after = 9});
    return Reply{.status = 206, .body = "y", .headers = {"Content-Range: bytes 5-99999/100000"}};
  });
  EXPECT_ERROR(c.run(), ErrorKind::kInput, "another part than asked for");
}

TEST(Download, WrongContentsAreNotKept) {
  Case c([](const Request& r) {
    return only(r, kWeightsPath, {.body = std::string(kWeights.size(), 'x')});
  });
  EXPECT_ERROR(c.run(), ErrorKind::kInput, "the checksum is wrong");
  EXPECT_THAT(c.names(), ElementsAre("config.json"));
  Case small([](const Request& r) {
    return only(r, kResolve + "config.json", {.body = std::string(kConfig.size(), 'x')});
  });
  EXPECT_ERROR(small.run(), ErrorKind::kInput, "config.json: the checksum is wrong");
}

TEST(Download, WrongLengthsAreRefused) {
  const auto with = [](Reply reply) {
    Case c([&](const Request& r) { return only(r, kWeightsPath, reply); });
    c.run();
  };
  EXPECT_ERROR(with({.body = kWeights + "x"}), ErrorKind::kInput, "100001 bytes, expected 100000");
  EXPECT_ERROR(with({.body = "x", .announced = int64_t{1} << 60}), ErrorKind::kInput,
               "1152921504606846976 bytes");
  EXPECT_ERROR(with({.body = kWeights + "x", .announced = -2}), ErrorKind::kInput,
               "more than the 100000 bytes expected");
  EXPECT_ERROR(with({.body = "short", .announced = -2}), ErrorKind::kFailed, "5 of 100000 bytes");
}

TEST(Download, SizeLimits) {
  Case c;
  EXPECT_ERROR(c.run({}, 1000), ErrorKind::kInput, "--max-size");
  EXPECT_EQ(c.server.requests().size(), 1u);
  Case large([](const Request& r) -> Reply {
    if (r.path != kTree) return {.status = 0};
    return {.body = listing(
                {plain_entry("config.json", kConfig),
                 R"({"type":"file","path":"model.safetensors","oid":"x","size":1,"lfs":{"oid":")" +
                     std::string(64, 'a') + R"(","size":1000000000000000}})"})};
  });
  EXPECT_ERROR(large.run({}, int64_t{1} << 60), ErrorKind::kExhausted, "the disk has");
}

// 8,192 times 2^50 bytes is 0 in 63 bits.
TEST(Download, SizesDoNotWrapRound) {
  std::vector<std::string> entries = {plain_entry("config.json", kConfig),
                                      plain_entry("model.safetensors.index.json", "w")};
  for (int i = 0; i < 8192; ++i)
    entries.push_back(fmt::format(
        R"({{"type":"file","path":"model-{:05}-of-08192.safetensors","lfs":{{"oid":"{}","size":{}}}}})",
        i, std::string(64, 'a'), int64_t{1} << 50));
  Case c([&](const Request& r) { return only(r, kTree, {.body = listing(entries)}); });
  EXPECT_ERROR(c.run(), ErrorKind::kInput, "--max-size");
  EXPECT_EQ(c.server.requests().size(), 1u);
  EXPECT_FALSE(fs::exists(c.to()));
}

TEST(Download, ADrippingServerIsLeft) {
  Case c([](const Request& r) {
    return only(r, kWeightsPath, {.body = kWeights, .piece = 40, .pause = 0.02});
  });
  HttpClient client({.timeout = 1});
  const auto fetch = [&] {
    download_model(client, {.id = "owner/name", .endpoint = c.server.url()}, c.to(), 1 << 20,
                   {.tries = 1, .quiet = true});
  };
  EXPECT_ERROR(fetch(), ErrorKind::kFailed, "less than 10000 bytes a second came for 1 seconds");
  EXPECT_FALSE(fs::exists(c.to() + "/model.safetensors"));
}

TEST(Download, ServersThatFailAreAskedAgain) {
  int tries = 0;
  Case c([&](const Request& r) -> Reply {
    return r.path == kTree && tries++ < 2 ? Reply{.status = 503} : Reply{.status = 0};
  });
  c.run();
  EXPECT_EQ(c.server.count(kTree), 3u);
  Case down([](const Request&) -> Reply { return {.status = 500}; });
  EXPECT_ERROR(down.run(), ErrorKind::kFailed, "the server answers 500");
  EXPECT_EQ(down.server.requests().size(), 3u);
}

TEST(Download, StatusesAreExplained) {
  const auto with = [](Reply reply, const std::string& path = kTree) {
    Case c([&](const Request& r) { return only(r, path, reply); });
    c.run();
  };
  EXPECT_ERROR(with({.status = 404, .headers = {"X-Error-Code: RepoNotFound"}}), ErrorKind::kInput,
               "there is no model owner/name");
  EXPECT_ERROR(with({.status = 404, .headers = {"X-Error-Code: RevisionNotFound"}}),
               ErrorKind::kInput, "no revision 'main'");
  EXPECT_ERROR(with({.status = 401}), ErrorKind::kInput, "HF_TOKEN does not open it");
  EXPECT_ERROR(with({.status = 403, .headers = {"X-Error-Code: GatedRepo"}}), ErrorKind::kInput,
               "owner/name is gated: accept its terms");
  EXPECT_ERROR(with({.status = 429, .headers = {"Retry-After: 37"}}), ErrorKind::kFailed,
               "try again in 37 seconds");
  EXPECT_ERROR(with({.status = 404}, kWeightsPath), ErrorKind::kInput, "no such file (404)");
  EXPECT_ERROR(with({.status = 404, .body = std::string(1 << 20, 'x')}, kWeightsPath),
               ErrorKind::kInput, "no such file (404)");
}

TEST(Download, AServerThatSaysNothing) {
  Case c([](const Request& r) { return only(r, kTree, {.body = "[]", .wait = 1.5}); });
  HttpClient client({.timeout = 1});
  EXPECT_ERROR(download_model(client, {.id = "owner/name", .endpoint = c.server.url()}, c.to(),
                              1 << 20, {.tries = 1}),
               ErrorKind::kFailed, "cannot download from 127.0.0.1");
  EXPECT_ERROR(download_model(client, {.id = "owner/name", .endpoint = "http://127.0.0.1:1"},
                              c.to(), 1 << 20, {.tries = 1}),
               ErrorKind::kFailed, "127.0.0.1");
}

TEST(Download, HostileListings) {
  const auto with = [](const std::string& body) {
    Case c([&](const Request& r) { return only(r, kTree, {.body = body}); });
    try {
      c.run();
    } catch (...) {
      EXPECT_EQ(c.server.requests().size(), 1u) << body.substr(0, 100);
      EXPECT_FALSE(fs::exists(c.to()));
      throw;
    }
  };
  for (const char* name : {"../config.json", "/etc/passwd", "a/../../b", "..", "a\\\\b",
                           "a\\u0000b", "", "model-\\n.safetensors"})
    EXPECT_ERROR(with(listing({plain_entry(name, "x")})), ErrorKind::kInput,
                 "is not a name to write to");
  const std::string zeros(40, '0');
  for (const std::string& entry :
       {std::string("1"), std::string(R"({"path":1,"type":"file"})"),
        std::string(R"({"path":"config.json"})"),
        R"({"type":"file","path":"config.json","oid":")" + zeros + R"(","size":-1})",
        R"({"type":"file","path":"config.json","oid":")" + zeros + R"(","size":1e30})",
        R"({"type":"file","path":"config.json","oid":")" + zeros + R"(/../","size":1})",
        std::string(R"({"type":"file","path":"config.json","oid":5,"size":1})"),
        R"({"type":"file","path":"m","oid":")" + zeros + R"(","size":1,"lfs":{}})"})
    EXPECT_ERROR(with("[" + entry + "]"), ErrorKind::kInput, "cannot be used");
  for (const std::string& text : {std::string("<html>"), std::string("{}"), std::string("null"),
                                  std::string(), std::string("[\"\xff\"]")})
    EXPECT_ERROR(with(text), ErrorKind::kInput, "not a JSON array");
  const std::string deep = std::string(500'000, '[') + std::string(500'000, ']');
  EXPECT_ERROR(with(deep), ErrorKind::kInput, "nests deeper");
  EXPECT_ERROR(with(R"([{"type":"file","path":"a","lfs":)" + deep + "}]"), ErrorKind::kInput,
               "nests deeper");
  EXPECT_ERROR(with(std::string("[]\0junk", 7)), ErrorKind::kInput, "has a NUL");
  EXPECT_ERROR(with(std::string(5 << 20, ' ')), ErrorKind::kInput, "longer than");
}

TEST(Download, NamesAreChecked) {
  for (const char* id : {"google/vit-base-patch16-224", "gpt2", "a/b.c_d-e"})
    EXPECT_NO_THROW(check_hub_id(id));
  for (const char* id : {"", "/", "a/", "/b", "a/b/c", "../x", "a/..", "a/b?x", "a b", ".a/b",
                         "a/--b", "https://huggingface.co/a/b"})
    EXPECT_ERROR(check_hub_id(id), ErrorKind::kUsage, "owner/name");
  Case c;
  HttpClient client({});
  for (const char* revision : {"", "../main", "a b", "x?y=1"})
    EXPECT_ERROR(download_model(client, {.id = "a/b", .revision = revision}, c.to(), 1, kQuick),
                 ErrorKind::kUsage, "not a revision");
  EXPECT_ERROR(
      download_model(client,
                     {.id = "owner/name", .revision = "refs/pr/1", .endpoint = c.server.url()},
                     c.to(), 1, kQuick),
      ErrorKind::kInput, "owner/name");
  EXPECT_EQ(c.server.requests()[0].path, "/api/models/owner/name/tree/refs%2Fpr%2F1");
}

TEST(Download, TakesFilesFromTheHuggingFaceCache) {
  Case c;
  c.cache = c.dir / "hf";
  const std::string blobs = c.cache + "/hub/models--owner--name/blobs/";
  ensure_directory(blobs);
  write_file_atomic(blobs + digest(DigestKind::kSha256, kWeights), kWeights);
  write_file_atomic(blobs + digest(DigestKind::kGitBlob, kConfig), "damaged");
  c.run();
  EXPECT_EQ(c.server.count(kWeightsPath), 0u);
  EXPECT_EQ(c.kept("model.safetensors"), kWeights);
  EXPECT_EQ(c.kept("config.json"), kConfig);
}

// A directory of another model has files of the same names: those stay, unless all is to be
// replaced.
TEST(Download, LeavesAnotherModelAlone) {
  for (const auto& [name, bytes] :
       {std::pair<std::string, std::string>{"config.json", "{\"mine\": 1}"},
        {"config.json", std::string(kConfig.size(), ' ')},
        {"model.safetensors", "my weights"}}) {
    Case c;
    fs::create_directories(c.to());
    write_file_atomic(c.to() + "/" + name, bytes);
    EXPECT_ERROR(c.run(), ErrorKind::kUsage,
                 name + "' is there already and is not that of owner/name");
    EXPECT_EQ(c.names(), std::vector<std::string>{name});
    EXPECT_EQ(c.kept(name), bytes);
    setenv("HF_ENDPOINT", c.server.url().c_str(), 1);
    setenv("HF_HOME", (c.dir / "hf").c_str(), 1);
    EXPECT_EQ(run_vitrum({"download", "owner/name", "--to", c.to(), "--force"}, c.dir / "a").code,
              0);
    unsetenv("HF_ENDPOINT"), unsetenv("HF_HOME");
    EXPECT_EQ(c.kept("config.json"), kConfig);
    EXPECT_EQ(c.kept("model.safetensors"), kWeights);
  }
}

TEST(Download, FromTheCommandLine) {
  Case c([](const Request& r) -> Reply {
    if (r.path == "/api/models/owner/slow/tree/main") return {.body = usual_listing()};
    if (r.path == "/owner/slow/resolve/main/config.json") return {.body = kConfig};
    if (r.path == "/owner/slow/resolve/main/model.safetensors")
      return {.body = kWeights, .announced = 100'000, .cut_after = 7};
    return {.status = 0};
  });
  setenv("HF_ENDPOINT", c.server.url().c_str(), 1);
  setenv("HF_HOME", (c.dir / "hf").c_str(), 1);
  const Finished done =
      run_vitrum({"download", "owner/name", "--to", c.to(), "--json"}, c.dir / "a");
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, HasSubstr(R"("files":["config.json","model.safetensors"],"bytes":1000)"));
  const Finished text = run_vitrum({"download", "owner/name", "--to", c.to()}, c.dir / "a");
  EXPECT_EQ(text.out, c.to() + "\n");
  const Finished missing = run_vitrum({"download", "owner/none", "--to", c.to()}, c.dir / "a");
  EXPECT_EQ(missing.code, 3);
  EXPECT_THAT(missing.err, HasSubstr("there is no model owner/none"));
  EXPECT_EQ(run_vitrum({"download", "a b"}, c.dir / "a").code, 2);

  // Ctrl-C between two tries keeps what was received.
  Process slow(vitrum_command({"download", "owner/slow", "--to", c.dir / "slow"}), c.dir / "o",
               c.dir / "e");
  EXPECT_TRUE(
      eventually([&] { return c.server.count("/owner/slow/resolve/main/model.safetensors") > 0; }));
  slow.signal(SIGINT);
  EXPECT_EQ(slow.wait(), 130);
  EXPECT_THAT(read_file(c.dir / "e"), HasSubstr("stopped; the same command goes on"));
  unsetenv("HF_ENDPOINT"), unsetenv("HF_HOME");
}

// Another revision over this one, broken off: no config with the weights of the other.
TEST(Download, WhatIsReplacedIsNeverMixed) {
  bool broken = true;
  Case c([&](const Request& r) {
    return r.path == kWeightsPath && broken ? Reply{.status = 404} : Reply{.status = 0};
  });
  fs::create_directories(c.to());
  write_file_atomic(c.to() + "/config.json", "{\"mine\": 1}");
  write_file_atomic(c.to() + "/model.safetensors", "mine");
  EXPECT_ERROR(c.run({}, 1'000'000, true), ErrorKind::kInput, "404");
  EXPECT_THAT(c.names(), ElementsAre("model.safetensors"));
  broken = false;
  c.run({}, 1'000'000, true);
  EXPECT_EQ(c.kept("config.json"), kConfig);
  EXPECT_EQ(c.kept("model.safetensors"), kWeights);
}

// Two at once would write to the same part.
TEST(Download, OneProcessAFolder) {
  Case c;
  fs::create_directories(c.to());
  {
    const DownloadLock other(c.to());
    EXPECT_ERROR(c.run(), ErrorKind::kInput, "another process writes to");
    EXPECT_THAT(c.names(), ElementsAre());
  }
  c.run();
  EXPECT_EQ(c.kept("model.safetensors"), kWeights);
}

// Every file that a download may have left makes its folder one to go on in, whatever came first.
TEST(Download, KnowsItsOwnFolder) {
  Case c;
  setenv("HF_ENDPOINT", c.server.url().c_str(), 1);
  setenv("HF_HOME", (c.dir / "hf").c_str(), 1);
  fs::create_directories(c.to());
  write_file_atomic(c.to() + "/model.safetensors", kWeights);
  const Finished done = run_vitrum({"download", "owner/name", "--to", c.to()}, c.dir / "a");
  unsetenv("HF_ENDPOINT"), unsetenv("HF_HOME");
  EXPECT_EQ(done.code, 0) << done.err;
}

// Killed at any moment, and started again: nothing is taken for complete that is not, and nothing
// is fetched twice.
TEST(Download, KilledMidwayGoesOn) {
  Case c([](const Request& r) {
    Reply reply = hub(r);
    if (r.path == kWeightsPath) reply.piece = 4000, reply.pause = 0.01;
    return reply;
  });
  setenv("HF_ENDPOINT", c.server.url().c_str(), 1);
  setenv("HF_HOME", (c.dir / "hf").c_str(), 1);
  const auto received = [&] {
    std::error_code ignored;
    for (const auto& entry : fs::directory_iterator(c.to(), ignored))
      if (const auto size = entry.file_size(ignored);
          entry.path().extension() == ".part" && !ignored)  // one that is renamed has none
        return size;
    return uintmax_t{0};
  };
  for (const uintmax_t enough : {4'000u, 30'000u, 60'000u}) {
    const uintmax_t before = received();  // a slow machine may have let the last one go further
    Process child(vitrum_command({"download", "owner/name", "--to", c.to()}), c.dir / "o",
                  c.dir / "e");
    EXPECT_TRUE(eventually([&] { return received() >= std::max(enough, before + 1); }));
    child.signal(SIGKILL);
    EXPECT_EQ(child.wait(), 128 + SIGKILL);
    EXPECT_FALSE(fs::exists(c.to() + "/model.safetensors"));
    EXPECT_EQ(c.names().size(), 2u);  // the config, and a part
  }
  const Finished done = run_vitrum({"download", "owner/name", "--to", c.to()}, c.dir / "a");
  unsetenv("HF_ENDPOINT"), unsetenv("HF_HOME");
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(c.kept("model.safetensors"), kWeights);
  EXPECT_THAT(c.names(), ElementsAre("config.json", "model.safetensors"));
  EXPECT_EQ(c.server.count(kResolve + "config.json"), 1u);
  std::vector<std::string> ranges;
  for (const Request& r : c.server.requests())
    if (r.path == kWeightsPath) ranges.push_back(r.header("range"));
  ASSERT_EQ(ranges.size(), 4u);
  EXPECT_EQ(ranges[0], "");
  for (size_t i = 1; i < 4; ++i) EXPECT_THAT(ranges[i], StartsWith("bytes="));
}

}  // namespace
}  // namespace vitrum
