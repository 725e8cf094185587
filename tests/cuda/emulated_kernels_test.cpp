// Kernels of the card, run without one: see support/emulated_card.h.
#include <gtest/gtest.h>

#include "tests/support/emulated_tensors.h"
// Written in what is above, for another compiler.
#include "vitrum/cuda/linear/gelu_bwd.cuh"
#include "vitrum/cuda/linear/small_k.cuh"

namespace vitrum::cuda {
namespace {

using namespace small_k;

struct Size {
  int rows, columns, depth, processors;
};

double slope(double x) { return cdf(x) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI); }

// Whether it is what bf16 leaves of `expected`.
void expect_rounded(bf16 got, double expected, const char* what, int64_t at) {
  ASSERT_NEAR(value(got), expected, 0.008 * (1 + std::abs(expected))) << what << " " << at;
}

template <class F>
class Layer {
 public:
  explicit Layer(const Size& s)
      : size_(s),
        x_(noise(int64_t{s.rows} * s.depth, 1, 1)),
        w_(noise(int64_t{s.columns} * s.depth, 0.1f, 2)),
        bias_(noise(s.columns, 1, 3)),
        seen_(noise(int64_t{s.rows} * s.columns, 2, 4)),
        pre_(seen_.size(), bf16{0xffff}),
        y_(pre_) {
    for (int b = 0; b * kSample < s.rows; ++b) weight_.push_back(b % 3 == 1 ? 0.0f : 1.0f);
    for (int c = 0; c < s.columns; ++c)
      scale_.push_back(1 + static_cast<float>(c % 3)), shift_.push_back(static_cast<float>(c % 5));
  }

  void run(uint32_t most_late) {
    const int wide = size_.columns / F::kColumns, tiles = (size_.rows + kTileRows - 1) / kTileRows;
    high_ = std::min(tiles, size_.processors / wide);
    partials_.assign(static_cast<size_t>(high_ * size_.columns), NAN);
    Args args = arguments();
    args.tiles = tiles;
    card.most_late = most_late, card.blocks = wide * high_, card.cluster = 1;
    card.body = [&] { work<F>(args, *reinterpret_cast<typename F::Shared*>(card.shared())); };
    static_assert(sizeof(typename F::Shared) <= emulated::kSharedBytes);
    for (card.block = 0; card.block < wide * high_; ++card.block) card.run(F::kThreads);
  }

  void check() const {
    std::vector<double> sums(static_cast<size_t>(size_.columns), 0.0);
    for (int r = 0; r < size_.rows; ++r)
      for (int c = 0; c < size_.columns; ++c) {
        const size_t at =
            static_cast<size_t>(r) * static_cast<size_t>(size_.columns) + static_cast<size_t>(c);
        check_one(at, product(r, c), static_cast<size_t>(c));
        sums[static_cast<size_t>(c)] += value(y_[at]);
      }
    if (F::kMoments)
      for (int c = 0; c < size_.columns; ++c) check_moments(c);
    if (!F::kBackward) return;
    for (size_t c = 0; c < sums.size(); ++c) {
      double sum = 0;
      for (int h = 0; h < high_; ++h) sum += partials_[static_cast<size_t>(h) * sums.size() + c];
      ASSERT_NEAR(sum, sums[c], 1e-4 * (1 + std::abs(sums[c]))) << c;
    }
  }

