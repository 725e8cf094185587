// The fuzzers' corpus, seeds and former findings alike, through the same entries.
#include <gtest/gtest.h>

#include <filesystem>

#include "fuzz/entries.h"
#include "vitrum/data/decode.h"

namespace vitrum {
namespace {

class FuzzCorpus : public testing::TestWithParam<fuzz::Entry> {};

TEST_P(FuzzCorpus, Replays) {
  const auto folder = std::filesystem::path(VITRUM_SOURCE_DIR) / "fuzz/corpus" / GetParam().name;
  size_t count = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder)) {
    SCOPED_TRACE(file.path().string());
    GetParam().run(read_bytes(file.path().string()));
    ++count;
  }
  EXPECT_GE(count, 3u);
  GetParam().run({});
}

INSTANTIATE_TEST_SUITE_P(Entries, FuzzCorpus, testing::ValuesIn(fuzz::kEntries),
                         [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace vitrum
