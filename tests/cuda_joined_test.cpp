// Nodes that the CUDA backend computes together, against the same nodes one by one.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/cuda.h"
#include "vitrum/core/philox.h"
#include "vitrum/runtime/backend.h"

namespace vitrum::test {
namespace {

// Tensors on the card, filled with noise.
class Card {
 public:
  Card() : backend_(cuda(/*exact=*/true)) {}
  Backend& backend() { return *backend_; }

  TensorView noise(const Shape& shape, DType dtype, float mean = 0) {
    const auto count = static_cast<size_t>(shape.numel());
    constexpr size_t kPeriod = 1'000'003;  // large tensors repeat themselves, in no row alike
    std::vector<float> wide(count);
    for (size_t i = 0; i < count; ++i)
      wide[i] = i < kPeriod ? mean + static_cast<float>(random_.normal()) : wide[i - kPeriod];
    if (dtype == DType::kF32) return keep(shape, dtype, wide.data());
    std::vector<uint16_t> narrow(count);
    for (size_t i = 0; i < count; ++i) narrow[i] = to_bf16(wide[i]);
    return keep(shape, dtype, narrow.data());
  }
  TensorView rng() {
    const RandomState state{1, 2, 3, 0};
    return keep({4}, DType::kI32, &state);
  }
  std::vector<float> read(const TensorView& view) const {
    const auto count = static_cast<size_t>(view.shape.numel());
    std::vector<float> wide(count);
    if (view.dtype == DType::kF32) {
      backend_->download(wide.data(), view);
      return wide;
    }
    std::vector<uint16_t> narrow(count);
    backend_->download(narrow.data(), view);
    for (size_t i = 0; i < count; ++i) wide[i] = from_bf16(narrow[i]);
    return wide;
  }
  TensorView copy(const TensorView& view) {
    const std::vector<float> values = read(view);
    return keep(view.shape, view.dtype, values.data());
  }
  void run(Kernels kernels) { backend_->prepare(std::move(kernels))->run(), backend_->wait(); }

 private:
  TensorView keep(const Shape& shape, DType dtype, const void* from) {
    const TensorView view{nullptr, shape, dtype};
    Buffer& buffer = buffers_.emplace_back(backend_->allocate(view.bytes()));
    const TensorView filled{buffer.data(), shape, dtype};
    backend_->upload(filled, from);
    return filled;
  }
  std::unique_ptr<Backend> backend_;
  std::vector<Buffer> buffers_;
  PhiloxStream random_{7, 1, 0};
};

// A chain of nodes over numbered values, run node by node or as one kernel.
class Chain {
 public:
  explicit Chain(Card& card) : card_(card) {}

  size_t value(const TensorView& view) {
    apart_.push_back(view), joined_.push_back(view);
    return apart_.size() - 1;
  }
  // What a node writes; `inside`: the joined kernel has no memory for it.
  size_t result(const Shape& shape, DType dtype, bool inside) {
    apart_.push_back(card_.noise(shape, dtype));
    joined_.push_back(inside ? TensorView{nullptr, shape, dtype} : card_.noise(shape, dtype));
    return apart_.size() - 1;
  }
  // What a node adds to: the same noise before either run.
  size_t sum(const Shape& shape) {
    apart_.push_back(card_.noise(shape, DType::kF32));
    joined_.push_back(card_.copy(apart_.back()));
    return apart_.size() - 1;
  }
  void add(Op op, std::vector<size_t> in, std::vector<size_t> out, size_t operand = 0,
           size_t result = 0, bool only = true) {
    nodes_.push_back({std::move(op), std::move(in), std::move(out), operand, result, only});
  }
  size_t size() const { return nodes_.size(); }
  // No parameter will change.
  void freeze() { packed_ = std::make_unique<PackedParams>(); }