 private:
  Args arguments() {
    Args args{.x = tile_map(x_, size_.depth, kDepth, kTileRows),
              .w = permuted_rows_map(w_, size_.depth, kDepth, F::kColumns),
              .y = y_.data(),
              .rows = size_.rows,
              .columns = size_.columns,
              .steps = (size_.depth + kDepth - 1) / kDepth};
    if (F::kBackward) {
      args.saved = seen_.data(), args.partials = partials_.data();
    } else if (F::kMoments) {
      moments_.assign(static_cast<size_t>(3 * high_ * size_.columns), NAN);
      args.moments = moments_.data(), args.weight = weight_.data(), args.each = kSample;
    } else if (F::kFollowed) {
      args.scale = scale_.data(), args.shift = shift_.data(), args.relu = size_.depth != 64;
      args.saved = size_.depth != 64 ? seen_.data() : nullptr;
    } else {
      args.bias = bias_.data(), args.pre = F::kAct == Act::kNone ? nullptr : pre_.data();
    }
    return args;
  }
  double product(int r, int c) const {
    double sum = 0;
    for (int k = 0; k < size_.depth; ++k)
      sum += value(x_[static_cast<size_t>(r * size_.depth + k)]) *
             value(w_[static_cast<size_t>(c * size_.depth + k)]);
    return sum;
  }
  void check_moments(int c) const {
    double count = 0, sum = 0, squares = 0, n = 0, total = 0, all = 0;
    for (int r = 0; r < size_.rows; ++r)
      if (weight_[static_cast<size_t>(r / kSample)] > 0) {
        const double v = value(y_[static_cast<size_t>(r * size_.columns + c)]);
        ++count, sum += v, squares += v * v;
      }
    for (int h = 0; h < high_; ++h) {
      const auto part = [&](int i) {
        return double{moments_[static_cast<size_t>((h * 3 + i) * size_.columns + c)]};
      };
      n += part(0), total += part(1);
      if (part(0) > 0) all += part(2) + part(1) * part(1) / part(0);
    }
    ASSERT_EQ(n, count) << c;
    ASSERT_NEAR(total, sum, 1e-4 * (1 + std::abs(sum))) << c;
    ASSERT_NEAR(all, squares, 1e-4 * (1 + squares)) << c;
  }
  void check_one(size_t at, double sum, size_t column) const {
    const auto place = static_cast<int64_t>(at);
    if (F::kBackward) return expect_rounded(y_[at], sum * slope(value(seen_[at])), "d", place);
    if (F::kFollowed) {
      sum = sum * static_cast<double>(scale_[column]) + static_cast<double>(shift_[column]);
      if (size_.depth != 64) sum = std::max(sum + value(seen_[at]), 0.0);
      ASSERT_NEAR(value(y_[at]), sum, 0.03 * (1 + std::abs(sum))) << place;
      return;
    }
    if (!F::kMoments) sum += value(bias_[column]);
    if (F::kAct == Act::kNone) return expect_rounded(y_[at], sum, "y", place);
    expect_rounded(pre_[at], sum, "pre", place);
    expect_rounded(y_[at], sum * cdf(sum), "y", place);
  }

