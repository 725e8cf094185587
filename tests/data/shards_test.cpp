// Tar shards of images: what is read from archives that other programs wrote.
#include <gmock/gmock.h>

#include <fstream>

#include "tests/support/data_files.h"
#include "tests/support/process.h"
#include "tests/support/tar_files.h"
#include "vitrum/core/files.h"
#include "vitrum/core/tar_header.h"
#include "vitrum/data/shard_scan.h"
#include "vitrum/data/tar.h"

namespace vitrum::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Bytes bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

Finished run_shell(const TempDir& dir, const std::string& line) {
  Process shell({"/bin/sh", "-c", line}, dir / "out", dir / "err");
  const int code = shell.wait();
  return {code, read_file(dir / "out"), read_file(dir / "err")};
}

std::vector<std::pair<std::string, std::string>> members_of(const std::string& path) {
  const RandomFile file(path);
  TarReader tar(file);
  std::vector<std::pair<std::string, std::string>> all;
  while (const auto member = tar.next())
    all.emplace_back(member->name, tar.contents(*member, 1 << 20));
  return all;
}

// GNU tar itself writes every format it has.
TEST(Tar, ReadsWhatTarWrites) {
  TempDir dir;
  const std::string deep = "folder/" + std::string(90, 'd') + "/" + std::string(60, 'e');
  const std::vector<std::pair<std::string, std::string>> files = {
      {"a.txt", "hello"}, {"b.bin", std::string(1000, 'b')}, {"empty", ""}, {deep, "deep"}};
  for (const auto& [name, text] : files) write_file(dir / ("in/" + name), bytes_of(text));
  const std::string long_name(150, 'n');
  for (const std::string format : {"v7", "ustar", "gnu", "pax"}) {
    SCOPED_TRACE(format);
    std::vector<std::pair<std::string, std::string>> expected = {
        {"a.txt", "hello"}, {"b.bin", std::string(1000, 'b')}, {"empty", ""}};
    std::string names = "a.txt b.bin empty";
    if (format != "v7") expected.emplace_back(deep, "deep"), names += " folder";
    if (format == "gnu" || format == "pax") {
      write_file(dir / ("in/" + long_name), bytes_of("long"));
      expected.emplace_back(long_name, "long"), names += " ./" + long_name;
    }
    const std::string path = dir / (format + ".tar");
    const Finished made = run_shell(
        dir, "exec tar -C " + (dir / "in") + " --format=" + format + " -cf " + path + " " + names);
    if (made.code == 127) GTEST_SKIP() << "tar is not installed";
    ASSERT_EQ(made.code, 0) << made.err;
    EXPECT_EQ(members_of(path), expected);
  }
}

// And reads what is written here.
TEST(Tar, WritesWhatTarReads) {
  TempDir dir;
  std::string archive;
  const auto add = [&](const std::string& name, const std::string& text) {
    const TarHeader header = tar_header(name, static_cast<int64_t>(text.size()));
    archive.append(header.bytes.begin(), header.bytes.end());
    archive +=
        text +
        std::string(static_cast<size_t>(tar_padding(static_cast<int64_t>(text.size()))), '\0');
  };
  add(std::string(100, 'x'), "hundred"), add("b.bin", std::string(512, 'b'));
  write_file(dir / "a.tar", bytes_of(archive + std::string(1024, '\0')));
  const Finished listed = run_shell(dir, "TZ=UTC exec tar -tvf " + (dir / "a.tar"));
  if (listed.code == 127) GTEST_SKIP() << "tar is not installed";
  EXPECT_EQ(listed.code, 0) << listed.err;
  EXPECT_THAT(listed.out, HasSubstr("7 1970-01-01 00:00 " + std::string(100, 'x')));
  EXPECT_THAT(listed.out, HasSubstr("512 1970-01-01 00:00 b.bin"));
  EXPECT_EQ(members_of(dir / "a.tar").size(), 2u);
}

