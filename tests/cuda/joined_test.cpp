// Nodes that the CUDA backend computes together, against the same nodes one by one.
#include <gtest/gtest.h>

#include "tests/support/cuda_chain.h"

namespace vitrum::test {
namespace {

// Width, type, and which nodes there are round the norm.
class CudaJoined : public ::testing::TestWithParam<std::tuple<int64_t, DType, int>> {
 protected:
  void SetUp() override { SKIP_WITHOUT_CUDA(); }
  bool has(int bit) const { return (std::get<2>(GetParam()) & bit) != 0; }
  static constexpr int kBefore = 1, kScale = 2, kDrop = 4, kAfter = 8;
  int64_t width() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  Shape shape() const { return {kImages, kTokens, width()}; }
  Shape channels() const { return {width()}; }
  Shape rows() const { return {kImages * kTokens}; }
  bool can_join() const { return width() <= 1024; }
};

TEST_P(CudaJoined, ForwardGivesTheSameBits) {
  Card card;
  Chain chain(card);
  const auto given = [&](const Shape& s, DType d) { return chain.value(card.noise(s, d)); };
  const size_t x = given(shape(), dtype()), w = given(channels(), DType::kF32),
               bias = given(channels(), DType::kF32);
  size_t branch = given(shape(), dtype());
  const auto through = [&](Op op, std::vector<size_t> in) {
    in.insert(in.begin(), branch);
    branch = chain.result(shape(), dtype(), /*inside=*/true);
    chain.add(std::move(op), in, {branch});
  };
  if (has(kBefore)) through(another_order(kTokens, width()), {});
  if (has(kScale)) through(ChannelScale{}, {given(channels(), DType::kF32)});
  if (has(kDrop)) through(DropPath{0.4f, 9}, {chain.value(card.rng())});
  const size_t sum = chain.result(shape(), dtype(), false),
               y = chain.result(shape(), dtype(), has(kAfter)),
               mean = chain.result(rows(), DType::kF32, false),
               rstd = chain.result(rows(), DType::kF32, false);
  chain.add(AddLayerNorm{1e-5f}, {x, branch, w, bias}, {sum, y, mean, rstd}, /*operand=*/1);
  size_t last = y;
  if (has(kAfter)) {
    last = chain.result(shape(), dtype(), false);
    chain.add(another_order(kTokens, width()), {y}, {last}, 0, /*result=*/1);
  }
  ASSERT_EQ(chain.joins(), chain.size() == 1 || can_join());
  if (!chain.joins()) return;
  chain.run_apart(), chain.run_joined();
  for (size_t id : {sum, mean, rstd, last}) EXPECT_EQ(chain.joined(id), chain.apart(id)) << id;
}

TEST_P(CudaJoined, NormWithoutASumGivesTheSameBits) {
  if (std::get<2>(GetParam()) != kAfter) return;
  Card card;
  Chain chain(card);
  const size_t x = chain.value(card.noise(shape(), dtype())),
               w = chain.value(card.noise(channels(), DType::kF32)),
               y = chain.result(shape(), dtype(), true),
               mean = chain.result(rows(), DType::kF32, false),
               rstd = chain.result(rows(), DType::kF32, false),
               last = chain.result(shape(), dtype(), false);
  chain.add(LayerNorm{1e-5f}, {x, w}, {y, mean, rstd});
  chain.add(another_order(kTokens, width()), {y}, {last});
  ASSERT_EQ(chain.joins(), can_join());
  if (!chain.joins()) return;
  chain.run_apart(), chain.run_joined();
  for (size_t id : {mean, rstd, last}) EXPECT_EQ(chain.joined(id), chain.apart(id)) << id;
}

TEST_P(CudaJoined, BackwardGivesTheSameBits) {
  Card card;
  Chain chain(card);
  const auto given = [&](const Shape& s, DType d) { return chain.value(card.noise(s, d)); };
  size_t dy = given(shape(), dtype());
  if (has(kBefore)) {
    const size_t ordered = chain.result(shape(), dtype(), true);
    chain.add(another_order(kTokens, width()), {dy}, {ordered});
    dy = ordered;
  }
  const bool behind = has(kDrop) || has(kScale) || has(kAfter);
  const size_t dx = chain.result(shape(), dtype(), false), dw = chain.sum(channels()),
               dbias = chain.sum(channels()), dgamma = chain.sum(channels());
  chain.add(LayerNormBwd{},
            {dy, given(shape(), dtype()), given(channels(), DType::kF32),
             given(rows(), DType::kF32), given(rows(), DType::kF32), given(shape(), dtype())},
            {dx, dw, dbias});
  size_t last = dx;
  const auto through = [&](Op op, std::vector<size_t> in, int later, std::vector<size_t> out = {}) {
    in.insert(in.begin(), last);
    const bool first = last == dx;
    last = chain.result(shape(), dtype(), /*inside=*/has(later));
    out.insert(out.begin(), last);
    chain.add(std::move(op), in, out, 0, 0, /*only=*/!first);
  };
  if (has(kDrop)) through(DropPath{0.4f, 9}, {chain.value(card.rng())}, kScale | kAfter);
  if (has(kScale))
    through(ChannelScaleBwd{}, {given(shape(), dtype()), given(channels(), DType::kF32)}, kAfter,
            {dgamma});
  if (has(kAfter)) through(another_order(kTokens, width()), {}, 0);
  ASSERT_EQ(chain.joins(), chain.size() == 1 || can_join());
  if (!chain.joins()) return;
  ASSERT_EQ(chain.adds_columns(), width() <= 1024);
  const TensorView columns = card.noise(channels(), DType::kF32);
  const std::vector<float> before = card.read(columns);
  chain.run_apart(), chain.run_joined(columns);
  EXPECT_EQ(chain.joined(dx), chain.apart(dx));
  if (behind) {
    EXPECT_EQ(chain.joined(last), chain.apart(last));
  }
  for (size_t id : {dw, dbias, dgamma}) expect_near(chain.joined(id), chain.apart(id));
  expect_near(card.read(columns), plus_columns(before, chain.apart(last)));
}

INSTANTIATE_TEST_SUITE_P(Grid, CudaJoined,
                         ::testing::Combine(::testing::Values(64, 96, 256, 384, 768, 1280),
                                            ::testing::Values(DType::kF32, DType::kBF16),
                                            ::testing::Values(0, 1, 2, 4, 6, 8, 5, 13, 12, 15)));

// Where a residual branch ends: the two gradients of its sum meet, and go through the ReLU.
TEST(Cuda, GradientsThatMeetBeforeABatchNormGiveTheSameBits) {
  SKIP_WITHOUT_CUDA();
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t width : {5, 24, 256}) {
      Card card;
      Chain chain(card);
      const Shape x{kImages, 5, 7, width}, channels{width};
      const auto given = [&](const Shape& s, DType d, float mean = 0) {
        return chain.value(card.noise(s, d, mean));
      };
      const size_t sum = chain.result(x, dtype, /*inside=*/true),
                   dx = chain.result(x, dtype, false), dskip = chain.result(x, dtype, false),
                   dw = chain.sum(channels), dbias = chain.sum(channels);
      chain.add(Add{}, {given(x, dtype), given(x, dtype)}, {sum});
      chain.add(BatchNormBwd{.eps = 1e-5f, .act = Act::kRelu},
                {sum, given(x, dtype), given(channels, DType::kF32), given(channels, DType::kF32),
                 given(channels, DType::kF32, 20), given(x, dtype)},
                {dx, dw, dbias, dskip});
      ASSERT_TRUE(chain.joins());
      chain.run_apart(), chain.run_joined();
      for (size_t id : {dx, dskip, dw, dbias}) EXPECT_EQ(chain.joined(id), chain.apart(id)) << id;
    }
}

// The running statistics move where the batch's are found.
TEST(Cuda, BatchNormMovesRunningStatisticsToTheSameBits) {
  SKIP_WITHOUT_CUDA();
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t width : {5, 24, 256})
      for (const bool weighted : {false, true}) {
        Card card;
        Chain chain(card);
        const Shape x{kImages, 5, 7, width}, channels{width};
        const auto given = [&](const Shape& s, DType d, float mean = 0) {
          return chain.value(card.noise(s, d, mean));
        };
        const size_t y = chain.result(x, dtype, false),
                     mean = chain.result(channels, DType::kF32, false),
                     var = chain.result(channels, DType::kF32, false),
                     running_mean = chain.sum(channels), running_var = chain.sum(channels),
                     weight = weighted ? given({kImages}, DType::kF32) : chain.value({});
        chain.add(BatchNorm{.eps = 1e-5f, .act = Act::kRelu},
                  {given(x, dtype), given(channels, DType::kF32), given(channels, DType::kF32),
                   weight, chain.value({})},
                  {y, mean, var});
        chain.add(RunningStats{.momentum = 0.1f, .samples = kImages, .positions = 35},
                  {mean, var, weight}, {running_mean, running_var}, RunningStats::kMean,
                  BatchNorm::kMean, /*only=*/false);
        ASSERT_TRUE(chain.joins());
        chain.run_apart(), chain.run_joined();
        for (size_t id : {y, mean, var, running_mean, running_var})
          EXPECT_EQ(chain.joined(id), chain.apart(id)) << id;
      }
}

