// Linear layers that the CUDA backend computes together with what lies round them, against the same
// nodes one by one.
#include <gtest/gtest.h>

#include "tests/support/cuda_chain.h"

namespace vitrum::test {
namespace {

// A linear layer before the branch. Width, depth and what lies round the norm.
class CudaLinearNorm : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, int>> {
 protected:
  void SetUp() override { SKIP_WITHOUT_CUDA(); }
  bool has(int bit) const { return (std::get<2>(GetParam()) & bit) != 0; }
  static constexpr int kBias = 1, kScale = 2, kDrop = 4, kAfter = 8;
};

TEST_P(CudaLinearNorm, GivesTheSame) {
  const int64_t width = std::get<0>(GetParam()), depth = std::get<1>(GetParam());
  // No multiple of a tile. Wide rows have their kernel where they keep the whole card busy.
  const int64_t images = width > 256 ? 1407 * 1024 / width : 687;
  const Shape shape{images, kTokens, width}, channels{width}, rows{images * kTokens};
  Card card;
  Chain chain(card);
  const auto given = [&](const Shape& s, DType d) { return chain.value(card.noise(s, d)); };
  const size_t none = chain.value({}), x = given(shape, DType::kBF16),
               w = given(channels, DType::kF32),
               shift = has(kBias) ? given(channels, DType::kF32) : none;
  size_t branch = chain.result(shape, DType::kBF16, /*inside=*/true);
  chain.add(Linear{},
            {given({images, kTokens, depth}, DType::kBF16), given({width, depth}, DType::kBF16),
             has(kBias) ? given(channels, DType::kBF16) : none},
            {branch});
  const auto through = [&](Op op, size_t in) {
    const size_t next = chain.result(shape, DType::kBF16, /*inside=*/true);
    chain.add(std::move(op), {branch, in}, {next});
    branch = next;
  };
  if (has(kScale)) through(ChannelScale{}, given(channels, DType::kF32));
  if (has(kDrop)) through(DropPath{0.4f, 9}, chain.value(card.rng()));
  const size_t sum = chain.result(shape, DType::kBF16, false),
               y = chain.result(shape, DType::kBF16, has(kAfter)),
               mean = chain.result(rows, DType::kF32, false),
               rstd = chain.result(rows, DType::kF32, false);
  chain.add(AddLayerNorm{1e-5f}, {x, branch, w, shift}, {sum, y, mean, rstd}, /*operand=*/1);
  size_t last = y;
  if (has(kAfter)) {
    last = chain.result(shape, DType::kBF16, false);
    chain.add(another_order(kTokens, width), {y}, {last}, 0, /*result=*/1);
  }
  SKIP_WITHOUT_HOPPER();
  ASSERT_TRUE(chain.joins());
  chain.run_apart(), chain.run_joined();
  for (size_t id : {sum, mean, rstd, last}) expect_alike(chain.joined(id), chain.apart(id));
}

INSTANTIATE_TEST_SUITE_P(Grid, CudaLinearNorm,
                         ::testing::Combine(::testing::Values(192, 256),
                                            ::testing::Values(72, 256, 1024),
                                            ::testing::Values(0, 1, 3, 5, 7, 8, 15)));
INSTANTIATE_TEST_SUITE_P(Wide, CudaLinearNorm,
                         ::testing::Combine(::testing::Values(512, 768, 1024),
                                            ::testing::Values(72, 768),
                                            ::testing::Values(0, 1, 3, 5, 15)));

// A layer's residual sum through a norm into the next layer. A norm far from the plain one, rows
// with a mean as large as their deviation and of different sizes, tiles that rows and depth do not
// fill.
struct ThroughNorm {
  int64_t rows, depth, width, columns;
  Act act = Act::kNone;
  bool biased = true, behind_norm = false;