TEST(Tar, TakesPaxAndGnuNames) {
  TempDir dir;
  const std::string gnu(300, 'g');
  write_file(dir / "a.tar",
             bytes_of(tar_of({{"pax_global_header", pax_record("comment", "x"), 'g'},
                              {"x", pax_record("mtime", "1.5") + pax_record("path", "é.jpg"), 'x'},
                              {"short", "1"},
                              {"././@LongLink", gnu + std::string(1, '\0'), 'L'},
                              {"cut", "22"},
                              {"folder/", "", '5'},
                              {"x", pax_record("size", "3"), 'x'},
                              {"c", "333", '0', "00000000003"},
                              {"d", "4444", '0', base_256(0x80, "\x04")},
                              {"./e", "5", '\0'}})));
  EXPECT_THAT(members_of(dir / "a.tar"),
              ElementsAre(std::pair("é.jpg", "1"), std::pair(gnu, "22"), std::pair("c", "333"),
                          std::pair("d", "4444"), std::pair("e", "5")));
}

ShardIndex scan(const TempDir& dir, const std::vector<TarPart>& parts) {
  write_file(dir / "s/a.tar", bytes_of(tar_of(parts)));
  return scan_shards(dir / "s", {"a.tar"});
}

TEST(ShardScan, FollowsWebDataset) {
  TempDir dir;
  const ShardIndex index = scan(dir, {{"README", "not a sample"},
                                      {".hidden.jpg", "x"},
                                      {"t/1.JPG", "one"},
                                      {"t/1.cls", "2\n"},
                                      {"t/1.json", R"({"label": 9})"},
                                      {"t/2.json", R"({"label": 0, "url": "x"})"},
                                      {"t/2.jpeg", "second"},
                                      {"t/3.txt", "1"},
                                      {"t/3.seg.png", "third"},
                                      {"t/4.json", "{}"},
                                      {"u/3.png", "fourth"}});
  EXPECT_THAT(index.classes, ElementsAre("0", "1", "2"));
  ASSERT_EQ(index.samples.size(), 4u);
  EXPECT_EQ(index.samples[0].name, "t/1.JPG");
  EXPECT_EQ(index.samples[0].size, 3);
  EXPECT_EQ(index.samples[1].name, "t/2.jpeg");
  EXPECT_EQ(index.samples[2].name, "t/3.seg.png");
  std::vector<int> labels;
  for (const ShardSample& s : index.samples) labels.push_back(s.label);
  EXPECT_THAT(labels, ElementsAre(2, 0, 1, -1));
  const RandomFile file(dir / "s/a.tar");
  std::string bytes(6, '\0');
  file.read(index.samples[1].at, bytes);
  EXPECT_EQ(bytes, "second");
}

TEST(ShardScan, NumbersNamesInTheirOrder) {
  TempDir dir;
  const ShardIndex index = scan(dir, {{"1.png", "x"},
                                      {"1.txt", " dog \n"},
                                      {"2.png", "x"},
                                      {"2.json", R"({"class_name": "cat"})"},
                                      {"3.png", "x"},
                                      {"3.cls", "7"}});
  EXPECT_THAT(index.classes, ElementsAre("7", "cat", "dog"));
  EXPECT_EQ(index.samples[0].label, 2);
  EXPECT_EQ(index.samples[1].label, 1);
  EXPECT_EQ(index.samples[2].label, 0);
}

// A caption is no class.
TEST(ShardScan, LeavesCaptionsAlone) {
  TempDir dir;
  const ShardIndex index = scan(
      dir, {{"1.jpg", "x"}, {"1.txt", std::string(300, 'a')}, {"2.jpg", "x"}, {"2.json", "[1"}});
  EXPECT_TRUE(index.classes.empty());
  EXPECT_EQ(index.samples[0].label, -1);
  EXPECT_EQ(index.samples[1].label, -1);
}

TEST(ShardIndex, IsReadAsWritten) {
  const ShardIndex index{
      .classes = {"cat", "hot dog", "ö"},
      .shards = {{"a b.tar", 4096, 17, std::string(64, 'a')}, {"b.tar", 1024}},
      .samples = {{.shard = 1, .label = 2, .at = 512, .size = 5, .name = "x y.jpg"},
                  {.shard = 0, .label = -1, .at = 512, .size = 0, .name = "z.png"}}};
  EXPECT_EQ(parse_shard_index(to_text(index), "i"), index);
}

}  // namespace
}  // namespace vitrum::test
