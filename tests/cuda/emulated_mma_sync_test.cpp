// Attention by mma.sync, with and without bias, mask and dropout, and the gradient of the bias, run
// without a card: see support/emulated_card.h.
#include <gtest/gtest.h>

#include "tests/support/emulated_lowering.h"
// With what is above instead of the card's own: tests/CMakeLists.txt.
#include "vitrum/cuda/attention/mma_sync.cuh"
#include "vitrum/cuda/attention/mma_sync_bias.cuh"
#include "vitrum/cuda/attention/mma_sync_wide.cuh"

namespace vitrum::cuda {
namespace {

struct Size {
  int tokens, images, heads, size;
  bool bias = true;
  int masks = 0;
  float drop = 0;
};

// A head's width in steps of 16 is kSteps.
template <int kSteps>
class Windows {
 public:
  explicit Windows(const Size& s)
      : size_(s),
        qkv_(noise(3 * values(), 1, 1)),
        dy_(noise(values(), 1, 2)),
        y_(static_cast<size_t>(values()), bf16{0xffff}),
        dqkv_(static_cast<size_t>(3 * values()), bf16{0xffff}),
        lse_(static_cast<size_t>(s.images * s.heads * s.tokens), NAN),
        bias_(offsets(s.bias ? s.heads : 0, 3)),
        mask_(offsets(s.masks, 4)) {
    args_ = {.shape = {s.tokens, s.heads, s.size},
             .qkv = qkv_.data(),
             .y = y_.data(),
             .dy = dy_.data(),
             .out = nullptr,
             .lse = lse_.data(),
             .drop = {},
             .bias = bias_.empty() ? nullptr : bias_.data(),
             .mask = mask_.empty() ? nullptr : mask_.data(),
             .masks = std::max(s.masks, 1)};
    if (s.drop > 0) args_.drop = {&rng_, 7, keep_threshold(s.drop), keep_scale(s.drop)};
  }

  // Forward with 32 queries a warp.
  template <bool kBiased>
  void check_wide() {
    card.most_late = 0, card.cluster = 1, card.blocks_y = 1, card.block_y = 0;
    args_.out = y_.data();
    const MmaSyncPlan plan = *plan_mma_sync(kH200, task(false));
    card.blocks = size_.images * size_.heads;
    card.body = [&] { mma_sync::wide_forward<kSteps, kBiased>(args_, plan, card.shared()); };
    for (card.block = 0; card.block < card.blocks; ++card.block)
      ASSERT_NO_THROW(card.run(2 * kWarp));
    for_heads([&](int image, int head) { check_forward(image, head); });
  }

  void check() {
    card.most_late = 0, card.cluster = 1;
    args_.out = y_.data();
    run(false);
    for_heads([&](int image, int head) { check_forward(image, head); });
    args_.out = dqkv_.data();
    run(true);
    std::vector<double> dbias(static_cast<size_t>(size_.heads * square()));
    for_heads([&](int image, int head) { check_backward(image, head, dbias); });
    for (const int64_t parts : {1, 2}) check_bias(dbias, parts);
  }

 private:
  int64_t square() const { return int64_t{size_.tokens} * size_.tokens; }
  int width() const { return size_.heads * size_.size; }
  int64_t values() const { return int64_t{size_.images} * size_.tokens * width(); }
  std::vector<float> offsets(int count, uint32_t stream) const {
    std::vector<float> all;
    for (const bf16 x : noise(count * square(), 1, stream))
      all.push_back(static_cast<float>(value(x)));
    return all;
  }
  template <class Body>
  void for_heads(const Body& body) {
    for (int image = 0; image < size_.images; ++image)
      for (int head = 0; head < size_.heads; ++head) body(image, head);
  }
  AttentionTask task(bool backward) const {
    return {.images = size_.images,
            .tokens = size_.tokens,
            .heads = size_.heads,
            .size = size_.size,
            .backward = backward,
            .drop = size_.drop > 0,
            .bias = size_.bias};
  }
  // With the queries of a head in one CTA, and divided over two.
  void run(bool backward) {
    const MmaSyncPlan plan = *plan_mma_sync(kH200, task(backward));
    card.blocks = size_.images * size_.heads, card.blocks_y = size_.heads;
    card.body = [&] {
      if (backward)
        mma_sync::backward<kSteps, true>(args_, plan, card.shared());
      else
        mma_sync::forward<kSteps, true>(args_, plan, card.shared());
    };
    for (card.block = 0; card.block < card.blocks; ++card.block)
      for (card.block_y = 0; card.block_y < card.blocks_y; ++card.block_y)
        ASSERT_NO_THROW(card.run(2 * kWarp));
    card.blocks_y = 1, card.block_y = 0;
  }

