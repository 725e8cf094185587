// Layers of e4m3 as the card computes them, without one: many rows and few, and every end that they
// have.
#include "tests/support/emulated_e4m3.h"

#include <gtest/gtest.h>
// Written in what is above, for another compiler.
#include "vitrum/cuda/linear/e4m3.cuh"

namespace vitrum::cuda::e4m3 {
namespace {

struct Size {
  int rows, depth, columns, splits = 1;
};

// A layer, and what it is beside. Two bytes are one number of a tensor map.
struct Layer {
  Size size;
  std::vector<bf16> x, w;  // bytes in pairs
  std::vector<float> scale, bias;
  std::vector<bf16> skip;

  explicit Layer(const Size& s) : size(s) {
    x = bytes(s.rows * s.depth, 1), w = bytes(s.columns * s.depth, 2);
    PhiloxStream draw(7, 3, 0);
    for (int i = 0; i < s.columns; ++i) {
      scale.push_back(0.002f * static_cast<float>(1 + draw.uniform()));
      bias.push_back(static_cast<float>(draw.normal()));
    }
    skip = noise(int64_t{s.rows} * s.columns, 2, 4);
  }
  static std::vector<bf16> bytes(int count, uint32_t stream) {
    PhiloxStream draw(7, stream, 0);
    std::vector<bf16> pairs(static_cast<size_t>(count / 2));
    for (bf16& pair : pairs) {
      const auto one = [&] { return to_e4m3(static_cast<float>(3 * draw.normal())); };
      pair = {static_cast<uint16_t>(one() | one() << 8)};
    }
    return pairs;
  }
  static double number(const std::vector<bf16>& bytes, int i) {
    const uint16_t pair = bytes[static_cast<size_t>(i / 2)].bits;
    return from_e4m3(static_cast<uint8_t>(pair >> 8 * (i % 2)));
  }
  // Before it is rounded.
  double result(int row, int column) const {
    double sum = 0;
    for (int k = 0; k < size.depth; ++k)
      sum += number(x, row * size.depth + k) * number(w, column * size.depth + k);
    const auto c = static_cast<size_t>(column);
    return sum * static_cast<double>(scale[c]) + static_cast<double>(bias[c]);
  }
  Scales scales() const {
    return {.scale = scale.data(),
            .bias = bias.data(),
            .rows = size.rows,
            .first = 0,
            .columns = size.columns};
  }
};

template <class Args, class Memory, class Work>
void launch(const Args& args, int cluster, int blocks, int threads, Memory*, const Work& work) {
  static_assert(sizeof(Memory) <= emulated::kSharedBytes);
  card.cluster = cluster, card.blocks = blocks;
  card.body = [&] { work(args, *reinterpret_cast<Memory*>(card.shared())); };
  for (card.block = 0; card.block < blocks; card.block += cluster) card.run(threads);
}

template <class End>
void run_tiles(const Layer& layer, const End& end, int clusters) {
  using Epilogue = TileEpilogue<End>;
  const auto& [rows, depth, columns, splits] = layer.size;
  const int pairs = depth / 2;
  const tile::Args<Epilogue> args{
      .x = tile_map(layer.x, pairs, tile::kDepth, tile::kRows),
      .w = permuted_rows_map(layer.w, pairs, tile::kDepth, tile::kShare),
      .columns = columns,
      .steps = (pairs + tile::kDepth - 1) / tile::kDepth,
      .tiles = (rows + 255) / 256 * ((columns + 255) / 256),
      .epilogue = {.of = layer.scales(), .end = end}};
  launch(args, tile::kCluster, clusters * tile::kCluster, tile::kThreads,
         static_cast<tile::Shared<Epilogue>*>(nullptr),
         [](const auto& g, auto& s) { tile::work(g, s); });
}

template <class End>
void run_few(const Layer& layer, const End& end) {
  using Epilogue = FewEpilogue<End>;
  const auto& [rows, depth, columns, splits] = layer.size;
  const int pairs = depth / 2;
  const small_m::Args<Epilogue> args{
      .x = tile_map(layer.x, pairs, small_m::kDepth, small_m::kRows),
      .w = permuted_rows_map(layer.w, pairs, small_m::kDepth, Epilogue::kColumns),
      .steps = (pairs + small_m::kDepth - 1) / small_m::kDepth,
      .splits = splits,
      .high = (rows + small_m::kRows - 1) / small_m::kRows,
      .epilogue = {.of = layer.scales(), .end = end}};
  launch(args, splits, args.high * columns / Epilogue::kColumns * splits, small_m::kThreads,
         static_cast<small_m::Shared<Epilogue>*>(nullptr),
         [](const auto& g, auto& s) { small_m::work(g, s); });
}

// run(layer, end) for each End; rows behind the last one, and what lies behind them, stay.
template <class Run>
void expect_all_ends(const Layer& layer, const Run& run) {
  const auto& [rows, depth, columns, splits] = layer.size;
  const auto count = static_cast<size_t>(rows * columns), room = count + 64;
  std::vector<bf16> y(room, bf16{0x7f7f}), sum = y;
  std::vector<uint8_t> rounded(room, 0x55);
  std::vector<float> gamma;
  for (int c = 0; c < columns; ++c) gamma.push_back(0.1f * static_cast<float>(c % 7));
  constexpr float kInverse = 8;
  ASSERT_NO_THROW(run(layer, ToRows{.y = y.data(), .columns = columns}));
  ASSERT_NO_THROW(run(
      layer, ActToE4M3<Act::kGelu>{.y = rounded.data(), .columns = columns, .inverse = kInverse}));
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < columns; ++c) {
      const auto at = static_cast<size_t>(r * columns + c);
      const double expected = layer.result(r, c);
      ASSERT_NEAR(value(y[at]), expected, 0.004 * (0.1 + std::abs(expected))) << r << " " << c;
      const double active = expected * cdf(expected);
      ASSERT_NEAR(static_cast<double>(from_e4m3(rounded[at]) / kInverse), active,
                  0.075 * std::abs(active) + 0x1p-9 / kInverse)
          << r << " " << c;
    }
  for (const float* scaled : {static_cast<const float*>(nullptr), std::as_const(gamma).data()}) {
    ASSERT_NO_THROW(run(layer, ToSum{.skip = layer.skip.data(),
                                     .sum = sum.data(),
                                     .gamma = scaled,
                                     .rows = rows,
                                     .columns = columns}));
    for (int r = 0; r < rows; ++r)
      for (int c = 0; c < columns; ++c) {
        const auto at = static_cast<size_t>(r * columns + c);
        double branch = value(y[at]);
        if (scaled) branch = from_bf16(to_bf16(static_cast<float>(branch) * scaled[c]));
        const double expected = branch + value(layer.skip[at]);
        ASSERT_EQ(sum[at].bits, to_bf16(static_cast<float>(expected))) << r << " " << c;
      }
  }
  for (size_t i = count; i < room; ++i) {
    ASSERT_EQ(y[i].bits, 0x7f7f);
    ASSERT_EQ(sum[i].bits, 0x7f7f);
    ASSERT_EQ(rounded[i], 0x55);
  }
}

// Rows that end within a tile, a depth that fills no stage and more stages than there are, columns
// that end in the first and in the second block's share of the last tile; more tiles than clusters.
TEST(EmulatedE4M3, ManyRows) {
  for (const auto& [size, most_late] :
       {std::pair{Size{140, 96, 352}, 100u}, {Size{20, 672, 448}, 0u}}) {
    card.most_late = most_late;
    expect_all_ends(Layer(size),
                    [](const Layer& layer, const auto& end) { run_tiles(layer, end, 1); });
  }
}

TEST(EmulatedE4M3, FewRows) {
  for (const auto& [size, most_late] : {std::pair{Size{69, 96, 256}, 0u},
                                        {Size{1, 672, 128}, 100u},
                                        {Size{63, 1184, 128, 2}, 100u},
                                        {Size{9, 896, 256, 3}, 0u},
                                        {Size{5, 1312, 128, 4}, 100u}}) {
    card.most_late = most_late;
    expect_all_ends(Layer(size), [](const Layer& layer, const auto& end) { run_few(layer, end); });
  }
}

// A part of a wider layer.
TEST(EmulatedE4M3, ColumnsFromTheMiddleOn) {
  const Layer whole({70, 128, 512});
  Layer part = whole;
  part.size.columns = 256;
  part.w.erase(part.w.begin(), part.w.begin() + 256 * 64);
  std::vector<bf16> y(70 * 512, bf16{0x7f7f});
  using Epilogue = TileEpilogue<ToRows>;
  const tile::Args<Epilogue> args{.x = tile_map(part.x, 64, tile::kDepth, tile::kRows),
                                  .w = permuted_rows_map(part.w, 64, tile::kDepth, tile::kShare),
                                  .columns = 256,
                                  .steps = 1,
                                  .tiles = 1,
                                  .epilogue = {.of = {.scale = whole.scale.data(),
                                                      .bias = nullptr,
                                                      .rows = 70,
                                                      .first = 256,
                                                      .columns = 256},
                                               .end = {.y = y.data(), .columns = 512}}};
  ASSERT_NO_THROW(launch(args, tile::kCluster, tile::kCluster, tile::kThreads,
                         static_cast<tile::Shared<Epilogue>*>(nullptr),
                         [](const auto& g, auto& s) { tile::work(g, s); }));
  for (int r = 0; r < 70; ++r)
    for (int c = 0; c < 512; ++c) {
      const auto at = static_cast<size_t>(r * 512 + c);
      if (c < 256) {
        ASSERT_EQ(y[at].bits, 0x7f7f);
        continue;
      }
      const double expected =
          whole.result(r, c) - static_cast<double>(whole.bias[static_cast<size_t>(c)]);
      ASSERT_NEAR(value(y[at]), expected, 0.004 * (0.1 + std::abs(expected)));
    }
}

// Every number of f16: within what rounding to e4m3 takes, and a hundredth.
TEST(EmulatedE4M3, GeluInF16IsFineEnough) {
  for (const float inverse : {0x1p-7f, 0.25f, 1.0f, 8.0f, 0x1p10f}) {
    ASSERT_TRUE(gelu_fits_f16(inverse));
    for (int bits = 0; bits < 0xfc00; ++bits) {
      if ((bits & 0x7fff) >= 0x7c00) continue;
      const float x = number_of_f16(static_cast<uint16_t>(bits));
      if (std::abs(x * inverse) > 448) continue;
      const double exact = static_cast<double>(x) * cdf(x);
      ASSERT_NEAR(static_cast<double>(from_e4m3(gelu_to_e4m3(x, inverse)) / inverse), exact,
                  0.073 * std::abs(exact) + 0x1.1p-10 / inverse)
          << x << " times " << inverse;
    }
  }
  EXPECT_FALSE(gelu_fits_f16(0x1p-8f));
  EXPECT_FALSE(gelu_fits_f16(0x1p11f));
  EXPECT_EQ(gelu_to_e4m3(1e9f, 1) & 0x7f, 0x7e);
}

}  // namespace
}  // namespace vitrum::cuda::e4m3
