#include "vitrum/train/metrics_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>

#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "vitrum/core/files.h"

namespace vitrum {
namespace {

using testing::HasSubstr;

EpochMetrics row_of(int epoch) {
  EpochMetrics row;
  row.epoch = epoch;
  row.step = 469 * epoch;
  row.train_loss = 1.0 / (3 * epoch);
  row.train_acc = 0.1 + 0.2 * epoch;  // no short decimal
  row.lr = 5e-324;
  row.seconds = 1.7976931348623157e308;
  return row;
}

TEST(MetricsLog, NumbersComeBackBitForBit) {
  const TempDir dir;
  MetricsLog log(dir / "run", MetricsLog::kAfresh);
  log.append(row_of(1));
  log.append(row_of(2));
  const auto rows = MetricsLog::load(dir / "run");
  ASSERT_EQ(rows.size(), 2u);
  const EpochMetrics want = row_of(2);
  EXPECT_EQ(rows[1].epoch, 2);
  EXPECT_EQ(rows[1].step, want.step);
  EXPECT_EQ(std::bit_cast<uint64_t>(rows[1].train_loss), std::bit_cast<uint64_t>(want.train_loss));
  EXPECT_EQ(rows[1].train_acc, want.train_acc);
  EXPECT_EQ(rows[1].lr, want.lr);
  EXPECT_EQ(rows[1].seconds, want.seconds);
  EXPECT_TRUE(std::isnan(rows[1].test_acc));
}

TEST(MetricsLog, WritesOneHeaderAndJsonLines) {
  const TempDir dir;
  MetricsLog(dir.path(), MetricsLog::kAfresh).append(row_of(1));
  MetricsLog(dir.path(), 1).append(row_of(2));
  const std::string csv = read_file(dir / "metrics.csv"), jsonl = read_file(dir / "metrics.jsonl");
  EXPECT_EQ(csv.find("epoch,step,train_loss,"), 0u);
  EXPECT_EQ(csv.find("epoch", 1), std::string::npos);
  EXPECT_THAT(jsonl, HasSubstr(R"({"epoch":1,"step":469,"train_loss":0.3333333333333333,)"));
  EXPECT_THAT(jsonl, HasSubstr(R"("test_acc":null)"));
  EXPECT_EQ(std::count(jsonl.begin(), jsonl.end(), '\n'), 2);
}

TEST(MetricsLog, ResumeDropsLaterEpochsFromBothFiles) {
  const TempDir dir;
  {
    MetricsLog log(dir.path(), MetricsLog::kAfresh);
    for (int epoch = 1; epoch <= 5; ++epoch) log.append(row_of(epoch));
  }
  MetricsLog log(dir.path(), 3);
  EXPECT_EQ(log.rows().size(), 3u);
  log.append(row_of(4));
  EXPECT_EQ(MetricsLog::load(dir.path()).size(), 4u);
  const std::string jsonl = read_file(dir / "metrics.jsonl");
  EXPECT_EQ(std::count(jsonl.begin(), jsonl.end(), '\n'), 4);
  EXPECT_EQ(dir.entries(), 2u);
}

TEST(MetricsLog, ResumedFilesEqualUninterruptedOnes) {
  const TempDir one, two;
  MetricsLog whole(one.path(), MetricsLog::kAfresh);
  for (int epoch = 1; epoch <= 4; ++epoch) whole.append(row_of(epoch));
  {
    MetricsLog log(two.path(), MetricsLog::kAfresh);
    for (int epoch = 1; epoch <= 3; ++epoch) log.append(row_of(epoch));
  }
  MetricsLog resumed(two.path(), 2);
  resumed.append(row_of(3)), resumed.append(row_of(4));
  EXPECT_EQ(read_file(one / "metrics.csv"), read_file(two / "metrics.csv"));
  EXPECT_EQ(read_file(one / "metrics.jsonl"), read_file(two / "metrics.jsonl"));
}

TEST(MetricsLog, ATornLastLineIsDroppedWhereverItIsTorn) {
  const TempDir dir;
  {
    MetricsLog log(dir.path(), MetricsLog::kAfresh);
    log.append(row_of(1)), log.append(row_of(2));
  }
  const std::string csv = read_file(dir / "metrics.csv");
  const size_t second = csv.rfind('\n', csv.size() - 2) + 1;
  for (size_t end = second; end < csv.size(); ++end) {
    write_file_atomic(dir / "metrics.csv", csv.substr(0, end));
    ASSERT_EQ(MetricsLog::load(dir.path()).size(), 1u) << end;
  }
  MetricsLog log(dir.path(), 9);
  log.append(row_of(2));
  EXPECT_EQ(read_file(dir / "metrics.csv"), csv);
}

TEST(MetricsLog, ReadsAroundOtherColumns) {
  const TempDir dir;
  write_file_atomic(dir / "metrics.csv", "note,epoch,test_acc\r\nhello,7,0.5\r\n");
  const auto rows = MetricsLog::load(dir.path());
  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows[0].epoch, 7);
  EXPECT_EQ(rows[0].test_acc, 0.5);
}

TEST(MetricsLog, DamageInTheMiddleIsNamed) {
  const TempDir dir;
  write_file_atomic(dir / "metrics.csv", "epoch,lr\n1,0.1\nx,0.1\n3,0.1\n");
  EXPECT_ERROR(MetricsLog::load(dir.path()), ErrorKind::kInput, "metrics.csv' line 3");
}

TEST(MetricsLog, NoFileNoRows) {
  const TempDir dir;
  EXPECT_TRUE(MetricsLog::load(dir.path()).empty());
  write_file_atomic(dir / "metrics.csv", "");
  EXPECT_TRUE(MetricsLog::load(dir.path()).empty());
  EXPECT_TRUE(MetricsLog(dir.path(), 3).rows().empty());
}

}  // namespace
}  // namespace vitrum