// A convolution leaves the sums of what it stores, in another order than a pass over it adds them.
TEST(Cuda, ConvolutionsFindTheStatisticsOfTheirBatchNorm) {
  SKIP_WITHOUT_CUDA();
  SKIP_WITHOUT_HOPPER();
  struct Size {
    int64_t images, side, channels, out, kernel, stride;
  };
  for (const Size& s : {Size{150, 16, 64, 64, 3, 1},
                        {130, 13, 96, 160, 3, 2},
                        {300, 8, 64, 256, 3, 1},
                        {520, 7, 128, 512, 3, 1},
                        {200, 14, 64, 128, 1, 2},
                        {150, 13, 72, 256, 1, 1},
                        {50, 14, 256, 1024, 1, 1}})
    for (const bool weighted : {false, true})
      for (const bool alone : {false, true}) {  // no running statistics, nobody else reads
        SCOPED_TRACE(std::to_string(s.out) + (weighted ? " weighted" : "") +
                     (alone ? " alone" : ""));
        Card card;
        Chain chain(card);
        const int64_t after = (s.side - 1) / s.stride + 1;
        const Shape y{s.images, after, after, s.out}, channels{s.out};
        const auto given = [&](const Shape& shape, DType d, float mean = 0) {
          return chain.value(card.noise(shape, d, mean));
        };
        const size_t none = chain.value({}),
                     weight = weighted ? given({s.images}, DType::kF32) : none,
                     product = chain.result(y, DType::kBF16, alone),
                     normed = chain.result(y, DType::kBF16, false),
                     mean = chain.result(channels, DType::kF32, false),
                     var = chain.result(channels, DType::kF32, false),
                     running_mean = chain.sum(channels), running_var = chain.sum(channels);
        chain.add(Conv2d{.stride = s.stride, .padding = s.kernel / 2},
                  {given({s.images, s.side, s.side, s.channels}, DType::kBF16, 1),
                   given({s.out, s.channels, s.kernel, s.kernel}, DType::kBF16), none, none, none,
                   none, none},
                  {product});
        chain.add(BatchNorm{.eps = 1e-5f, .act = Act::kRelu},
                  {product, given(channels, DType::kF32), given(channels, DType::kF32), weight,
                   given(y, DType::kBF16)},
                  {normed, mean, var}, 0, 0, alone);
        if (!alone)
          chain.add(RunningStats{.momentum = 0.1f, .samples = s.images, .positions = after * after},
                    {mean, var, weight}, {running_mean, running_var}, RunningStats::kMean,
                    BatchNorm::kMean, /*only=*/false);
        ASSERT_TRUE(chain.joins());
        chain.run_apart(), chain.run_joined();
        if (!alone) {
          EXPECT_EQ(chain.joined(product), chain.apart(product));
        }
        expect_near(chain.joined(mean), chain.apart(mean));
        expect_near(chain.joined(var), chain.apart(var));
        expect_alike(chain.joined(normed), chain.apart(normed));
        if (alone) continue;
        expect_near(chain.joined(running_mean), chain.apart(running_mean));
        expect_near(chain.joined(running_var), chain.apart(running_var));
        const std::vector<float> once = chain.joined(normed);
        chain.run_joined();
        EXPECT_EQ(chain.joined(normed), once);
      }
}