  size_t of_y(int image, int head, int token) const {
    return static_cast<size_t>((image * size_.tokens + token) * width() + head * size_.size);
  }
  size_t of_qkv(int image, int head, int token, int which) const {
    return static_cast<size_t>((image * size_.tokens + token) * 3 * width() + which * width() +
                               head * size_.size);
  }
  double dot(const bf16* a, const bf16* b) const {
    double sum = 0;
    for (int i = 0; i < size_.size; ++i) sum += value(a[i]) * value(b[i]);
    return sum;
  }
  double factor(int image, int head, int query, int key) const {
    if (!args_.drop.rng) return 1;
    const int64_t row = (int64_t{image} * size_.heads + head) * size_.tokens + query;
    const uint16_t draw = draw16(rng_, args_.drop.site, draws_per_row(size_.tokens), row, key);
    return draw < args_.drop.threshold ? static_cast<double>(args_.drop.scale) : 0;
  }
  // The weights of a query before dropout, and the logarithm of what they were divided by.
  std::vector<double> weights(int image, int head, int query, double& lse) const {
    std::vector<double> p(static_cast<size_t>(size_.tokens));
    double sum = 0;
    for (int k = 0; k < size_.tokens; ++k) {
      const auto place = static_cast<size_t>(int64_t{query} * size_.tokens + k);
      double score = dot(&qkv_[of_qkv(image, head, query, 0)], &qkv_[of_qkv(image, head, k, 1)]) /
                     std::sqrt(size_.size);
      if (size_.bias)
        score += static_cast<double>(bias_[static_cast<size_t>(head * square()) + place]);
      if (size_.masks > 0)
        score +=
            static_cast<double>(mask_[static_cast<size_t>(image % size_.masks * square()) + place]);
      sum += p[static_cast<size_t>(k)] = std::exp(score);
    }
    for (double& x : p) x /= sum;
    lse = std::log(sum);
    return p;
  }
  // Rounded weights and results: at most to neighbours.
  void check_forward(int image, int head) {
    for (int q = 0; q < size_.tokens; ++q) {
      double lse = 0;
      const std::vector<double> p = weights(image, head, q, lse);
      const auto at = static_cast<size_t>((image * size_.heads + head) * size_.tokens + q);
      ASSERT_NEAR(static_cast<double>(lse_[at]), lse, 1e-4) << image << " " << head << " " << q;
      for (int i = 0; i < size_.size; ++i) {
        double sum = 0;
        for (int k = 0; k < size_.tokens; ++k)
          sum += p[static_cast<size_t>(k)] * factor(image, head, q, k) *
                 value(qkv_[of_qkv(image, head, k, 2) + static_cast<size_t>(i)]);
        ASSERT_NEAR(value(y_[of_y(image, head, q) + static_cast<size_t>(i)]), sum,
                    0.004 + 0.01 * std::abs(sum))
            << image << " " << head << " " << q << " " << i;
      }
    }
  }
  // All of a matrix is as near as rounding allows; one wrong row is not.
  void check_backward(int image, int head, std::vector<double>& dbias) {
    const auto tokens = static_cast<size_t>(size_.tokens), size = static_cast<size_t>(size_.size);
    std::vector<double> expected(3 * tokens * size);
    for (size_t q = 0; q < tokens; ++q) {
      const int query = static_cast<int>(q);
      double lse = 0, delta = 0;
      const std::vector<double> p = weights(image, head, query, lse);
      for (size_t i = 0; i < size; ++i)  // of y as it was rounded
        delta += value(dy_[of_y(image, head, query) + i]) * value(y_[of_y(image, head, query) + i]);
      for (size_t k = 0; k < tokens; ++k) {
        const int key = static_cast<int>(k);
        const double kept = factor(image, head, query, key);
        const double d =
            kept * dot(&dy_[of_y(image, head, query)], &qkv_[of_qkv(image, head, key, 2)]);
        const double ds = p[k] * (d - delta), scaled = ds / std::sqrt(size_.size);
        dbias[static_cast<size_t>(head) * tokens * tokens + q * tokens + k] += ds;
        for (size_t i = 0; i < size; ++i) {
          expected[q * size + i] += scaled * value(qkv_[of_qkv(image, head, key, 1) + i]);
          expected[(tokens + k) * size + i] +=
              scaled * value(qkv_[of_qkv(image, head, query, 0) + i]);
          expected[(2 * tokens + k) * size + i] +=
              p[k] * kept * value(dy_[of_y(image, head, query) + i]);
        }
      }
    }
    for (size_t which = 0; which < 3; ++which) {
      double wrong = 0, all = 0;
      for (size_t at = 0; at < tokens * size; ++at) {
        const double x = expected[which * tokens * size + at];
        const double got =
            value(dqkv_[of_qkv(image, head, static_cast<int>(at / size), static_cast<int>(which)) +
                        at % size]);
        wrong += (got - x) * (got - x), all += x * x;
      }
      ASSERT_LT(std::sqrt(wrong / all), 0.006)
          << "image " << image << " head " << head << " matrix " << which;
    }
  }
  void check_bias(const std::vector<double>& expected, int64_t parts) {
    std::vector<float> sums(static_cast<size_t>(parts) * expected.size(), NAN);
    const mma_sync::BiasArgs args{args_, sums.data(), size_.images, parts};
    card.blocks = static_cast<int>(parts) * size_.heads * args.tiles() * args.tiles();
    card.body = [&] { mma_sync::bias_gradient<kSteps>(args, card.shared()); };
    for (card.block = 0; card.block < card.blocks; ++card.block)
      ASSERT_NO_THROW(card.run(mma_sync::kBiasThreads));
    for (size_t i = 0; i < expected.size(); ++i) {
      double sum = 0;
      for (size_t part = 0; part < static_cast<size_t>(parts); ++part)
        sum += static_cast<double>(sums[part * expected.size() + i]);
      ASSERT_NEAR(sum, expected[i], 1e-4 * (1 + std::abs(expected[i]))) << i << " parts " << parts;
    }
  }

