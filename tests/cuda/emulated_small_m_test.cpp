// Linear layers of few rows, as the card computes them, without one.
#include <gtest/gtest.h>

#include "tests/support/emulated_tensors.h"
// Written in what is above, for another compiler.
#include "vitrum/cuda/linear/small_m.cuh"

namespace vitrum::cuda {
namespace {

using namespace small_m;

struct Size {
  int rows, depth, splits;
};

template <class Epilogue>
void run(const std::vector<bf16>& x, const Size& size, const std::vector<bf16>& w,
         const Epilogue& epilogue) {
  const int columns = static_cast<int>(w.size()) / size.depth;
  const Args<Epilogue> args{.x = tile_map(x, size.depth, kDepth, kRows),
                            .w = permuted_rows_map(w, size.depth, kDepth, Epilogue::kColumns),
                            .steps = (size.depth + kDepth - 1) / kDepth,
                            .splits = size.splits,
                            .high = (size.rows + kRows - 1) / kRows,
                            .epilogue = epilogue};
  static_assert(sizeof(Shared<Epilogue>) <= emulated::kSharedBytes);
  card.cluster = size.splits;
  card.blocks = args.high * columns / Epilogue::kColumns * card.cluster;
  card.body = [&] { work(args, *reinterpret_cast<Shared<Epilogue>*>(card.shared())); };
  for (card.block = 0; card.block < card.blocks; card.block += card.cluster) card.run(kThreads);
}

double product(const std::vector<bf16>& x, int row, const std::vector<bf16>& w, int column,
               int depth) {
  double sum = 0;
  for (int k = 0; k < depth; ++k)
    sum += value(x[static_cast<size_t>(row * depth + k)]) *
           value(w[static_cast<size_t>(column * depth + k)]);
  return sum;
}

struct Row {
  double mean = 0, squares = 0;  // of deviations
  Row(const bf16* from, int count) {
    for (int i = 0; i < count; ++i) mean += value(from[i]) / count;
    for (int i = 0; i < count; ++i) squares += std::pow(value(from[i]) - mean, 2);
  }
};

// What the kernel before is still about to write.
std::vector<bf16> unwritten(const std::vector<bf16>& x) {
  return std::vector<bf16>(x.size(), bf16{0xffff});
}

// Rows that end within a tile and within a warp's; more steps than stages; a depth that fills no
// step, and slices of different numbers of steps.
template <int kColumns, Act kAct>
void expect_plain(const Size& size) {
  const int columns = 2 * kColumns;
  const std::vector<bf16> made = noise(int64_t{size.rows} * size.depth, 1, 1),
                          w = noise(int64_t{columns} * size.depth, 0.1f, 2),
                          bias = noise(columns, 1, 3);
  for (const uint32_t most_late : {0u, 100u}) {
    std::vector<bf16> x = unwritten(made), y(static_cast<size_t>(size.rows * columns));
    y = unwritten(y);
    card.most_late = most_late, card.previous = [&] { x = made; };
    ASSERT_NO_THROW(
        run(x, size, w,
            BiasActEpilogue<kColumns, kAct>{
                .bias = bias.data(), .y = y.data(), .rows = size.rows, .columns = columns}));
    for (int r = 0; r < size.rows; ++r)
      for (int c = 0; c < columns; ++c) {
        const double sum = product(made, r, w, c, size.depth) + value(bias[static_cast<size_t>(c)]);
        const double expected = kAct == Act::kGelu ? sum * cdf(sum) : sum;
        ASSERT_NEAR(value(y[static_cast<size_t>(r * columns + c)]), expected,
                    0.008 * (1 + std::abs(expected)))
            << r << " " << c;
      }
  }
}

TEST(EmulatedFew, LinearLayers) {
  expect_plain<96, Act::kNone>({.rows = 69, .depth = 72, .splits = 1});
  expect_plain<96, Act::kGelu>({.rows = 1, .depth = 600, .splits = 1});
  expect_plain<128, Act::kNone>({.rows = 64, .depth = 264, .splits = 1});
}

TEST(EmulatedFew, LinearLayersInSlices) {
  expect_plain<96, Act::kNone>({.rows = 63, .depth = 576, .splits = 2});
  expect_plain<96, Act::kGelu>({.rows = 65, .depth = 520, .splits = 4});
  expect_plain<128, Act::kNone>({.rows = 75, .depth = 1400, .splits = 4});
}

template <int kColumns>
void expect_summed(const Size& size) {
  const int columns = 2 * kColumns;
  const std::vector<bf16> made = noise(int64_t{size.rows} * size.depth, 1, 1),
                          w = noise(int64_t{columns} * size.depth, 0.2f, 2),
                          bias = noise(columns, 1, 3),
                          skipped = noise(int64_t{size.rows} * columns, 2, 4, 5);
  std::vector<bf16> x = unwritten(made), skip = unwritten(skipped), sum = skip;
  std::vector<RowMoments> row_moments(static_cast<size_t>(2 * size.rows), RowMoments{NAN, NAN});
  card.most_late = 50, card.previous = [&] { x = made, skip = skipped; };
  ASSERT_NO_THROW(run(x, size, w,
                      ResidualEpilogue<kColumns>{.bias = bias.data(),
                                                 .skip = skip.data(),
                                                 .sum = sum.data(),
                                                 .row_moments = row_moments.data(),
                                                 .rows = size.rows,
                                                 .columns = columns}));
  for (int r = 0; r < size.rows; ++r) {
    for (int c = 0; c < columns; ++c) {
      const auto at = static_cast<size_t>(r * columns + c);
      // Rounded as the layer's result, then as the sum.
      const double layer = product(made, r, w, c, size.depth) + value(bias[static_cast<size_t>(c)]),
                   expected = layer + value(skip[at]);
      ASSERT_NEAR(value(sum[at]), expected, 0.004 * (std::abs(layer) + std::abs(expected)));
    }
    for (int t = 0; t < 2; ++t) {
      const Row expected(&sum[static_cast<size_t>(r * columns + t * kColumns)], kColumns);
      const RowMoments& got = row_moments[static_cast<size_t>(t * size.rows + r)];
      ASSERT_NEAR(got.mean, expected.mean, 1e-5);
      ASSERT_NEAR(got.squares, expected.squares, 1e-5 * expected.squares);
    }
  }
}

TEST(EmulatedFew, SumsKnowTheirSpread) {
  expect_summed<96>({.rows = 70, .depth = 72, .splits = 1});
  expect_summed<96>({.rows = 70, .depth = 320, .splits = 4});
  expect_summed<96>({.rows = 62, .depth = 320, .splits = 3});
  expect_summed<128>({.rows = 33, .depth = 136, .splits = 2});
}

// The rows' norm from `tiles` spreads, of columns other than those of a tile here.
template <int kColumns, Act kAct>
void expect_normed(const Size& size, int tiles) {
  const int columns = 2 * kColumns, wide = size.depth / tiles;
  const std::vector<bf16> made = noise(int64_t{size.rows} * size.depth, 2, 5, 5),
                          w = noise(int64_t{columns} * size.depth, 0.05f, 6, 0.02f);
  std::vector<float> sums(static_cast<size_t>(columns), 0), shift;
  for (size_t i = 0; i < w.size(); ++i)
    sums[i / static_cast<size_t>(size.depth)] += static_cast<float>(value(w[i]));
  for (const bf16 b : noise(columns, 1, 7)) shift.push_back(static_cast<float>(value(b)));
  std::vector<RowMoments> parts, row_moments;
  for (int t = 0; t < tiles; ++t)
    for (int r = 0; r < size.rows; ++r) {
      const Row part(&made[static_cast<size_t>(r * size.depth + t * wide)], wide);
      parts.push_back({static_cast<float>(part.mean), static_cast<float>(part.squares)});
    }
  row_moments.assign(parts.size(), RowMoments{NAN, NAN});
  std::vector<bf16> x = unwritten(made), y(static_cast<size_t>(size.rows * columns));
  y = unwritten(y);
  card.most_late = 50;
  card.previous = [&] { x = made, std::copy(parts.begin(), parts.end(), row_moments.begin()); };
  ASSERT_NO_THROW(run(x, size, w,
                      FoldedNormEpilogue<kColumns, kAct>{.row_moments = row_moments.data(),
                                                         .sums = sums.data(),
                                                         .shift = shift.data(),
                                                         .y = y.data(),
                                                         .rows = size.rows,
                                                         .columns = columns,
                                                         .tiles = tiles,
                                                         .wide = static_cast<float>(wide),
                                                         .eps = 0.1f}));
  for (int r = 0; r < size.rows; ++r) {
    const Row row(&made[static_cast<size_t>(r * size.depth)], size.depth);
    const double rstd = 1 / std::sqrt(row.squares / size.depth + 0.1);
    for (int c = 0; c < columns; ++c) {
      const auto column = static_cast<size_t>(c);
      double expected = rstd * (product(made, r, w, c, size.depth) -
                                row.mean * static_cast<double>(sums[column]));
      expected += static_cast<double>(shift[column]);
      if (kAct == Act::kGelu) expected *= cdf(expected);
      ASSERT_NEAR(value(y[static_cast<size_t>(r * columns + c)]), expected,
                  0.005 * (0.1 + std::abs(expected)))
          << r << " " << c;
    }
  }
}

TEST(EmulatedFew, ProductsOfNormedRows) {
  expect_normed<96, Act::kNone>({.rows = 70, .depth = 384, .splits = 1}, 3);
  expect_normed<96, Act::kGelu>({.rows = 65, .depth = 480, .splits = 2}, 5);
  expect_normed<128, Act::kGelu>({.rows = 9, .depth = 1536, .splits = 1}, 16);
}

}  // namespace
}  // namespace vitrum::cuda