// The gradients of queries, keys and values, with their bias' gradient in passing.
TEST(Cuda, AttentionAddsUpColumns) {
  SKIP_WITHOUT_CUDA();
  struct Size {
    int64_t images, tokens, heads, size;
    bool biased;
  };
  for (const Size& s : {Size{9, 65, 4, 64, false},
                        {90, 65, 12, 64, false},
                        {60, 64, 12, 64, false},
                        {100, 50, 12, 64, false},
                        {70, 49, 3, 32, true},
                        {40, 16, 2, 24, false},
                        {5, 50, 1, 64, true},
                        {300, 33, 2, 32, false},
                        {3, 197, 2, 64, false},
                        {23, 197, 12, 64, false},
                        {30, 208, 5, 64, false},
                        {45, 145, 3, 64, false},
                        {70, 130, 3, 64, false},
                        {140, 96, 1, 64, false},
                        {12, 577, 12, 64, false},
                        {27, 257, 5, 64, false}}) {
    Card card;
    Chain chain(card);
    const int64_t width = s.heads * s.size;
    const Shape qkv{s.images, s.tokens, 3 * width}, y{s.images, s.tokens, width},
        square{s.heads, s.tokens, s.tokens};
    const auto given = [&](const Shape& shape, DType d) {
      return chain.value(card.noise(shape, d));
    };
    const size_t in = given(qkv, DType::kBF16), none = chain.value({}),
                 bias = s.biased ? given(square, DType::kF32) : none,
                 out = chain.result(y, DType::kBF16, false),
                 lse = chain.result({s.images, s.heads, s.tokens}, DType::kF32, false);
    chain.add(Attention{s.heads}, {in, none, bias}, {out, lse});
    chain.run_apart();
    Chain back(card);
    const auto shared = [&](size_t id) { return back.value(chain.view(id)); };
    const size_t dqkv = back.result(qkv, DType::kBF16, false), nothing = back.value({}),
                 dbias = s.biased ? back.result(square, DType::kF32, false) : nothing;
    back.add(AttentionBwd{.heads = s.heads},
             {back.value(card.noise(y, DType::kBF16)), shared(in), shared(out), shared(lse),
              nothing, shared(bias)},
             {dqkv, dbias});
    const TensorView columns = card.noise({3 * width}, DType::kF32);
    const std::vector<float> before = card.read(columns);
    back.run_joined(columns);
    const std::vector<float> got = card.read(columns),
                             expected = plus_columns(before, back.joined(dqkv));
    expect_near(got, expected);
  }
}

}  // namespace
}  // namespace vitrum::test
