#include "vitrum/train/event_file.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "vitrum/train/event.pb.h"

namespace vitrum {
namespace {

template <class T>
T number_at(const std::string& bytes, size_t at) {
  T x;
  std::memcpy(&x, bytes.data() + at, sizeof x);
  return x;
}

// Takes the framing apart as the format's description has it, checking both sums of every record.
std::vector<proto::Event> events_of(const std::string& path) {
  const std::string bytes = read_file(path);
  std::vector<proto::Event> events;
  for (size_t at = 0; at < bytes.size();) {
    const auto length = number_at<uint64_t>(bytes, at);
    EXPECT_EQ(number_at<uint32_t>(bytes, at + 8), masked_crc32c(bytes.substr(at, 8)));
    const std::string data = bytes.substr(at + 12, length);
    EXPECT_EQ(number_at<uint32_t>(bytes, at + 12 + length), masked_crc32c(data));
    EXPECT_TRUE(events.emplace_back().ParseFromString(data));
    at += 12 + length + 4;
  }
  return events;
}

std::vector<int64_t> steps_of(const std::string& path) {
  std::vector<int64_t> steps;
  for (const auto& event : events_of(path))
    if (event.summary().value_size() > 0) steps.push_back(event.step());
  return steps;
}

std::string write_steps(const std::string& dir, int64_t from, int64_t to) {
  EventWriter writer(dir);
  for (int64_t step = from; step <= to; ++step) writer.scalar("train loss", step, 0.5);
  return writer.path();
}

TEST(EventFile, Crc32cKnownValues) {
  EXPECT_EQ(crc32c(""), 0u);
  EXPECT_EQ(crc32c("123456789"), 0xE3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8A9136AAu);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62A8AB43u);
}

TEST(EventFile, HoldsWhatWasWritten) {
  const TempDir dir;
  EventWriter writer(dir / "run");
  writer.scalar("train loss", 3, 1.5, 1700000000.25);
  writer.scalar("test acc", 4, 0.875);
  writer.flush();
  const auto events = events_of(writer.path());
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].file_version(), "brain.Event:2");
  EXPECT_EQ(events[1].wall_time(), 1700000000.25);
  EXPECT_EQ(events[1].step(), 3);
  EXPECT_EQ(events[1].summary().value(0).tag(), "train loss");
  EXPECT_EQ(events[1].summary().value(0).simple_value(), 1.5f);
  EXPECT_GT(events[2].wall_time(), 1.7e9);
}

TEST(EventFile, ALaterFileSortsAfterTheEarlierOnes) {
  const TempDir dir;
  write_file_atomic(dir / "events.out.tfevents.5000000000.elsewhere", "");  // a clock ahead of ours
  const std::string first = write_steps(dir.path(), 1, 2), second = write_steps(dir.path(), 3, 4);
  EXPECT_LT(dir / "events.out.tfevents.5000000000.elsewhere", first);
  EXPECT_LT(first, second);
}

TEST(EventFile, TruncateDropsLaterStepsInEveryFile) {
  const TempDir dir;
  const std::string first = write_steps(dir.path(), 1, 5), second = write_steps(dir.path(), 4, 9);
  truncate_after(dir.path(), 4);
  EXPECT_EQ(steps_of(first), (std::vector<int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(steps_of(second), (std::vector<int64_t>{4}));
  EXPECT_EQ(events_of(second)[0].file_version(), "brain.Event:2");
  EXPECT_EQ(dir.entries(), 2u);
}

TEST(EventFile, TruncateDropsATornRecordAndWhatFollowsDamage) {
  const TempDir dir;
  const std::string path = write_steps(dir.path(), 1, 5), good = read_file(path);
  write_file_atomic(path, good.substr(0, good.size() - 1));
  truncate_after(dir.path(), 9);
  EXPECT_EQ(steps_of(path), (std::vector<int64_t>{1, 2, 3, 4}));

  std::string damaged = good;
  damaged[good.size() / 2] ^= 1;
  write_file_atomic(path, damaged);
  truncate_after(dir.path(), 9);
  EXPECT_LT(steps_of(path).size(), 4u);
}

TEST(EventFile, TruncateLeavesCompleteFilesAlone) {
  const TempDir dir;
  const std::string path = write_steps(dir.path(), 1, 5);
  const auto before = std::filesystem::last_write_time(path);
  truncate_after(dir.path(), 5);
  EXPECT_EQ(std::filesystem::last_write_time(path), before);
  truncate_after(dir / "no such directory", 5);
}

TEST(EventFile, FilterSeesTagAndStep) {
  const TempDir dir;
  std::string path;
  {
    EventWriter writer(dir.path());
    path = writer.path();
    writer.scalar("train loss", 1, 1);   // counted in epochs
    writer.scalar("step/loss", 500, 1);  // counted in steps
    writer.scalar("step/loss", 900, 1);
  }
  filter_events(dir.path(), [](std::string_view tag, int64_t step) {
    return tag == "step/loss" ? step <= 500 : step <= 1;
  });
  EXPECT_EQ(steps_of(path), (std::vector<int64_t>{1, 500}));
}

TEST(EventFile, AnUnwritableDirectoryIsNamed) {
  const TempDir dir;
  write_file_atomic(dir / "file", "");
  EXPECT_ERROR(EventWriter{dir / "file"}, ErrorKind::kInput, dir / "file");
}

}  // namespace
}  // namespace vitrum