  Chain chain(Card& card, bool statistics = false, bool only = true) const {
    Chain chain(card);
    const auto given = [&](const Shape& s, DType d, float mean = 0) {
      return chain.value(card.noise(s, d, mean));
    };
    const auto narrow = [&](const Shape& s, float mean = 0) {
      return given(s, DType::kBF16, mean);
    };
    const Shape inner{rows, width}, channels{width};
    const size_t none = chain.value({}), x = narrow({rows, depth}), skip = narrow(inner, 20),
                 branch = chain.result(inner, DType::kBF16, /*inside=*/true),
                 sum = chain.result(inner, DType::kBF16, false),
                 normed = chain.result(inner, DType::kBF16, /*inside=*/true),
                 y = chain.result({rows, columns}, DType::kBF16, false),
                 mean = statistics ? chain.result({rows}, DType::kF32, false) : none;
    size_t rows_in = x;
    if (behind_norm) {
      const Shape deep{depth};
      rows_in = chain.result({rows, depth}, DType::kBF16, /*inside=*/true);
      chain.add(LayerNorm{1e-5f},
                {x, given(deep, DType::kF32, 1), biased ? given(deep, DType::kF32) : none},
                {rows_in, none, none});
    }
    chain.add(Linear{},
              {rows_in, narrow({width, depth}), biased ? narrow(channels, 3) : none, none},
              {branch, none});
    chain.add(AddLayerNorm{1e-5f},
              {skip, branch, given(channels, DType::kF32, 1),
               biased ? given(channels, DType::kF32, 1) : none},
              {sum, normed, mean, none}, /*operand=*/1);
    chain.add(Linear{.act = act},
              {normed, narrow({columns, width}, 0.1f), biased ? narrow({columns}) : none, none},
              {y, none}, 0, /*result=*/1, only);
    return chain;
  }
  static constexpr size_t kSum = 4, kY = 6;
};

void expect_through_norm(const ThroughNorm& t) {
  SCOPED_TRACE(std::to_string(t.rows) + " of " + std::to_string(t.depth) + ", " +
               std::to_string(t.width) + " to " + std::to_string(t.columns));
  Card card;
  Chain chain = t.chain(card);
  chain.freeze();
  SKIP_WITHOUT_HOPPER();
  ASSERT_TRUE(chain.joins());
  chain.run_apart(), chain.run_joined();
  expect_alike(chain.joined(t.kSum), chain.apart(t.kSum), t.behind_norm ? 4e-3 : 1e-3);
  // The one rounds the normed rows, the other the weights: of both layers where both have a norm.
  expect_alike(chain.joined(t.kY), chain.apart(t.kY), t.behind_norm ? 8e-3 : 4e-3);
}

TEST(CudaThroughNorm, GivesTheSame) {
  SKIP_WITHOUT_CUDA();
  for (const ThroughNorm& t : {ThroughNorm{22'491, 200, 768, 2304},
                               {22'491, 768, 768, 3072, Act::kGelu},
                               {22'401, 64, 768, 768, Act::kNone, false},
                               {16'895, 136, 1024, 4096, Act::kGelu},
                               {33'700, 72, 512, 512}})
    expect_through_norm(t);
}

// With a norm before the first layer, as EVA-02 has; where there are few rows it stays by itself.
TEST(CudaThroughNorm, GivesTheSameBehindAnotherNorm) {
  SKIP_WITHOUT_CUDA();
  for (const ThroughNorm& t : {ThroughNorm{22'491, 2048, 768, 2304, Act::kNone, true, true},
                               {16'895, 136, 1024, 4096, Act::kGelu, false, true},
                               {33'700, 512, 512, 512, Act::kNone, true, true}})
    expect_through_norm(t);
  Card card;
  Chain few = ThroughNorm{197, 768, 768, 768, Act::kNone, true, true}.chain(card);
  few.freeze();
  EXPECT_FALSE(few.joins());
}

// In tiles of 96 and 128 columns, whole and in slices of the depth.
TEST(CudaThroughNorm, GivesTheSameForFewRows) {
  SKIP_WITHOUT_CUDA();
  for (const ThroughNorm& t : {ThroughNorm{197, 768, 768, 3072, Act::kGelu},
                               {197, 3072, 768, 2304},
                               {394, 1536, 384, 1152},
                               {65, 768, 192, 768, Act::kGelu},
                               {64, 200, 96, 96, Act::kNone, false},
                               {63, 4096, 1024, 3072},
                               {1, 72, 1024, 4096, Act::kGelu}})
    expect_through_norm(t);
}

// Where somebody else wants the norm, where weights may change and between few and many rows, it is
// as it was.
TEST(CudaThroughNorm, IsForInferenceOnly) {
  SKIP_WITHOUT_CUDA();
  Card card;
  const auto joins_frozen = [](Chain chain) {
    chain.freeze();
    return chain.joins();
  };
  for (const ThroughNorm& t : {ThroughNorm{22'491, 64, 768, 768}, {197, 64, 768, 768}}) {
    EXPECT_FALSE(t.chain(card).joins());
    EXPECT_FALSE(joins_frozen(t.chain(card, /*statistics=*/true)));
    EXPECT_FALSE(joins_frozen(t.chain(card, false, /*only=*/false)));
  }
  EXPECT_FALSE(joins_frozen(ThroughNorm{7'000, 64, 768, 768}.chain(card)));
}

// A layer of few rows by itself, where its weights stay; rows, columns and depth that fill no tile.
TEST(Cuda, LinearLayersOfFewRows) {
  SKIP_WITHOUT_CUDA();
  constexpr int64_t kSizes[][3] = {{197, 768, 2304}, {1, 768, 1024}, {63, 1032, 96},
                                   {64, 4096, 128},  {65, 8, 192},   {394, 3072, 768}};
  for (const auto& [rows, depth, columns] : kSizes)
    for (const Act act : {Act::kNone, Act::kGelu}) {
      SCOPED_TRACE(std::to_string(rows) + " of " + std::to_string(depth));
      Card card;
      Chain chain(card);
      const auto given = [&](const Shape& s) { return chain.value(card.noise(s, DType::kBF16)); };
      const size_t none = chain.value({}), bias = act == Act::kNone ? none : given({columns}),
                   y = chain.result({rows, columns}, DType::kBF16, false);
      chain.add(Linear{.act = act}, {given({rows, depth}), given({columns, depth}), bias, none},
                {y, none});
      chain.run_apart(), chain.freeze(), chain.run_joined();
      expect_alike(chain.joined(y), chain.apart(y));
    }
}

// The gradient of a linear layer's input goes to the norm before it. Width, depth and what there
// is.
class CudaLinearNormBwd : public ::testing::TestWithParam<std::tuple<int64_t, int64_t, int>> {
 protected:
  void SetUp() override { SKIP_WITHOUT_CUDA(); }
  bool has(int bit) const { return (std::get<2>(GetParam()) & bit) != 0; }
  static constexpr int kGelu = 1, kBefore = 2, kDrop = 4, kAfter = 8;
};

TEST_P(CudaLinearNormBwd, GivesTheSame) {
  constexpr int64_t kRows = 12 * 687;  // no multiple of a tile
  const int64_t width = std::get<0>(GetParam()), depth = std::get<1>(GetParam());
  const Shape shape{kRows / kTokens, kTokens, width}, deep{kRows / kTokens, kTokens, depth};
  const Shape channels{width}, rows{kRows};
  Card card;
  Chain chain(card);
  const auto given = [&](const Shape& s, DType d) { return chain.value(card.noise(s, d)); };
  const size_t dw = chain.sum({depth, width}), dbias = chain.sum({depth});
  size_t dy = chain.result(shape, DType::kBF16, /*inside=*/true);
  chain.add(
      LinearBwd{.act = has(kGelu) ? Act::kGelu : Act::kNone},
      {given(deep, DType::kBF16), given(shape, DType::kBF16), given({depth, width}, DType::kBF16),
       has(kGelu) ? given(deep, DType::kBF16) : chain.value({})},
      {dy, dw, dbias});
  if (has(kBefore)) {
    const size_t ordered = chain.result(shape, DType::kBF16, true);
    chain.add(another_order(kTokens, width), {dy}, {ordered});
    dy = ordered;
  }
  const size_t dx = chain.result(shape, DType::kBF16, false), dscale = chain.sum(channels),
               dshift = chain.sum(channels);
  chain.add(LayerNormBwd{},
            {dy, given(shape, DType::kBF16), given(channels, DType::kF32), given(rows, DType::kF32),
             given(rows, DType::kF32), given(shape, DType::kBF16)},
            {dx, dscale, dshift});
  size_t last = dx;
  if (has(kDrop)) {
    last = chain.result(shape, DType::kBF16, /*inside=*/has(kAfter));
    chain.add(DropPath{0.4f, 9}, {dx, chain.value(card.rng())}, {last}, 0, 0, /*only=*/false);
  }
  if (has(kAfter)) {
    const size_t ordered = chain.result(shape, DType::kBF16, false);
    chain.add(another_order(kTokens, width), {last}, {ordered}, 0, 0, /*only=*/last != dx);
    last = ordered;
  }
  SKIP_WITHOUT_HOPPER();
  ASSERT_TRUE(chain.joins());
  ASSERT_TRUE(chain.adds_columns());
  const TensorView columns = card.noise(channels, DType::kF32);
  const std::vector<float> before = card.read(columns);
  chain.run_apart(), chain.run_joined(columns);
  for (size_t id : {dx, last, dw, dbias, dscale, dshift})
    expect_alike(chain.joined(id), chain.apart(id));
  expect_near(card.read(columns), plus_columns(before, chain.joined(last)));
}

INSTANTIATE_TEST_SUITE_P(Grid, CudaLinearNormBwd,
                         ::testing::Combine(::testing::Values(96, 192, 256),
                                            ::testing::Values(72, 288, 1024),
                                            ::testing::Values(0, 1, 2, 4, 8, 12, 15)));

// Backward through an MLP: the last rows fill no tile, the depth no stage. The deep kernel does not
// round the gradient in front of GELU's slope: three roundings to bf16, of 1.7e-3 each, then tell
// the two apart, and of dx two more.
TEST(Cuda, GradientThroughGelu) {
  SKIP_WITHOUT_CUDA();
  struct Size {
    int64_t rows, wide, narrow;
    bool biased;
  };
  for (const Size& s : {Size{8'265, 1024, 256, true},
                        {8'265, 1024, 256, false},
                        {9'001, 384, 96, true},
                        {11'143, 1536, 392, true},
                        {33'700, 512, 768, false}}) {
    const double most = s.narrow > 256 ? 4.5e-3 : 1e-3;
    Card card;
    Chain chain(card);
    const auto given = [&](const Shape& s) { return chain.value(card.noise(s, DType::kBF16)); };
    const Shape narrow{s.rows, s.narrow}, wide{s.rows, s.wide};
    const size_t none = chain.value({}), inner = chain.result(wide, DType::kBF16, /*inside=*/true),
                 dx = chain.result(narrow, DType::kBF16, false);
    const size_t dw2 = chain.sum({s.narrow, s.wide}), db2 = chain.sum({s.narrow}),
                 dw1 = chain.sum({s.wide, s.narrow}), db1 = s.biased ? chain.sum({s.wide}) : none;
    chain.add(LinearBwd{}, {given(narrow), given(wide), given({s.narrow, s.wide}), none, none},
              {inner, dw2, db2});
    chain.add(LinearBwd{.act = Act::kGelu},
              {inner, given(narrow), given({s.wide, s.narrow}), given(wide), none}, {dx, dw1, db1});
    SKIP_WITHOUT_HOPPER();
    ASSERT_TRUE(chain.joins());
    chain.run_apart(), chain.run_joined();
    for (size_t id : {dx, dw2, db2, dw1}) expect_alike(chain.joined(id), chain.apart(id), most);
    if (s.biased) expect_alike(chain.joined(db1), chain.apart(db1), most);
  }
}

// The same where nobody has kept GELU's result: the kernel leaves it once more.
TEST(Cuda, GradientThroughGeluThatIsComputedAgain) {
  SKIP_WITHOUT_CUDA();
  struct Size {
    int64_t rows, wide, narrow;
  };
  for (const Size& s : {Size{11'143, 1536, 392}, {33'700, 512, 768}, {50'432, 3072, 768}}) {
    Card card;
    Chain chain(card);
    const auto given = [&](const Shape& s) { return chain.value(card.noise(s, DType::kBF16)); };
    const Shape narrow{s.rows, s.narrow}, wide{s.rows, s.wide};
    const size_t none = chain.value({}), pre = given(wide),
                 again = chain.result(wide, DType::kBF16, /*inside=*/true),
                 inner = chain.result(wide, DType::kBF16, /*inside=*/true),
                 dx = chain.result(narrow, DType::kBF16, false);
    const size_t dw2 = chain.sum({s.narrow, s.wide}), db2 = chain.sum({s.narrow}),
                 dw1 = chain.sum({s.wide, s.narrow}), db1 = chain.sum({s.wide});
    chain.add(Activation{.act = Act::kGelu}, {pre}, {again});
    chain.add(LinearBwd{}, {given(narrow), again, given({s.narrow, s.wide}), none, none},
              {inner, dw2, db2}, LinearBwd::kX);
    chain.add(LinearBwd{.act = Act::kGelu},
              {inner, given(narrow), given({s.wide, s.narrow}), pre, none}, {dx, dw1, db1});
    SKIP_WITHOUT_HOPPER();
    ASSERT_TRUE(chain.joins());
    chain.run_apart(), chain.run_joined();
    for (size_t id : {dx, dw1, db1}) expect_alike(chain.joined(id), chain.apart(id), 4.5e-3);
    EXPECT_EQ(chain.joined(dw2), chain.apart(dw2));  // of the same bits, as kept ones would be
    EXPECT_EQ(chain.joined(db2), chain.apart(db2));
  }
}

}  // namespace
}  // namespace vitrum::test