  Size size_;
  RandomState rng_{3, 5};
  std::vector<bf16> qkv_, dy_, y_, dqkv_;
  std::vector<float> lse_, bias_, mask_;
  AttentionArgs args_;
};

// Tiles that end with the last token, one token into the next tile, a mask for every second image.
TEST(EmulatedMmaSync, BiasAndMaskOfWindows) {
  Windows<2>({.tokens = 144, .images = 3, .heads = 1, .size = 32, .masks = 2}).check();
  Windows<2>({.tokens = 81, .images = 2, .heads = 2, .size = 24}).check();
}

TEST(EmulatedMmaSync, BiasOfWideHeadsAndOfLongerSequences) {
  Windows<4>({.tokens = 197, .images = 2, .heads = 1, .size = 64, .masks = 1}).check();
  Windows<8>({.tokens = 65, .images = 2, .heads = 1, .size = 128}).check();
  Windows<12>({.tokens = 33, .images = 1, .heads = 1, .size = 192}).check();
}

// Sequences that end in the first or the second half of a warp's queries, and with a few keys in a
// chunk; heads that do not fill their steps; one that does not fit into shared memory.
TEST(EmulatedMmaSync, ThirtyTwoQueriesAWarp) {
  Windows<5>({.tokens = 145, .images = 1, .heads = 2, .size = 72, .bias = false})
      .check_wide<false>();
  Windows<4>({.tokens = 197, .images = 2, .heads = 1, .size = 64, .masks = 1}).check_wide<true>();
  Windows<2>({.tokens = 130, .images = 2, .heads = 1, .size = 32, .masks = 2}).check_wide<true>();
  Windows<5>({.tokens = 700, .images = 1, .heads = 1, .size = 80, .bias = false})
      .check_wide<false>();
}

TEST(EmulatedMmaSync, MaskAloneAndDropout) {
  Windows<1>({.tokens = 70, .images = 3, .heads = 1, .size = 8, .bias = false, .masks = 3}).check();
  Windows<2>({.tokens = 129, .images = 2, .heads = 1, .size = 32, .masks = 2, .drop = 0.3f})
      .check();
}

}  // namespace
}  // namespace vitrum::cuda
