#include "vitrum/core/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace vitrum {
namespace {

// The known-answer vectors published with Random123 for philox4x32-10.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox(0, {0, 0, 0, 0}), (PhiloxBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox(0xffffffffffffffff, {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}),
            (PhiloxBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (PhiloxBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

constexpr RandomState kRng{.seed_low = 7, .seed_high = 1, .step_low = 42, .step_high = 3};

TEST(Philox, KeepFrequency) {
  constexpr int64_t kDraws = 1 << 18;
  for (float drop : {0.1f, 0.25f, 0.5f, 0.9f}) {
    int64_t kept = 0;
    for (int64_t i = 0; i < kDraws; ++i)
      kept += draw16(kRng, 5, draws_per_row(kDrawRow), i / kDrawRow, i % kDrawRow) <
                      keep_threshold(drop)
                  ? 1
                  : 0;
    const double keep = 1 - static_cast<double>(drop), n = static_cast<double>(kDraws);
    EXPECT_NEAR(static_cast<double>(kept) / n, keep, 5 * std::sqrt(keep * (1 - keep) / n)) << drop;
  }
}

TEST(Philox, KeepScaleIsTheInverseOfTheExactKeepProbability) {
  for (float drop : {0.f, 0.1f, 0.5f, 0.9f, 0.999f})
    EXPECT_FLOAT_EQ(keep_scale(drop) * static_cast<float>(keep_threshold(drop)), 65536.f) << drop;
  EXPECT_EQ(keep_threshold(0), 65536u);  // above every draw: all is kept
  EXPECT_EQ(keep_scale(0), 1.f);
}

// Within a row no 16 bits are used twice: with more elements than counters, every (counter, half)
// differs.
TEST(Philox, DrawsOfARowAreDistinctBits) {
  for (int64_t n : {1, 7, 8, 9, 65, 128, 197}) {
    const int64_t per_row = draws_per_row(n);
    std::set<std::pair<int64_t, int64_t>> used;
    for (int64_t row = 0; row < 3; ++row)
      for (int64_t u = 0; u < n; ++u) {
        EXPECT_LT(u / per_row, 8);
        EXPECT_TRUE(used.insert({row * per_row + u % per_row, u / per_row}).second) << n;
      }
  }
}

TEST(Philox, DrawDependsOnSeedStepAndSite) {
  const auto row_of = [](RandomState rng, uint32_t site, int64_t row) {
    std::vector<uint16_t> draws;
    for (int64_t u = 0; u < 128; ++u) draws.push_back(draw16(rng, site, 16, row, u));
    return draws;
  };
  std::set<std::vector<uint16_t>> rows = {row_of(kRng, 0, 0), row_of(kRng, 1, 0),
                                          row_of(kRng, 0, 1)};
  for (auto field : {&RandomState::seed_low, &RandomState::seed_high, &RandomState::step_low,
                     &RandomState::step_high}) {
    RandomState other = kRng;
    other.*field += 1;
    rows.insert(row_of(other, 0, 0));
  }
  EXPECT_EQ(rows.size(), 7u);
  EXPECT_EQ(row_of(kRng, 9, 4), row_of(kRng, 9, 4));
}

TEST(PhiloxStream, BelowIsUniform) {
  constexpr int kDraws = 60000;
  for (uint32_t n : {1u, 2u, 3u, 7u, 10u, 60u}) {
    PhiloxStream stream(1, kShuffleStream, n);
    std::vector<int> count(n);
    for (int i = 0; i < kDraws; ++i) {
      const uint32_t x = stream.below(n);
      ASSERT_LT(x, n);
      ++count[x];
    }
    const double expected = static_cast<double>(kDraws) / n;
    double chi2 = 0;  // mean n - 1, variance 2 (n - 1)
    for (int c : count) chi2 += (c - expected) * (c - expected) / expected;
    EXPECT_LT(chi2, (n - 1) + 5 * std::sqrt(2.0 * (n - 1)) + 1e-9) << n;
  }
}

// Where 2^32 is far from a multiple of n, a plain modulo or multiplication would favour some
// values.
TEST(PhiloxStream, BelowIsUnbiasedForLargeRanges) {
  constexpr uint32_t kRange = 3u << 30;
  constexpr int kDraws = 30000;
  PhiloxStream stream(2, kShuffleStream, 0);
  int thirds[3] = {};
  for (int i = 0; i < kDraws; ++i) ++thirds[stream.below(kRange) / (1u << 30)];
  for (int count : thirds) EXPECT_NEAR(count, kDraws / 3, 5 * std::sqrt(kDraws * 2 / 9.0));
}

TEST(PhiloxStream, UniformAndNormalHaveTheirMoments) {
  PhiloxStream stream(3, kInitStream, 11);
  constexpr int kDraws = 100000;
  double sum = 0, normal_sum = 0, normal_squares = 0;
  for (int i = 0; i < kDraws; ++i) {
    const double u = stream.uniform(), z = stream.normal();
    ASSERT_TRUE(u >= 0 && u < 1);
    ASSERT_TRUE(std::isfinite(z));
    sum += u, normal_sum += z, normal_squares += z * z;
  }
  EXPECT_NEAR(sum / kDraws, 0.5, 5 * 0.2887 / std::sqrt(kDraws));
  EXPECT_NEAR(normal_sum / kDraws, 0, 5 / std::sqrt(kDraws));
  EXPECT_NEAR(normal_squares / kDraws, 1, 5 * std::sqrt(2.0 / kDraws));
}

TEST(PhiloxStream, StreamsAndIndicesAreApart) {
  std::set<uint64_t> seen;
  for (uint32_t stream : {kInitStream, kShuffleStream, kAugmentStream, kHoldoutStream})
    for (uint64_t index : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
      PhiloxStream draw(9, stream, index);
      const uint64_t high = draw.next_u32();
      seen.insert(high << 32 | draw.next_u32());
    }
  EXPECT_EQ(seen.size(), 12u);
}

}  // namespace
}  // namespace vitrum
