// Numbers of e4m3: all 256, and how all of f32 becomes one of them.
#include "vitrum/core/e4m3.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace vitrum {
namespace {

// By the definition: (-1)^s 2^(e - 7) (1 + m / 8), and without the 1 where e is 0.
double by_definition(int q) {
  const int exponent = q >> 3 & 15, mantissa = q & 7;
  if (exponent == 15 && mantissa == 7) return std::nan("");
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return q & 128 ? -magnitude : magnitude;
}

TEST(E4M3, IsWhatItsBitsSay) {
  for (int q = 0; q < 256; ++q) {
    const float x = from_e4m3(static_cast<uint8_t>(q));
    if (std::isnan(by_definition(q))) {
      EXPECT_TRUE(std::isnan(x)) << q;
      continue;
    }
    EXPECT_EQ(static_cast<double>(x), by_definition(q)) << q;
    EXPECT_EQ(std::signbit(x), q >= 128) << q;
    EXPECT_EQ(to_e4m3(x), q) << "and back";
  }
  EXPECT_EQ(from_e4m3(0x7e), 448);
  EXPECT_EQ(from_e4m3(0x01), 0x1p-9f);
}

// Every f32 in steps of 2^8 of its bits, and what lies beside each number and each midpoint.
TEST(E4M3, IsTheNearestWithTiesToEven) {
  const auto expect = [&](float x) {
    const uint8_t q = to_e4m3(x);
    const auto magnitude = static_cast<double>(std::abs(x));
    ASSERT_EQ(std::signbit(x), q >= 128) << x;
    if (magnitude >= 448) {
      ASSERT_EQ(q & 0x7f, 0x7e) << x;
      return;
    }
    const int at = q & 0x7f;
    const double off = std::abs(by_definition(at) - magnitude);
    for (const int other : {at - 1, at + 1}) {
      if (other < 0 || other > 0x7e) continue;
      const double theirs = std::abs(by_definition(other) - magnitude);
      ASSERT_TRUE(off < theirs || (off == theirs && at % 2 == 0)) << x << " is not " << at;
    }
  };
  for (uint64_t bits = 0; bits < 0x7f800000; bits += 257)
    for (const uint32_t sign : {0u, 0x80000000u}) {
      expect(std::bit_cast<float>(static_cast<uint32_t>(bits) | sign));
      if (HasFatalFailure()) return;
    }
  for (int q = 0; q < 0x7e; ++q) {
    const auto low = static_cast<float>(by_definition(q)),
               middle = static_cast<float>((by_definition(q) + by_definition(q + 1)) / 2);
    for (const float x : {low, middle})
      for (const float beside : {std::nextafter(x, -1.0f), x, std::nextafter(x, 1000.0f)}) {
        expect(beside);
        if (HasFatalFailure()) return;
      }
  }
}

TEST(E4M3, SaturatesAndKeepsNaN) {
  EXPECT_EQ(to_e4m3(INFINITY), 0x7e);
  EXPECT_EQ(to_e4m3(-INFINITY), 0xfe);
  EXPECT_EQ(to_e4m3(1e30f), 0x7e);
  EXPECT_EQ(to_e4m3(464.0f), 0x7e);
  EXPECT_EQ(to_e4m3(NAN), 0x7f);
  EXPECT_EQ(to_e4m3(-NAN) & 0x7f, 0x7f);
}

TEST(E4M3, WeightsThatWereRoundedStayAsTheyAre) {
  std::vector<float> row;
  for (int i = 0; i < 501; ++i) row.push_back(0.0137f * std::sin(static_cast<float>(i * i)));
  std::vector<uint8_t> q(row.size()), again(row.size());
  const float scale = round_weights_e4m3(row, q.data());
  std::vector<float> numbers;
  for (size_t i = 0; i < row.size(); ++i) {
    const double exact = by_definition(q[i]) * static_cast<double>(scale);
    numbers.push_back(from_e4m3(q[i]) * scale);
    ASSERT_EQ(static_cast<double>(numbers[i]), exact) << "exact in f32";
    ASSERT_LE(std::abs(numbers[i] - row[i]), std::abs(row[i]) / 15.9f + scale * 0x1p-10f);
  }
  EXPECT_EQ(round_weights_e4m3(numbers, again.data()), scale);
  EXPECT_EQ(again, q);
}

// Of four scales the one with the least squared error, and never a worse one than the largest
// number's; rows that were rounded find theirs again.
TEST(E4M3, ScalesLeaveTheLeastError) {
  double chosen = 0, largest_only = 0;
  for (int seed = 1; seed < 200; ++seed) {
    std::vector<float> row;
    for (int i = 0; i < 64; ++i) {
      const auto x = static_cast<float>(i * seed);
      row.push_back(std::sin(x) * std::cos(0.37f * x) * 0.01f * static_cast<float>(seed));
    }
    std::vector<uint8_t> q(row.size()), again(row.size());
    const float scale = round_weights_e4m3(row, q.data());
    const float largest =
        std::abs(*std::ranges::max_element(row, {}, [](float w) { return std::abs(w); }));
    const float plain = e4m3_weight_scale(largest);
    double error = 0, other = 0;
    std::vector<float> numbers;
    for (size_t i = 0; i < row.size(); ++i) {
      ASSERT_EQ(nearest_e4m3(row[i] / scale), from_e4m3(to_e4m3(row[i] / scale)));
      numbers.push_back(from_e4m3(q[i]) * scale);
      error += std::pow(numbers[i] - row[i], 2);
      other += std::pow(from_e4m3(to_e4m3(row[i] / plain)) * plain - row[i], 2);
    }
    ASSERT_LE(error, other * 1.0001) << seed;
    ASSERT_EQ(round_weights_e4m3(numbers, again.data()), scale) << seed;
    ASSERT_EQ(again, q) << seed;
    chosen += error, largest_only += other;
  }
  EXPECT_LT(chosen, 0.95 * largest_only);
}

TEST(E4M3, RowsOfZerosAndOfWhatIsNotFinite) {
  std::vector<float> row(5, 0.0f);
  uint8_t q[5] = {1, 1, 1, 1, 1};
  EXPECT_EQ(round_weights_e4m3(row, q), 0);
  EXPECT_EQ(std::count(q, q + 5, 0), 5);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    row[3] = bad;
    EXPECT_TRUE(std::isnan(round_weights_e4m3(row, q)));
  }
}

TEST(E4M3, ScalesAreTheLeastPowersOfTwo) {
  EXPECT_EQ(activation_scale(448), 1);
  EXPECT_EQ(activation_scale(449), 2);
  EXPECT_EQ(activation_scale(448.0f / 16), 0.0625f);
  EXPECT_EQ(activation_scale(27.8f), 0.0625f);
  EXPECT_EQ(activation_scale(28.1f), 0.125f);
  for (const float bound : {0.0f, 1e-30f}) EXPECT_EQ(activation_scale(bound), 0x1p-30f);
  for (const float bound : {1e30f, INFINITY, NAN}) EXPECT_EQ(activation_scale(bound), 0x1p30f);
}

}  // namespace
}  // namespace vitrum