  Size size_;
  std::vector<bf16> x_, w_, bias_, seen_, pre_, y_;
  static constexpr int kSample = 7;  // rows; every third sample does not count
  std::vector<float> partials_, scale_, shift_, moments_, weight_;
  int high_ = 0;
};

// Copies that arrive at once, and some that take as long as many tiles.
template <class F>
void expect_right(const Size& size) {
  for (const uint32_t most_late : {0u, 30u, 400u}) {
    SCOPED_TRACE(most_late);
    Layer<F> layer(size);
    ASSERT_NO_THROW(layer.run(most_late));
    layer.check();
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(EmulatedKernels, ShallowLinearLayersWithGelu) {
  expect_right<Traits<256, Act::kGelu>>({600, 256, 128, 1});
  expect_right<Traits<192, Act::kGelu>>({700, 384, 96, 2});
}

TEST(EmulatedKernels, ShallowLinearLayersWithoutGelu) {
  expect_right<Traits<256, Act::kNone>>({600, 256, 72, 1});
}

// A 1x1 convolution with what follows; of 64 channels, without skip and ReLU.
TEST(EmulatedKernels, ShallowLinearLayersWithANormBehind) {
  using Followed = Traits<256, Act::kNone, /*kBack=*/false, Ends::kFollowed>;
  expect_right<Followed>({600, 512, 72, 2});
  expect_right<Followed>({300, 256, 64, 1});
}

TEST(EmulatedKernels, ShallowLinearLayersLeaveMoments) {
  expect_right<Traits<256, Act::kNone, /*kBack=*/false, Ends::kMoments>>({300, 512, 72, 4});
}

TEST(EmulatedKernels, ShallowGradientsThroughGelu) {
  expect_right<Traits<128, Act::kGelu, /*kBack=*/true>>({900, 256, 64, 4});
  expect_right<Traits<128, Act::kGelu, /*kBack=*/true>>({700, 128, 136, 1});
}

// processors: two to a cluster.
class DeepGradient {
 public:
  explicit DeepGradient(const Size& s)
      : size_(s),
        dy_(noise(int64_t{s.rows} * s.depth, 1, 1)),
        w_(noise(int64_t{s.columns} * s.depth, 0.1f, 2)),
        seen_(noise(int64_t{s.rows} * s.columns, 2, 4)),
        d_(seen_.size(), bf16{0xffff}) {}

  // `again`: GELU's result takes the place of what it was given.
  void run(uint32_t most_late, bool again) {
    given_ = seen_;
    high_ = (size_.rows + gelu_bwd::kTileRows - 1) / gelu_bwd::kTileRows;
    partials_.assign(static_cast<size_t>(high_ * size_.columns), NAN);
    const gelu_bwd::Args args{
        .dy = rows_of(dy_, size_.rows, size_.depth, gelu_bwd::kDepth, gelu_bwd::kShare),
        .w = rows_of(w_, size_.depth, size_.columns, gelu_bwd::kColumns, gelu_bwd::kDepth),
        .pre = rows_of(seen_, size_.rows, size_.columns, gelu_bwd::kColumns, gelu_bwd::kRowsCome),
        .d = rows_of(d_, size_.rows, size_.columns, gelu_bwd::kColumns, gelu_bwd::kRowsGo),
        .y = rows_of(seen_, size_.rows, size_.columns, gelu_bwd::kColumns, gelu_bwd::kRowsAgain),
        .partials = partials_.data(),
        .columns = size_.columns,
        .steps = (size_.depth + gelu_bwd::kDepth - 1) / gelu_bwd::kDepth,
        .tiles = high_ * (size_.columns / gelu_bwd::TileScheduler::kAcross)};
    card.most_late = most_late, card.blocks = size_.processors, card.cluster = gelu_bwd::kCluster;
    card.body = [&] {
      auto& shared = *reinterpret_cast<gelu_bwd::Shared*>(card.shared());
      again ? gelu_bwd::work<true>(args, shared) : gelu_bwd::work<false>(args, shared);
    };
    static_assert(sizeof(gelu_bwd::Shared) <= emulated::kSharedBytes);
    for (card.block = 0; card.block < card.blocks; card.block += card.cluster)
      card.run(gelu_bwd::kThreads);
  }

  void check(bool again) const {
    for (int c = 0; c < size_.columns; ++c) {
      double sum = 0, partials = 0;
      for (int r = 0; r < size_.rows; ++r) {
        const size_t at = place(r, c, size_.columns);
        const float given = static_cast<float>(value(given_[at]));
        // To the bit what the layer itself gives.
        ASSERT_EQ(seen_[at].bits,
                  again ? to_bf16(activate<Act::kGelu, bf16>(given)) : given_[at].bits)
            << at;
        const double expected = product(r, c) * slope(value(given_[at]));
        expect_rounded(d_[at], expected, "d", static_cast<int64_t>(at));
        if (::testing::Test::HasFatalFailure()) return;
        sum += expected;
      }
      for (int h = 0; h < high_; ++h)
        partials += static_cast<double>(partials_[place(h, c, size_.columns)]);
      ASSERT_NEAR(partials, sum, 0.01 * (1 + std::abs(sum))) << c;
    }
  }

 private:
  static size_t place(int row, int column, int columns) {
    return static_cast<size_t>(row) * static_cast<size_t>(columns) + static_cast<size_t>(column);
  }
  static CUtensorMap rows_of(const std::vector<bf16>& x, int64_t rows, int64_t columns,
                             int64_t wide, int64_t high) {
    return {&x[0].bits, {columns, rows}, {1, columns}, {wide, high}};
  }
  double product(int r, int c) const {
    double sum = 0;
    for (int k = 0; k < size_.depth; ++k)
      sum += value(dy_[place(r, k, size_.depth)]) * value(w_[place(k, c, size_.columns)]);
    return sum;
  }

  Size size_;
  std::vector<bf16> dy_, w_, seen_, given_, d_;
  std::vector<float> partials_;
  int high_ = 0;
};

// The last rows fill no tile, the depth no stage.
TEST(EmulatedKernels, DeepGradientsThroughGelu) {
  for (const uint32_t most_late : {0u, 30u, 400u})
    for (const Size& size : {Size{600, 512, 200, 2}, {300, 768, 256, 4}})
      for (const bool again : {false, true}) {
        SCOPED_TRACE(most_late);
        DeepGradient gradient(size);
        ASSERT_NO_THROW(gradient.run(most_late, again));
        gradient.check(again);
        if (HasFatalFailure()) return;
      }
}

}  // namespace
}  // namespace vitrum::cuda
