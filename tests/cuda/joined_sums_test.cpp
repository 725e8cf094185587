// The ends of residual branches that the CUDA backend computes together with their sum, against the
// same nodes one by one.
#include <gtest/gtest.h>

#include "tests/support/cuda_chain.h"

namespace vitrum::test {
namespace {

// Width, type and which nodes there are before the sum.
class CudaSums : public ::testing::TestWithParam<std::tuple<int64_t, DType, int>> {
 protected:
  void SetUp() override { SKIP_WITHOUT_CUDA(); }
  bool has(int bit) const { return (std::get<2>(GetParam()) & bit) != 0; }
  static constexpr int kBefore = 1, kDrop = 2, kScale = 4, kSkipFirst = 8, kAfter = 16;
  int64_t width() const { return std::get<0>(GetParam()); }
  DType dtype() const { return std::get<1>(GetParam()); }
  Shape shape() const { return {kImages, kTokens, width()}; }

  // The last node, whose operands may come in either order.
  size_t add_sum(Chain& chain, size_t branch, size_t skip) const {
    const size_t y = chain.result(shape(), dtype(), false);
    if (has(kSkipFirst))
      chain.add(Add{}, {skip, branch}, {y}, /*operand=*/1);
    else
      chain.add(Add{}, {branch, skip}, {y});
    return y;
  }
};

TEST_P(CudaSums, BehindANormGiveTheSameBits) {
  if (has(kScale)) return;
  Card card;
  Chain chain(card);
  const auto given = [&](const Shape& s, DType d) { return chain.value(card.noise(s, d)); };
  const auto inside = [&] { return chain.result(shape(), dtype(), true); };
  const Shape rows{kImages * kTokens};
  size_t branch = given(shape(), dtype());
  if (has(kBefore)) {
    const size_t from = branch;
    chain.add(another_order(kTokens, width()), {from}, {branch = inside()});
  }
  const size_t from = branch, mean = chain.result(rows, DType::kF32, false),
               rstd = chain.result(rows, DType::kF32, false);
  chain.add(LayerNorm{1e-5f}, {from, given({width()}, DType::kF32), given({width()}, DType::kF32)},
            {branch = inside(), mean, rstd});
  if (has(kDrop)) {
    const size_t normed = branch;
    chain.add(DropPath{0.4f, 9}, {normed, chain.value(card.rng())}, {branch = inside()});
  }
  const size_t y = add_sum(chain, branch, given(shape(), dtype()));
  size_t last = y;
  if (has(kAfter)) {
    last = chain.result(shape(), dtype(), false);
    chain.add(another_order(kTokens, width()), {y}, {last}, 0, 0, /*only=*/false);
  }
  ASSERT_EQ(chain.joins(), width() <= 1024 && width() % 8 == 0);
  if (!chain.joins()) return;
  chain.run_apart(), chain.run_joined();
  for (size_t id : {mean, rstd, y, last}) EXPECT_EQ(chain.joined(id), chain.apart(id)) << id;
}

TEST_P(CudaSums, OfScaledAndDroppedBranchesGiveTheSameBits) {
  if (has(kBefore) || has(kAfter) || !(has(kScale) || has(kDrop)) || dtype() != DType::kBF16)
    return;
  Card card;
  Chain chain(card);
  size_t branch = chain.value(card.noise(shape(), dtype()));
  const auto through = [&](Op op, const TensorView& with) {
    const size_t from = branch;
    branch = chain.result(shape(), dtype(), true);
    chain.add(std::move(op), {from, chain.value(with)}, {branch});
  };
  if (has(kScale)) through(ChannelScale{}, card.noise({width()}, DType::kF32));
  if (has(kDrop)) through(DropPath{0.4f, 9}, card.rng());
  const size_t y = add_sum(chain, branch, chain.value(card.noise(shape(), dtype())));
  ASSERT_TRUE(chain.joins());
  chain.run_apart(), chain.run_joined();
  EXPECT_EQ(chain.joined(y), chain.apart(y));
}

INSTANTIATE_TEST_SUITE_P(Grid, CudaSums,
                         ::testing::Combine(::testing::Values(20, 64, 96, 384, 768, 1024, 1152),
                                            ::testing::Values(DType::kF32, DType::kBF16),
                                            ::testing::Values(0, 1, 2, 3, 4, 6, 8, 11, 14, 16,
                                                              27)));

// A layer of inference with its scale and sum, and the norm of that; weights that change are left
// alone.
TEST(CudaLinearSum, GivesTheSame) {
  SKIP_WITHOUT_CUDA();
  for (const auto& [rows, depth, columns, normed] :
       {std::tuple{12'544, 384, 96, false}, {1'568, 3072, 768, false}, {2'048, 4304, 1152, true}})
    for (const bool scaled : {false, true})
      for (const bool biased : {false, true}) {
        SCOPED_TRACE(std::to_string(rows) + std::to_string(scaled) + std::to_string(biased));
        Card card;
        Chain chain(card);
        const auto given = [&](const Shape& s) { return chain.value(card.noise(s, DType::kBF16)); };
        const Shape wide{rows, columns};
        const size_t none = chain.value({}), bias = biased ? given({columns}) : none;
        size_t branch = chain.result(wide, DType::kBF16, true);
        chain.add(Linear{}, {given({rows, depth}), given({columns, depth}), bias, none},
                  {branch, none});
        if (scaled) {
          const size_t from = branch;
          branch = chain.result(wide, DType::kBF16, true);
          chain.add(ChannelScale{}, {from, chain.value(card.noise({columns}, DType::kF32))},
                    {branch});
        }
        const size_t y = chain.result(wide, DType::kBF16, false);
        size_t norm = y;
        if (normed) {
          const size_t w = chain.value(card.noise({columns}, DType::kF32));
          norm = chain.result(wide, DType::kBF16, false);
          chain.add(AddLayerNorm{1e-5f}, {given(wide), branch, w, none}, {y, norm, none, none},
                    /*operand=*/1);
        } else {
          chain.add(Add{}, {given(wide), branch}, {y}, /*operand=*/1);
        }
        EXPECT_FALSE(chain.joins());
        chain.freeze();
        SKIP_WITHOUT_HOPPER();
        ASSERT_TRUE(chain.joins());
        chain.run_apart(), chain.run_joined();
        // The one rounds the branch and its scaled self, the other the weights.
        expect_alike(chain.joined(y), chain.apart(y), 5e-3);
        expect_alike(chain.joined(norm), chain.apart(norm), 5e-3);
      }
}

}  // namespace
}  // namespace vitrum::test