  void run_apart() {
    Kernels kernels;
    for (const ChainNode& node : nodes(apart_))
      kernels.push_back(card_.backend().lower(*node.op, node.io));
    card_.run(std::move(kernels));
  }
  bool joins() const { return card_.backend().joins(nodes(joined_)) == nodes_.size(); }
  bool adds_columns() const { return card_.backend().adds_columns(nodes(joined_)); }
  void run_joined(const TensorView& column_sums = {}) {
    std::vector<ChainNode> all = nodes(joined_);
    all.back().io.column_sums = column_sums;
    Kernels kernels;
    kernels.push_back(all.size() > 1 ? card_.backend().lower_joined(all)
                                     : card_.backend().lower(*all[0].op, all[0].io));
    card_.run(std::move(kernels));
  }
  TensorView view(size_t value) const { return apart_[value]; }
  std::vector<float> apart(size_t value) const { return card_.read(apart_[value]); }
  std::vector<float> joined(size_t value) const { return card_.read(joined_[value]); }

 private:
  struct Recorded {
    Op op;
    std::vector<size_t> in, out;
    size_t operand, result;
    bool only;
  };
  std::vector<ChainNode> nodes(const std::vector<TensorView>& views) const {
    std::vector<ChainNode> all;
    for (const Recorded& node : nodes_) {
      ChainNode one{
          .op = &node.op, .result = node.result, .operand = node.operand, .only = node.only};
      for (size_t id : node.in) one.io.in.push_back(views[id]);
      for (size_t id : node.out) one.io.out.push_back(views[id]);
      one.io.packed = packed_.get();
      all.push_back(std::move(one));
    }
    return all;
  }
  Card& card_;
  std::vector<TensorView> apart_, joined_;
  std::vector<Recorded> nodes_;
  std::unique_ptr<PackedParams> packed_;
};

GatherTokens another_order(int64_t tokens, int64_t width) {
  GatherTokens op;
  op.tokens = tokens, op.width = width;
  for (int64_t t = 0; t < tokens; ++t)  // 5 and the number of tokens have no divisor in common
    op.from.push_back(static_cast<int32_t>((t * 5 + 3) % tokens));
  return op;
}

// Sums over rows are added up in another order.
void expect_near(const std::vector<float>& got, const std::vector<float>& expected) {
  double squares = 0;
  for (float x : expected) squares += static_cast<double>(x) * static_cast<double>(x);
  const double rms = std::sqrt(squares / static_cast<double>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], 1e-5 * (rms + std::abs(static_cast<double>(expected[i]))))
        << i;
}
std::vector<float> plus_columns(std::vector<float> sums, const std::vector<float>& of) {
  for (size_t i = 0; i < of.size(); ++i) sums[i % sums.size()] += of[i];
  return sums;
}

constexpr int64_t kImages = 9, kTokens = 12;

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

// A product added up in another order may be rounded the other way here and there.
void expect_alike(const std::vector<float>& got, const std::vector<float>& expected,
                  double most = 1e-3) {
  double squares = 0, errors = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double e = expected[i], off = got[i] - e;
    squares += e * e, errors += off * off;
  }
  EXPECT_LT(std::sqrt(errors), most * std::sqrt(squares));
  const double rms = std::sqrt(squares / static_cast<double>(expected.size()));
  for (size_t i = 0; i < expected.size(); ++i)
    ASSERT_NEAR(got[i], expected[i], 0.05 * (rms + std::abs(static_cast<double>(expected[i]))))
        << i;
}

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
  if (!chain.joins()) GTEST_SKIP() << "only a Hopper card has the kernel";
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
  bool biased = true;

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
    chain.add(Linear{}, {x, narrow({width, depth}), biased ? narrow(channels, 3) : none, none},
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
  if (!chain.joins()) GTEST_SKIP() << "only a Hopper card has the kernel";
  chain.run_apart(), chain.run_joined();
  expect_alike(chain.joined(t.kSum), chain.apart(t.kSum));
  // The one rounds the normed rows, the other the weights.
  expect_alike(chain.joined(t.kY), chain.apart(t.kY), 4e-3);
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
  if (!chain.joins()) GTEST_SKIP() << "only a Hopper card has the kernel";
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
    if (!chain.joins()) GTEST_SKIP() << "only a Hopper card has the kernel";
    chain.run_apart(), chain.run_joined();
    for (size_t id : {dx, dw2, db2, dw1}) expect_alike(chain.joined(id), chain.apart(id), most);
    if (s.biased) expect_alike(chain.joined(db1), chain.apart(db1), most);
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
