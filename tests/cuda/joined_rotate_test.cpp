// Layers of queries, keys and values with rotary positions behind them, and a scaled residual
// branch before, that the CUDA backend computes together; against the same nodes one by one.
#include <gtest/gtest.h>

#include "tests/support/cuda_chain.h"

namespace vitrum::test {
namespace {

constexpr int64_t kRows = 86, kSequence = 261, kWidth = 768, kHeads = 12, kPrefix = 5;

struct Nodes {
  Chain chain;
  size_t sum = 0, y = 0;
};
// proj -> scale? -> sum and norm -> qkv -> rotation, or the last two alone. With one image, which
// has no rotation.
Nodes nodes_of(Card& card, bool through_norm, bool scaled, bool halves, int64_t heads = kHeads,
               int64_t images = kRows) {
  Nodes n{Chain(card)};
  const auto given = [&](const Shape& s, DType d, float mean = 0) {
    return n.chain.value(card.noise(s, d, mean));
  };
  const auto narrow = [&](const Shape& s, float mean = 0) { return given(s, DType::kBF16, mean); };
  const auto inner = [&](const Shape& s) { return n.chain.result(s, DType::kBF16, true); };
  const bool rotates = images > 1;
  const Shape rows{images, kSequence, kWidth}, channels{kWidth},
      wide{images, kSequence, 3 * kWidth};
  const size_t none = n.chain.value({});
  size_t x = narrow(rows);
  if (through_norm) {
    const size_t skip = narrow(rows, 20);
    size_t branch = inner(rows);
    n.chain.add(Linear{}, {x, narrow({kWidth, kWidth}), narrow(channels, 3), none}, {branch, none});
    if (scaled) {
      const size_t before = branch;
      branch = inner(rows);
      n.chain.add(ChannelScale{}, {before, given(channels, DType::kF32)}, {branch});
    }
    n.sum = n.chain.result(rows, DType::kBF16, false);
    x = inner(rows);
    n.chain.add(AddLayerNorm{1e-5f},
                {skip, branch, given(channels, DType::kF32, 1), given(channels, DType::kF32, 1)},
                {n.sum, x, none, none}, /*operand=*/1);
  }
  const size_t qkv = rotates ? inner(wide) : n.chain.result(wide, DType::kBF16, false);
  n.chain.add(Linear{}, {x, narrow({3 * kWidth, kWidth}, 0.1f), narrow({3 * kWidth}), none},
              {qkv, none}, 0, /*result=*/through_norm ? 1 : 0);
  n.y = qkv;
  if (!rotates) return n;
  n.y = n.chain.result(wide, DType::kBF16, false);
  n.chain.add(Rotate{.heads = heads, .prefix = kPrefix, .halves = halves},
              {qkv, given({kSequence - kPrefix, kWidth / heads}, DType::kF32)}, {n.y});
  return n;
}

TEST(CudaRotated, GivesTheSame) {
  SKIP_WITHOUT_CUDA();
  for (const bool through_norm : {false, true})
    for (const bool scaled : {false, true})
      for (const bool halves : {false, true}) {
        if (scaled && !through_norm) continue;
        SCOPED_TRACE(std::to_string(through_norm) + std::to_string(scaled) +
                     std::to_string(halves));
        Card card;
        Nodes n = nodes_of(card, through_norm, scaled, halves);
        if (through_norm) n.chain.freeze();
        SKIP_WITHOUT_HOPPER();
        ASSERT_TRUE(n.chain.joins());
        n.chain.run_apart(), n.chain.run_joined();
        if (through_norm) expect_alike(n.chain.joined(n.sum), n.chain.apart(n.sum));
        expect_alike(n.chain.joined(n.y), n.chain.apart(n.y), through_norm ? 4e-3 : 1e-3);
      }
}

// Of one image the scale goes into the weights.
TEST(CudaScaled, GivesTheSameForFewRows) {
  SKIP_WITHOUT_CUDA();
  Card card;
  Nodes n = nodes_of(card, true, true, true, kHeads, /*images=*/1);
  n.chain.freeze();
  SKIP_WITHOUT_HOPPER();
  ASSERT_TRUE(n.chain.joins());
  n.chain.run_apart(), n.chain.run_joined();
  // The scale is rounded into the weights.
  expect_alike(n.chain.joined(n.sum), n.chain.apart(n.sum), 4e-3);
  expect_alike(n.chain.joined(n.y), n.chain.apart(n.y), 1.2e-2);
}

// A layer of gates and values with its gated activation, whose own result is wanted or not, alone
// and behind a norm.
TEST(CudaGated, GivesTheSame) {
  SKIP_WITHOUT_CUDA();
  constexpr int64_t kAll = 22'491, kHidden = 1024;
  for (const bool through_norm : {false, true})
    for (const bool only : {false, true}) {
      if (through_norm && !only) continue;
      SCOPED_TRACE(std::to_string(through_norm) + std::to_string(only));
      Card card;
      Chain chain(card);
      const auto given = [&](const Shape& s, DType d) { return chain.value(card.noise(s, d)); };
      const auto narrow = [&](const Shape& s) { return given(s, DType::kBF16); };
      const size_t none = chain.value({});
      const Shape rows{kAll, kWidth}, channels{kWidth}, wide{kAll, 2 * kHidden};
      size_t x = narrow(rows);
      if (through_norm) {
        const size_t branch = chain.result(rows, DType::kBF16, true), skip = narrow(rows);
        chain.add(Linear{}, {x, narrow({kWidth, kWidth}), narrow(channels), none}, {branch, none});
        x = chain.result(rows, DType::kBF16, true);
        chain.add(AddLayerNorm{1e-5f},
                  {skip, branch, given(channels, DType::kF32), given(channels, DType::kF32)},
                  {chain.result(rows, DType::kBF16, false), x, none, none}, /*operand=*/1);
        chain.freeze();
      }
      const size_t pre = chain.result(wide, DType::kBF16, only),
                   y = chain.result({kAll, kHidden}, DType::kBF16, false);
      chain.add(Linear{},
                {x, given({2 * kHidden, kWidth}, DType::kBF16), narrow({2 * kHidden}), none},
                {pre, none}, 0, /*result=*/through_norm ? 1 : 0);
      chain.add(Gate{Act::kSilu}, {pre}, {y}, 0, 0, only);
      SKIP_WITHOUT_HOPPER();
      ASSERT_TRUE(chain.joins());
      chain.run_apart(), chain.run_joined();
      // Products some 30 in size: a rounded gate moves the result as much.
      expect_alike(chain.joined(y), chain.apart(y), through_norm ? 8e-3 : 2e-3);
      if (!only) expect_alike(chain.joined(pre), chain.apart(pre));
    }
}

// Heads of 96 have their pairs in two threads: all but the rotation is joined.
TEST(CudaRotated, OtherHeadsAreTurnedByThemselves) {
  SKIP_WITHOUT_CUDA();
  Card card;
  EXPECT_FALSE(nodes_of(card, false, false, true, /*heads=*/8).chain.joins());
}

}  // namespace
}  // namespace vitrum::test
