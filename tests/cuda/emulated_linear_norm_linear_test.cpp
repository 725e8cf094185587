// Two linear layers with a norm between them, as the card computes them, without one.
#include <gtest/gtest.h>

#include "tests/support/emulated_tile.h"
// Written in what is above, for another compiler.
#include "vitrum/cuda/linear/linear_norm_linear.cuh"

namespace vitrum::cuda {
namespace {

using namespace norm_linear;

struct Rows {
  double mean = 0, squares = 0;  // of deviations
  Rows(const bf16* from, size_t count) {
    for (size_t i = 0; i < count; ++i) mean += value(from[i]) / static_cast<double>(count);
    for (size_t i = 0; i < count; ++i) squares += std::pow(value(from[i]) - mean, 2);
  }
};

// Rows that end within a tile, in each block of a cluster; more tiles than clusters.
TEST(EmulatedThrough, SumsKnowTheirSpread) {
  constexpr size_t kAll = 300, kWidth = 512, kDeep = 72;
  const std::vector<bf16> x = noise(kAll * kDeep, 1, 1), w = noise(kWidth * kDeep, 0.2f, 2),
                          bias = noise(kWidth, 1, 3), skip = noise(kAll * kWidth, 2, 4, 5);
  for (const uint32_t most_late : {0u, 100u}) {
    std::vector<bf16> sum(skip.size(), bf16{0xffff});
    std::vector<RowMoments> row_moments(kAll * 2, RowMoments{NAN, NAN});
    card.most_late = most_late;
    ASSERT_NO_THROW(run_tile(x, kDeep, w, 1,
                             ResidualEpilogue<>{.bias = bias.data(),
                                                .skip = skip.data(),
                                                .sum = sum.data(),
                                                .row_moments = row_moments.data(),
                                                .rows = kAll,
                                                .columns = kWidth}));
    for (size_t r = 0; r < kAll; ++r) {
      for (size_t c = 0; c < kWidth; ++c) {
        const size_t at = r * kWidth + c;
        // Rounded as the layer's result, then as the sum.
        const double layer = product(x, r, w, c, kDeep) + value(bias[c]),
                     expected = layer + value(skip[at]);
        ASSERT_NEAR(value(sum[at]), expected, 0.004 * (std::abs(layer) + std::abs(expected)));
      }
      for (size_t t = 0; t < 2; ++t) {
        const Rows expected(&sum[r * kWidth + t * kColumns], kColumns);
        ASSERT_NEAR(row_moments[t * kAll + r].mean, expected.mean, 1e-5);
        ASSERT_NEAR(row_moments[t * kAll + r].squares, expected.squares, 1e-5 * expected.squares);
      }
    }
  }
}

// A norm before the layer, in its weights.
TEST(EmulatedThrough, SumsBehindANorm) {
  constexpr size_t kAll = 200, kWidth = 256, kDeep = 136;
  const std::vector<bf16> x = noise(kAll * kDeep, 2, 1, 3), w = noise(kWidth * kDeep, 0.1f, 2),
                          skip = noise(kAll * kWidth, 2, 4);
  std::vector<float> sums(kWidth, 0), shift(kWidth, 0), mean, rstd;
  for (size_t i = 0; i < w.size(); ++i) sums[i / kDeep] += static_cast<float>(value(w[i]));
  for (size_t c = 0; c < kWidth; ++c) shift[c] = static_cast<float>(c % 7) - 3;
  for (size_t r = 0; r < kAll; ++r) {
    const Rows row(&x[r * kDeep], kDeep);
    mean.push_back(static_cast<float>(row.mean));
    rstd.push_back(static_cast<float>(1 / std::sqrt(row.squares / kDeep + 0.1)));
  }
  std::vector<bf16> sum(skip.size(), bf16{0xffff});
  card.most_late = 100;
  ASSERT_NO_THROW(run_tile(x, kDeep, w, 1,
                           ResidualEpilogue<Identity, true>{
                               .bias = nullptr,
                               .skip = skip.data(),
                               .sum = sum.data(),
                               .row_moments = nullptr,
                               .rows = kAll,
                               .columns = kWidth,
                               .norm = {mean.data(), rstd.data(), sums.data(), shift.data()}}));
  for (size_t r = 0; r < kAll; ++r)
    for (size_t c = 0; c < kWidth; ++c) {
      const double layer = static_cast<double>(rstd[r]) *
                               (product(x, r, w, c, kDeep) -
                                static_cast<double>(mean[r]) * static_cast<double>(sums[c])) +
                           static_cast<double>(shift[c]),
                   expected = layer + value(skip[r * kWidth + c]);
      ASSERT_NEAR(value(sum[r * kWidth + c]), expected,
                  0.004 * (std::abs(layer) + std::abs(expected)) + 1e-3)
          << r << " " << c;
    }
}

template <Act kAct>
void expect_normed(int clusters) {
  constexpr size_t kAll = 200, kWidth = 512, kNext = 512;
  const std::vector<bf16> x = noise(kAll * kWidth, 2, 5, 5),
                          w = noise(kNext * kWidth, 0.05f, 6, 0.02f);
  std::vector<float> sums(kNext, 0), shift;
  for (size_t i = 0; i < w.size(); ++i) sums[i / kWidth] += static_cast<float>(value(w[i]));
  for (const bf16 b : noise(kNext, 1, 7)) shift.push_back(static_cast<float>(value(b)));
  std::vector<RowMoments> row_moments;
  for (size_t t = 0; t < 2; ++t)
    for (size_t r = 0; r < kAll; ++r) {
      const Rows part(&x[r * kWidth + t * kColumns], kColumns);
      row_moments.push_back({static_cast<float>(part.mean), static_cast<float>(part.squares)});
    }
  std::vector<bf16> y(kAll * kNext, bf16{0xffff});
  card.most_late = 100;
  ASSERT_NO_THROW(run_tile(x, kWidth, w, clusters,
                           FoldedNormEpilogue<Activated<kAct>>{.row_moments = row_moments.data(),
                                                               .sums = sums.data(),
                                                               .shift = shift.data(),
                                                               .y = y.data(),
                                                               .rows = kAll,
                                                               .columns = kNext,
                                                               .tiles = 2,
                                                               .part = 0.5f,
                                                               .eps = 0.1f}));
  for (size_t r = 0; r < kAll; ++r) {
    const Rows row(&x[r * kWidth], kWidth);
    const double rstd = 1 / std::sqrt(row.squares / kWidth + 0.1);
    for (size_t c = 0; c < kNext; ++c) {
      double expected =
          rstd * (product(x, r, w, c, kWidth) - row.mean * static_cast<double>(sums[c]));
      expected += static_cast<double>(shift[c]);
      if (kAct == Act::kGelu) expected *= cdf(expected);
      ASSERT_NEAR(value(y[r * kNext + c]), expected, 0.005 * (0.1 + std::abs(expected)))
          << r << " " << c;
    }
  }
}

TEST(EmulatedThrough, ProductsOfNormedRows) { expect_normed<Act::kNone>(1); }
TEST(EmulatedThrough, ProductsOfNormedRowsWithGelu) { expect_normed<Act::kGelu>(2); }

}  // namespace
}  // namespace vitrum::cuda
