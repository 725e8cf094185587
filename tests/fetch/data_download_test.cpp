// Data sets from a scripted server on this machine, and the archives they come in.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/data_files.h"
#include "tests/support/expect_error.h"
#include "tests/support/http_server.h"
#include "tests/support/process.h"
#include "vitrum/core/files.h"
#include "vitrum/fetch/archive.h"
#include "vitrum/fetch/data_sets.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;
using namespace test;

constexpr DownloadOptions kQuick{.tries = 3, .pause = 0.01, .quiet = true};

std::string tar_entry(const std::string& name, const std::string& body, char type = '0') {
  std::string header(512, '\0');
  header.replace(0, name.size(), name);
  header.replace(124, 11, fmt::format("{:011o}", body.size()));
  header.replace(148, 8, "        ");
  header[156] = type;
  header.replace(257, 8, std::string("ustar\00000", 8));
  unsigned sum = 0;
  for (const unsigned char c : header) sum += c;
  header.replace(148, 7, fmt::format("{:06o}", sum) + '\0');
  return header + body + std::string((512 - body.size() % 512) % 512, '\0');
}
const std::string kTarEnd(1024, '\0');

std::string gzipped(const std::string& text) {
  const Bytes packed = gzip(Bytes(text.begin(), text.end()));
  return {packed.begin(), packed.end()};
}

TEST(Archive, UnpacksFilesAndNothingElse) {
  const test::TempDir dir;
  const auto unpack = [&](const std::string& tar, int64_t limit = 10'000) {
    write_file_atomic(dir / "a.tar.gz", gzipped(tar));
    unpack_tar_gz(dir / "a.tar.gz", dir / "out", limit);
  };
  unpack(tar_entry("d/", "", '5') + tar_entry("d/one.bin", "1") +
         tar_entry("./two", std::string(700, '2')) + tar_entry("pax", "30 mtime=1\n", 'x') +
         tar_entry("empty", "") + kTarEnd);
  EXPECT_EQ(read_file(dir / "out/d/one.bin"), "1");
  EXPECT_EQ(read_file(dir / "out/two"), std::string(700, '2'));
  EXPECT_EQ(read_file(dir / "out/empty"), "");
  for (const char* name : {"../x", "/etc/x", "a/../../x", "", "a\\x"})
    EXPECT_ERROR(unpack(tar_entry(name, "x") + kTarEnd), ErrorKind::kInput, "leads out of");
  for (const char type : {'1', '2', '3', 'L'})
    EXPECT_ERROR(unpack(tar_entry("link", "x", type) + kTarEnd), ErrorKind::kInput,
                 "neither a file");
  EXPECT_ERROR(unpack(tar_entry("x", "123456") + kTarEnd, 5), ErrorKind::kInput,
               "more than is allowed");
  std::string damaged = tar_entry("x", "1") + kTarEnd;
  damaged[1] = 'y';
  EXPECT_ERROR(unpack(damaged), ErrorKind::kInput, "checksum");
  EXPECT_ERROR(unpack(tar_entry("x", "1")), ErrorKind::kInput, "not complete");
  EXPECT_ERROR(unpack(""), ErrorKind::kInput, "not complete");
  EXPECT_FALSE(fs::exists(dir / "x"));
}

TEST(DataDownload, TriesOneSourceAfterTheOther) {
  const std::string good = gzipped("images");
  const HttpServer bad([&](const Request& r) -> Reply {
    return r.path == "/m/a.gz" ? Reply{.body = std::string(good.size(), 'x')}
                               : Reply{.status = 404};
  });
  const HttpServer fine([&](const Request&) -> Reply { return {.body = good}; });
  const std::string sha = digest(DigestKind::kSha256, good);
  const auto size = static_cast<int64_t>(good.size());
  const PublicData data{"m",
                        {bad.url() + "/m", "http://127.0.0.1:1", fine.url()},
                        {{"a.gz", size, sha.c_str()}, {"b.gz", size, sha.c_str()}}};
  const test::TempDir dir;
  HttpClient client({});
  EXPECT_EQ(download_data(client, data, dir / "m", "", kQuick).files.size(), 2u);
  EXPECT_EQ(read_file(dir / "m/a.gz"), good);
  EXPECT_EQ(fine.requests().size(), 2u);
  EXPECT_ERROR(download_data(client, data, dir / "other", bad.url(), kQuick), ErrorKind::kInput,
               "checksum is wrong");
}

TEST(DataDownload, ArchivesAreUnpacked) {
  const std::string packed =
      gzipped(tar_entry("cifar-10-batches-bin/test_batch.bin", std::string(3073, '\1')) + kTarEnd);
  const HttpServer server([&](const Request&) -> Reply { return {.body = packed}; });
  const std::string sha = digest(DigestKind::kSha256, packed);
  const PublicData data{
      "cifar10", {server.url()}, {{"c.tar.gz", static_cast<int64_t>(packed.size()), sha.c_str()}}};
  const test::TempDir dir;
  HttpClient client({});
  download_data(client, data, dir / "c", "", kQuick);
  EXPECT_EQ(open_split("cifar10:" + (dir / "c"), "test")->size(), 1);
}

TEST(DataDownload, TheTableIsComplete) {
  for (const PublicData& data : public_data()) {
    EXPECT_EQ(&find_public_data(data.name), &data);
    for (const std::string& source : data.sources) EXPECT_THAT(source, StartsWith("https://"));
    for (const DataArchive& archive : data.archives)
      EXPECT_EQ(std::string(archive.sha256).size(), 64u);
  }
  EXPECT_ERROR(find_public_data("minst"), ErrorKind::kUsage, "did you mean 'mnist'?");
}

TEST(DataDownload, FromTheCommandLine) {
  const HttpServer server([](const Request&) -> Reply { return {.status = 404}; });
  const test::TempDir dir;
  const Finished f = run_vitrum(
      {"data", "download", "mnist", "--to", dir / "m", "--mirror", server.url()}, dir / "a");
  EXPECT_EQ(f.code, 3);
  EXPECT_THAT(f.err, HasSubstr("/mnist/train-images-idx3-ubyte.gz: there is no such file"));
  EXPECT_EQ(run_vitrum({"data", "download"}, dir / "a").code, 2);
  EXPECT_EQ(run_vitrum({"data", "mnist:x", "y"}, dir / "a").code, 2);
}

}  // namespace
}  // namespace vitrum
