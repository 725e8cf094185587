// Convolution and its gradients in boxes of pixels, as the card computes them, without one.
#include <gtest/gtest.h>

#include "tests/support/emulated_lowering.h"
// Written in what is above, for another compiler.
#include "vitrum/cuda/conv/lines.cuh"
#include "vitrum/cuda/conv/tile.cuh"
#include "vitrum/cuda/conv/tile_dw.cuh"
#include "vitrum/cuda/norm/batch_norm.cuh"

namespace vitrum::cuda {
namespace {

size_t at(int64_t i) { return static_cast<size_t>(i); }

// The plain loops. w is (out, taps, channels).
struct Plain {
  const ConvTask& t;

  int64_t x_count() const { return t.images * t.height * t.width * t.channels; }
  int64_t y_count() const { return t.images * t.down() * t.across() * t.out; }
  int64_t taps() const { return t.kernel * t.kernel; }
  int64_t w_count() const { return t.out * taps() * t.channels; }

  // body(pixel of y, pixel of x, tap) for everything that meets.
  template <class Body>
  void meet(const Body& body) const {
    int64_t y = 0;
    for (int64_t image = 0; image < t.images; ++image)
      for (int64_t i = 0; i < t.down(); ++i)
        for (int64_t j = 0; j < t.across(); ++j, ++y)
          for (int64_t tap = 0; tap < taps(); ++tap) {
            const int64_t line = i * t.stride - t.padding + tap / t.kernel,
                          column = j * t.stride - t.padding + tap % t.kernel;
            if (line >= 0 && line < t.height && column >= 0 && column < t.width)
              body(y, (image * t.height + line) * t.width + column, tap);
          }
  }
  std::vector<float> forward(const std::vector<float>& x, const std::vector<float>& w) const {
    std::vector<float> y(at(y_count()));
    meet([&](int64_t to, int64_t from, int64_t tap) {
      for (int64_t o = 0; o < t.out; ++o)
        for (int64_t c = 0; c < t.channels; ++c)
          y[at(to * t.out + o)] +=
              x[at(from * t.channels + c)] * w[at((o * taps() + tap) * t.channels + c)];
    });
    return y;
  }
  std::vector<float> input_gradient(const std::vector<float>& dy,
                                    const std::vector<float>& w) const {
    std::vector<float> dx(at(x_count()));
    meet([&](int64_t from, int64_t to, int64_t tap) {
      for (int64_t o = 0; o < t.out; ++o)
        for (int64_t c = 0; c < t.channels; ++c)
          dx[at(to * t.channels + c)] +=
              dy[at(from * t.out + o)] * w[at((o * taps() + tap) * t.channels + c)];
    });
    return dx;
  }
  // (out, channels, taps)
  std::vector<double> weight_gradient(const std::vector<float>& dy,
                                      const std::vector<float>& x) const {
    std::vector<double> dw(at(w_count()));
    meet([&](int64_t of_y, int64_t of_x, int64_t tap) {
      for (int64_t o = 0; o < t.out; ++o)
        for (int64_t c = 0; c < t.channels; ++c)
          dw[at((o * t.channels + c) * taps() + tap)] +=
              double{dy[at(of_y * t.out + o)]} * double{x[at(of_x * t.channels + c)]};
    });
    return dw;
  }
};

std::vector<float> values(const std::vector<bf16>& from) {
  std::vector<float> to;
  for (const bf16 v : from) to.push_back(from_bf16(v.bits));
  return to;
}
// (out, taps, channels) -> (channels, taps, out)
std::vector<bf16> turned(const ConvTask& t, const std::vector<bf16>& w) {
  const int64_t taps = t.kernel * t.kernel;
  std::vector<bf16> to(w.size());
  for (int64_t o = 0; o < t.out; ++o)
    for (int64_t tap = 0; tap < taps; ++tap)
      for (int64_t c = 0; c < t.channels; ++c)
        to[at((c * taps + tap) * t.out + o)] = w[at((o * taps + tap) * t.channels + c)];
  return to;
}

template <int kColumns, int kTaps = 1>
void run(const conv_tile::Args& args, int blocks) {
  using Shared = conv_tile::Shared<kColumns, kTaps>;
  constexpr int kBlocks = conv_tile::Shape<kColumns, kTaps>::kBlocks;
  static_assert(sizeof(Shared) * kBlocks <= emulated::kSharedBytes);
  card.cluster = conv_tile::kCluster, card.blocks = blocks;
  card.body = [&] {
    auto& shared = *reinterpret_cast<Shared*>(card.shared());
    if (args.scale)
      conv_tile::work<kColumns, kTaps, Ends::kFollowed>(args, shared);
    else if (args.moments)
      conv_tile::work<kColumns, kTaps, Ends::kMoments>(args, shared);
    else
      conv_tile::work<kColumns, kTaps, Ends::kPlain>(args, shared);
  };
  for (card.block = 0; card.block < card.blocks; card.block += card.cluster)
    card.run(conv_tile::kThreads);
}
void run(const conv_tile::Product& p, int blocks = 4) {
  if (p.stacked) return run<kStackedColumns, kStackedTaps>(p.args, blocks);
  if (p.wide == 64) run<64>(p.args, blocks);
  if (p.wide == 128) run<128>(p.args, blocks);
  if (p.wide == 256) run<256>(p.args, blocks);
}

void expect_near(const std::vector<bf16>& got, const std::vector<float>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(value(got[i]), expected[i], 0.008 * (1 + std::abs(double{expected[i]}))) << i;
}

std::vector<bf16> weights(const ConvTask& t) {
  const int64_t depth = t.kernel * t.kernel * t.channels;
  return noise(t.out * depth, 1 / std::sqrt(static_cast<float>(depth)), 2);
}

void expect_forward(const ConvTask& t, int wide, uint32_t most_late = 20) {
  ASSERT_TRUE(takes_tile(kH200, t, ConvPass::kForward));
  const Plain plain{t};
  const std::vector<bf16> x = noise(plain.x_count(), 1, 1), w = weights(t),
                          skip = noise(plain.y_count(), 1, 3);
  std::vector<float> scale, shift, expected = plain.forward(values(x), values(w));
  for (int64_t o = 0; o < t.out; ++o)
    scale.push_back(1 + static_cast<float>(o % 3)), shift.push_back(static_cast<float>(o % 5) - 2);
  std::vector<bf16> y(at(plain.y_count()), bf16{0xffff});
  conv_tile::Product p = conv_tile::forward_product(kH200, t, x.data(), w.data(), y.data(), wide);
  card.most_late = most_late;
  ASSERT_NO_THROW(run(p));
  expect_near(y, expected);
  if (!t.followed) return;
  p.args.scale = scale.data(), p.args.shift = shift.data();
  ASSERT_NO_THROW(run(p));
  for (size_t i = 0; i < expected.size(); ++i) {
    const double v = expected[i] * scale[i % at(t.out)] + shift[i % at(t.out)];
    ASSERT_NEAR(value(y[i]), v, 0.03 * (1 + std::abs(v))) << i;
  }
  p.args.scale = scale.data(), p.args.shift = shift.data(), p.args.skip = skip.data();
  p.args.relu = true;
  ASSERT_NO_THROW(run(p));
  for (size_t i = 0; i < expected.size(); ++i) {
    const size_t o = i % at(t.out);
    expected[i] =
        std::max(expected[i] * scale[o] + shift[o] + static_cast<float>(value(skip[i])), 0.0f);
  }
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(value(y[i]), expected[i], 0.03 * (1 + std::abs(double{expected[i]}))) << i;
}

void expect_input_gradient(const ConvTask& t, int wide) {
  ASSERT_TRUE(takes_tile(kH200, t, ConvPass::kInputGradient));
  const Plain plain{t};
  const std::vector<bf16> dy = noise(plain.y_count(), 1, 1), w = weights(t), back = turned(t, w);
  // Pixels without a window over them are left to whoever clears dx.
  std::vector<bf16> dx(at(plain.x_count()), bf16{0});
  card.most_late = 20;
  for (const conv_tile::Product& p :
       conv_tile::input_gradient_products(kH200, t, dy.data(), back.data(), dx.data(), wide))
    ASSERT_NO_THROW(run(p));
  expect_near(dx, plain.input_gradient(values(dy), values(w)));
}

const ConvTask kTasks[] = {
    {.images = 2, .height = 8, .width = 8, .channels = 64, .out = 64, .kernel = 3, .padding = 1},
    // Channels and columns that fill no tile, boxes that reach over the edge.
    {.images = 3, .height = 7, .width = 5, .channels = 96, .out = 32, .kernel = 3, .padding = 1},
    {.images = 5, .height = 3, .width = 14, .channels = 32, .out = 160, .kernel = 3, .padding = 1},
    {.images = 2,
     .height = 9,
     .width = 8,
     .channels = 32,
     .out = 64,
     .kernel = 3,
     .stride = 2,
     .padding = 1},
    {.images = 2, .height = 7, .width = 11, .channels = 64, .out = 96, .kernel = 1, .stride = 2},
    {.images = 1, .height = 12, .width = 12, .channels = 32, .out = 32, .kernel = 5, .padding = 2},
    {.images = 1, .height = 9, .width = 7, .channels = 32, .out = 32, .kernel = 4, .stride = 2},
    // Boxes of many images, and windows that are mostly padding.
    {.images = 150, .height = 1, .width = 2, .channels = 32, .out = 32, .kernel = 3, .padding = 1},
    {.images = 300, .channels = 96, .out = 64, .followed = true},
    {.images = 2,
     .height = 6,
     .width = 6,
     .channels = 64,
     .out = 64,
     .kernel = 3,
     .padding = 1,
     .followed = true},
};

TEST(EmulatedConv, BoxesGiveTheConvolution) {
  for (const ConvTask& t : kTasks) {
    SCOPED_TRACE(&t - kTasks);
    expect_forward(t, 64);
    if (HasFatalFailure()) return;
  }
}

TEST(EmulatedConv, WiderTiles) {
  const ConvTask odd{.images = 3,
                     .height = 5,
                     .width = 9,
                     .channels = 40,
                     .out = 160,
                     .kernel = 3,
                     .padding = 1,
                     .followed = true};
  for (const uint32_t most_late : {0u, 300u}) {
    expect_forward(odd, 128, most_late);
    expect_forward(odd, 256, most_late);
  }
}

// One box for the three taps of a column of the window: of one image and of two, over edges, and in
// the last one of a cluster without a partner.
TEST(EmulatedConv, StackedBoxes) {
  const ConvTask one{
      .images = 1, .height = 17, .width = 16, .channels = 96, .out = 64, .kernel = 3, .padding = 1};
  ConvTask two = one;
  two.images = 3, two.height = 7, two.width = 9;
  ConvTask bare = two;
  bare.channels = 64, bare.out = 96, bare.padding = 0;
  for (const ConvTask& t : {one, two, bare}) {
    SCOPED_TRACE(t.height * 100 + t.width);
    const TileChoice tile =
        choose_tile(kH200, t.images, t.down(), t.across(), t.out, can_stack(t), 64);
    ASSERT_TRUE(tile.stacked);
    expect_forward(t, 64, t.images == 1 ? 300 : 0);
    expect_input_gradient(t, 64);
  }
}

// Moments of the results, of a card of so few processors that blocks have several tiles; every
// third sample does not count, if weighted.
void expect_moments(const ConvTask& t, int wide, int processors, bool weighted) {
  namespace bn = batch_norm;
  const Plain plain{t};
  std::vector<bf16> x = noise(plain.x_count(), 1, 1, /*mean=*/8), w = weights(t);
  for (bf16& v : w) v.bits &= 0x7fff;  // means far from zero
  std::vector<bf16> y(at(plain.y_count()), bf16{0xffff});
  std::vector<float> weight;
  for (int64_t b = 0; b < t.images; ++b) weight.push_back(b % 3 == 1 ? 0.0f : 0.5f);
  conv_tile::Product p = conv_tile::forward_product(kH200, t, x.data(), w.data(), y.data(), wide);
  const int chunks = conv_tile::moments_chunks(p, processors);
  ASSERT_GT(chunks, 0);
  std::vector<float> partials(at(3 * t.out * chunks), NAN);
  p.args.moments = partials.data(), p.args.weight = weighted ? weight.data() : nullptr;
  const int clusters = clusters_of(p, processors, blocks_of(p));
  card.most_late = 20;
  ASSERT_NO_THROW(run(p, clusters * conv_tile::kCluster));
  expect_near(y, plain.forward(values(x), values(w)));

  const std::vector<float> ones(at(t.out), 1.0f);
  std::vector<float> mean(ones), var(ones), scale(ones), shift(ones);
  const bn::Affine affine{ones.data(),  ones.data(), nullptr,    1e-3f, scale.data(),
                          shift.data(), mean.data(), var.data(), {}};
  card.cluster = 1, card.blocks = static_cast<int>((t.out + 31) / 32);
  card.body = [&] {
    bn::finish_moments(partials.data(), chunks, static_cast<int>(t.out), affine,
                       *reinterpret_cast<bn::MomentsShared*>(card.shared()));
  };
  for (card.block = 0; card.block < card.blocks; ++card.block)
    ASSERT_NO_THROW(card.run(bn::kFinishThreads));
  const int64_t each = plain.y_count() / t.images / t.out;
  for (int64_t o = 0; o < t.out; ++o) {
    double n = 0, sum = 0, squares = 0;
    const auto for_each = [&](const auto& body) {
      for (int64_t row = 0; row < t.images * each; ++row)
        if (!weighted || weight[at(row / each)] > 0) body(value(y[at(row * t.out + o)]));
    };
    for_each([&](double v) { ++n, sum += v; });
    for_each([&](double v) { squares += (v - sum / n) * (v - sum / n); });
    ASSERT_NEAR(double{mean[at(o)]}, sum / n, 1e-6 * std::abs(sum / n)) << o;
    ASSERT_NEAR(double{var[at(o)]}, squares / n, 2e-5 * squares / n + 1e-9) << o;
  }
}

TEST(EmulatedConv, MomentsOfResults) {
  const ConvTask whole{
      .images = 8, .height = 8, .width = 8, .channels = 64, .out = 64, .kernel = 3, .padding = 1};
  ConvTask odd = whole;
  odd.images = 7, odd.height = 5, odd.width = 9, odd.channels = 32, odd.out = 160, odd.stride = 2;
  ConvTask wide = whole;
  wide.images = 6, wide.channels = 32, wide.out = 288;
  for (const bool weighted : {false, true}) {
    expect_moments(whole, 64, 2, weighted);
    expect_moments(odd, 64, 6, weighted);
    expect_moments(odd, 128, 4, weighted);
    expect_moments(wide, 256, 4, weighted);
  }
}

TEST(EmulatedConv, BoxesGiveTheInputsGradient) {
  for (ConvTask t : kTasks) {
    SCOPED_TRACE(t.height * 100 + t.width);
    expect_input_gradient(t, 64);
    if (HasFatalFailure()) return;
  }
  expect_input_gradient({.images = 3,
                         .height = 9,
                         .width = 5,
                         .channels = 160,
                         .out = 40,
                         .kernel = 3,
                         .stride = 2,
                         .padding = 1},
                        128);
}

void sum_boxes(const conv_tile_dw::Args& args, int processors) {
  static_assert(sizeof(conv_tile_dw::Shared) <= emulated::kSharedBytes);
  card.cluster = 1, card.blocks = std::min(args.items, processors);
  card.body = [&] { work(args, *reinterpret_cast<conv_tile_dw::Shared*>(card.shared())); };
  for (card.block = 0; card.block < card.blocks; ++card.block) card.run(conv_tile_dw::kThreads);
}

// processors: a small card divides the pixels less.
void expect_weight_gradient(const ConvTask& t, int processors, uint32_t most_late = 20,
                            bool stacked = false) {
  using namespace conv_tile_dw;
  CardInfo small = kH200;
  small.processors = processors;
  ASSERT_TRUE(takes_tile(small, t, ConvPass::kWeightGradient));
  const Plain plain{t};
  const std::vector<bf16> x = noise(plain.x_count(), 1, 1), dy = noise(plain.y_count(), 1, 2);
  const conv_tile_dw::Plan plan = plan_of(small, t);
  if (stacked) {
    ASSERT_TRUE(plan.stacked);
  }
  std::vector<float> partials(at(plan.floats), NAN), dw(at(plain.w_count()), 0.5f);
  const conv_tile_dw::Args args = make_args(t, plan, dy.data(), x.data(), partials.data());
  card.most_late = most_late;
  ASSERT_NO_THROW(sum_boxes(args, processors));
  const Finish finished = make_finish(t, plan, partials.data(), dw.data());
  card.blocks = finished.blocks, card.blocks_y = finished.out;
  card.body = [&] { finish(finished, *reinterpret_cast<FinishShared*>(card.shared())); };
  for (card.block_y = 0; card.block_y < card.blocks_y; ++card.block_y)
    for (card.block = 0; card.block < card.blocks; ++card.block)
      ASSERT_NO_THROW(card.run(kFinishThreads));
  card.block_y = 0, card.blocks_y = 1;
  const std::vector<double> expected = plain.weight_gradient(values(dy), values(x));
  for (size_t i = 0; i < dw.size(); ++i)
    ASSERT_NEAR(double{dw[i]}, 0.5 + expected[i], 1e-4 * (1 + std::abs(expected[i]))) << i;
}

TEST(EmulatedConv, BoxesGiveTheWeightsGradient) {
  for (ConvTask t : kTasks) {
    SCOPED_TRACE(t.height * 100 + t.width);
    expect_weight_gradient(t, 3);
    if (HasFatalFailure()) return;
  }
}

TEST(EmulatedConv, WeightGradientsInSplits) {
  const ConvTask large{.images = 9,
                       .height = 15,
                       .width = 16,
                       .channels = 72,
                       .out = 136,
                       .kernel = 3,
                       .stride = 2,
                       .padding = 1};
  for (const uint32_t most_late : {0u, 300u}) expect_weight_gradient(large, 6, most_late);
  const ConvTask deep{
      .images = 40, .height = 8, .width = 7, .channels = 64, .out = 64, .kernel = 3, .padding = 1};
  expect_weight_gradient(deep, 8);
}

// Boxes of one image, of two and of four, and such as reach over the edge.
TEST(EmulatedConv, WeightGradientsOfStackedBoxes) {
  const auto square = [](int64_t images, int64_t side, int64_t channels, int64_t out) {
    return ConvTask{.images = images,
                    .height = side,
                    .width = side,
                    .channels = channels,
                    .out = out,
                    .kernel = 3,
                    .padding = 1};
  };
  expect_weight_gradient(square(6, 8, 64, 64), 4, 300, true);
  expect_weight_gradient(square(3, 15, 72, 136), 5, 20, true);
  expect_weight_gradient(square(5, 7, 136, 40), 4, 20, true);
  ConvTask flat = square(9, 4, 64, 128);
  flat.width = 24;
  expect_weight_gradient(flat, 4, 20, true);
  flat.height = 2;
  expect_weight_gradient(flat, 4, 20, true);
  flat.padding = 0, flat.height = 6;
  expect_weight_gradient(flat, 4, 20, true);
}

// Images of few channels, there and back.
void expect_lines(const ConvTask& t) {
  ASSERT_TRUE(takes_lines(kH200, t, ConvPass::kForward));
  const conv_lines::Lines lines = conv_lines::lines_of(t);
  const Plain plain{t};
  const std::vector<bf16> x = noise(plain.x_count(), 1, 1), w = weights(t),
                          dy = noise(plain.y_count(), 1, 2);
  // Weights as the graph has them: (out, channels, taps).
  std::vector<bf16> given(w.size());
  for (int64_t o = 0; o < t.out; ++o)
    for (int64_t tap = 0; tap < plain.taps(); ++tap)
      for (int64_t c = 0; c < t.channels; ++c)
        given[at((o * t.channels + c) * plain.taps() + tap)] =
            w[at((o * plain.taps() + tap) * t.channels + c)];
  const int64_t laid_count = t.images * lines.pairs * lines.across * conv_lines::kPixel,
                weight_count = t.out * lines.taps() * conv_lines::kPixel;
  std::vector<bf16> laid(at(laid_count), bf16{0xffff}), laid_w(at(weight_count), bf16{0xffff}),
      y(at(plain.y_count()), bf16{0xffff});
  for (int i = 0; i < laid_count / 8; ++i) conv_lines::lay(lines, x.data(), laid.data(), i);
  for (int64_t i = 0; i < weight_count; ++i)
    conv_lines::lay_weight(lines, given.data(), laid_w.data(), i);
  card.most_late = 20;
  ASSERT_NO_THROW(run(conv_lines::forward_product(kH200, t, laid.data(), laid_w.data(), y.data())));
  expect_near(y, plain.forward(values(x), values(w)));

  const conv_tile_dw::Plan plan = conv_lines::gradient_plan(kH200, t);
  if (lines.taps() >= kStackedTaps) {
    ASSERT_TRUE(plan.stacked);
  }
  std::vector<float> partials(at(plan.floats), NAN), dw(w.size(), 0.5f);
  ASSERT_EQ(plan.floats, plan.split.splits * weight_count);
  sum_boxes(conv_lines::gradient_args(t, plan, dy.data(), laid.data(), partials.data()), 5);
  for (int64_t i = 0; i < weight_count; ++i)
    conv_lines::add_weight(lines, partials.data(), static_cast<int>(plan.split.splits),
                           weight_count, dw.data(), i);
  const std::vector<double> expected = plain.weight_gradient(values(dy), values(x));
  for (size_t i = 0; i < dw.size(); ++i)
    ASSERT_NEAR(double{dw[i]}, 0.5 + expected[i], 1e-4 * (1 + std::abs(expected[i]))) << i;
}

TEST(EmulatedConv, LinesOfImagesOfFewChannels) {
  expect_lines({.images = 2,
                .height = 18,
                .width = 22,
                .channels = 3,
                .out = 64,
                .kernel = 7,
                .stride = 2,
                .padding = 3});
  expect_lines({.images = 1,
                .height = 9,
                .width = 11,
                .channels = 4,
                .out = 32,
                .kernel = 3,
                .stride = 2,
                .padding = 1});
  expect_lines({.images = 5,
                .height = 7,
                .width = 6,
                .channels = 1,
                .out = 96,
                .kernel = 2,
                .stride = 2,
                .padding = 0});
  expect_lines({.images = 9,
                .height = 15,
                .width = 15,
                .channels = 3,
                .out = 64,
                .kernel = 7,
                .stride = 2,
                .padding = 3});
  // Whole windows as pixels.
  expect_lines(
      {.images = 3, .height = 9, .width = 16, .channels = 3, .out = 64, .kernel = 3, .padding = 1});
  expect_lines(
      {.images = 2, .height = 7, .width = 6, .channels = 4, .out = 32, .kernel = 4, .padding = 2});
  expect_lines({.images = 2, .height = 6, .width = 5, .channels = 1, .out = 32, .kernel = 2});
}

}  // namespace
}  // namespace vitrum::cuda
