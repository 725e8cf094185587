#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>
#include <thread>
#include <vector>

#include "vitrum/core/buffer.h"
#include "vitrum/core/dtype.h"
#include "vitrum/core/parallel.h"
#include "vitrum/core/shape.h"
#include "vitrum/core/tensor.h"

namespace vitrum {
namespace {

TEST(Shape, CountsAndPrints) {
  const Shape s{128, 197, 768};
  EXPECT_EQ(s.rank(), 3);
  EXPECT_EQ(s.numel(), 128 * 197 * 768);
  EXPECT_EQ(s.rows(), 128 * 197);
  EXPECT_EQ(s[-1], 768);
  EXPECT_EQ(s[0], s[-3]);
  EXPECT_EQ(s.str(), "(128, 197, 768)");
  EXPECT_EQ(s.with_last(10), (Shape{128, 197, 10}));
  EXPECT_EQ(s[2], 768);  // with_last left the original alone
}

TEST(Shape, EdgeCases) {
  EXPECT_EQ(Shape{}.numel(), 1);  // a scalar
  EXPECT_EQ(Shape{}.rows(), 0);
  EXPECT_EQ((Shape{3, 0}).numel(), 0);
  EXPECT_EQ((Shape{3, 0}).rows(), 0);
  EXPECT_EQ(Shape{}.str(), "()");
  EXPECT_NE((Shape{2, 3}), (Shape{3, 2}));
  EXPECT_NE((Shape{2, 3}), (Shape{2, 3, 1}));
  Shape grown{2};
  grown.append(5);
  EXPECT_EQ(grown, (Shape{2, 5}));
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(DType::kBF16), 2u);
  EXPECT_EQ(size_of(DType::kF64), 8u);
  EXPECT_EQ(name_of(DType::kBF16), "bf16");
  EXPECT_TRUE(is_float(DType::kF16));
  EXPECT_FALSE(is_float(DType::kI32));
  EXPECT_EQ((TensorView{nullptr, {3, 5}, DType::kBF16}).bytes(), 30u);
}

// bf16 has 8 bits of precision: between 1 and 2 its values lie 2^-7 apart.
TEST(DType, BF16RoundsToNearestEven) {
  const auto through = [](float x) { return from_bf16(to_bf16(x)); };
  EXPECT_EQ(through(1.f), 1.f);
  EXPECT_EQ(through(-0.f), 0.f);
  EXPECT_TRUE(std::signbit(through(-0.f)));
  EXPECT_EQ(through(1.f + 0x1p-8f), 1.f);                                 // a tie, down to even
  EXPECT_EQ(through(1.f + 0x1p-7f + 0x1p-8f), 1.f + 0x1p-6f);             // a tie, up to even
  EXPECT_EQ(through(1.f + 0x1p-8f + 0x1p-23f), 1.f + 0x1p-7f);            // just above the tie
  EXPECT_EQ(through(1.f + 0x1p-7f + 0x1p-8f - 0x1p-23f), 1.f + 0x1p-7f);  // just below one
  EXPECT_EQ(through(-1.f - 0x1p-8f), -1.f);
  EXPECT_EQ(through(0x1p-133f), 0x1p-133f);  // the smallest subnormal
}

TEST(DType, BF16KeepsSpecialValues) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  EXPECT_EQ(from_bf16(to_bf16(kInf)), kInf);
  EXPECT_EQ(from_bf16(to_bf16(-kInf)), -kInf);
  EXPECT_EQ(from_bf16(to_bf16(std::numeric_limits<float>::max())), kInf);  // above the largest bf16
  for (uint32_t nan : {0x7fc00000u, 0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu})
    EXPECT_TRUE(std::isnan(from_bf16(to_bf16(std::bit_cast<float>(nan))))) << std::hex << nan;
}

TEST(DType, EveryBF16SurvivesARoundTrip) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = from_bf16(static_cast<uint16_t>(bits));
    if (std::isnan(x)) continue;
    ASSERT_EQ(to_bf16(x), bits);
  }
}

TEST(Buffer, IsZeroedAlignedAndMoves) {
  Buffer a = allocate_host(1000);
  ASSERT_EQ(a.size(), 1000u);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(a.data()) % 64, 0u);
  for (size_t i = 0; i < a.size(); ++i) ASSERT_EQ(a.data()[i], std::byte{0});
  std::byte* data = a.data();
  Buffer b = std::move(a);
  EXPECT_EQ(b.data(), data);
  EXPECT_EQ(a.data(), nullptr);  // NOLINT(bugprone-use-after-move): emptied by contract
  b = Buffer();
  EXPECT_EQ(b.data(), nullptr);
  EXPECT_EQ(allocate_host(0).data(), nullptr);
}

class Pool : public testing::TestWithParam<int> {};

TEST_P(Pool, EveryTaskRunsExactlyOnce) {
  ThreadPool pool(GetParam());
  EXPECT_EQ(pool.threads(), GetParam());
  for (int64_t tasks : {0, 1, 2, 3, 7, 64, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<size_t>(tasks));
    std::atomic<bool> thread_in_range = true;
    pool.run(tasks, [&](int64_t task, int thread) {
      runs[static_cast<size_t>(task)].fetch_add(1);
      if (thread < 0 || thread >= pool.threads()) thread_in_range = false;
    });
    for (const auto& n : runs) ASSERT_EQ(n.load(), 1) << tasks;
    EXPECT_TRUE(thread_in_range);
  }
}

// Loops follow each other closely and differ in size; each must see only its own tasks.
TEST_P(Pool, ManySmallLoops) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> sums(16);  // plain memory: run() must make the workers' writes visible
  int64_t expected = 0;
  for (int64_t loop = 0; loop < 300; ++loop) {
    const int64_t tasks = 2 + loop % 15;
    pool.run(tasks, [&](int64_t task, int) { sums[static_cast<size_t>(task)] += loop + task; });
    for (int64_t task = 0; task < tasks; ++task) expected += loop + task;
  }
  int64_t total = 0;
  for (int64_t s : sums) total += s;
  EXPECT_EQ(total, expected);
}

TEST_P(Pool, TwoTasksOfOneThreadNeverOverlap) {
  ThreadPool pool(GetParam());
  std::vector<std::atomic<int>> inside(static_cast<size_t>(pool.threads()));
  std::atomic<bool> overlapped = false;
  for (int loop = 0; loop < 50; ++loop)
    pool.run(40, [&](int64_t, int thread) {
      std::atomic<int>& mine = inside[static_cast<size_t>(thread)];
      if (mine.fetch_add(1) != 0) overlapped = true;
      mine.fetch_sub(1);
    });
  EXPECT_FALSE(overlapped);
}

INSTANTIATE_TEST_SUITE_P(Threads, Pool, testing::Values(1, 2, 3, 4, 8));

TEST(ThreadPool, WakesAfterSleeping) {
  ThreadPool pool(3);
  std::atomic<int> runs = 0;
  for (int loop = 0; loop < 3; ++loop) {
    pool.run(6, [&](int64_t, int) { ++runs; });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // longer than the workers spin
  }
  EXPECT_EQ(runs, 18);
}

TEST(ThreadPool, AtLeastOneThread) {
  EXPECT_EQ(ThreadPool(0).threads(), 1);
  EXPECT_EQ(ThreadPool(-3).threads(), 1);
  EXPECT_GE(available_cores(), 1);
}

}  // namespace
}  // namespace vitrum
