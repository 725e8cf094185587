// Layers of eight bits and the norms between them as one kernel: the bits of each on its own.
#include <gtest/gtest.h>

#include <cmath>

#include "vitrum/core/philox.h"
#include "vitrum/cpu/cpu.h"
#include "vitrum/runtime/backend.h"

namespace vitrum {
namespace {

struct Sizes {
  int64_t rows, width, hidden, out;
};

// proj, norm, fc1, fc2, norm, qkv of a block, and the values that they read and write.
class Block {
 public:
  explicit Block(const Sizes& s) : rows_(s.rows) {
    const int64_t w = s.width, h = s.hidden;
    const auto attended = value({s.rows, w}), residual = value({s.rows, w});
    const auto proj = layer(QLinear{}, attended, w, w);
    const auto sum1 = norm(residual, proj, w);
    const auto hidden = layer(QLinear{.act = Act::kGelu}, values_.size() - 1, w, h);
    const auto fc2 = layer(QLinear{}, hidden, h, w);
    sum2_ = norm(fc2, sum1, w);
    hidden_ = hidden;
    qkv_ = layer(QLinear{}, values_.size() - 1, w, s.out);
    for (size_t i = 1; i < nodes_.size(); ++i) link(i);
  }

  std::span<const ChainNode> nodes() const { return nodes_; }

  // What is between the nodes has no memory, but what is kept.
  void join(Backend& backend, bool keep_hidden) {
    std::vector<ChainNode> joined = nodes_;
    std::vector<bool> written(values_.size(), false), read(values_.size(), false);
    for (const ChainNode& n : joined) {
      for (const int32_t id : n.out) written[static_cast<size_t>(id)] = true;
      for (const int32_t id : n.in)
        if (id >= 0) read[static_cast<size_t>(id)] = true;
    }
    for (ChainNode& n : joined) {
      const auto hide = [&](std::vector<TensorView>& views, const std::vector<int32_t>& ids) {
        for (size_t i = 0; i < ids.size(); ++i) {
          const auto id = static_cast<size_t>(ids[i]);
          const bool kept = id == sum2_ || (keep_hidden && id == hidden_);
          if (ids[i] >= 0 && written[id] && read[id] && !kept) views[i].data = nullptr;
        }
      };
      hide(n.io.in, n.in), hide(n.io.out, n.out);
    }
    backend.lower_joined(joined)->launch();
  }
  void apart(Backend& backend) {
    for (const ChainNode& n : nodes_) backend.lower(*n.op, n.io)->launch();
  }
  // The sum and the last layer's result, and what is between where it was kept.
  std::vector<std::vector<float>> results(bool with_hidden) const {
    std::vector<std::vector<float>> all = {*values_[sum2_], *values_[qkv_]};
    if (with_hidden) all.push_back(*values_[hidden_]);
    return all;
  }

 private:
  size_t value(Shape shape, float spread = 1) {
    PhiloxStream draw(9, 0, values_.size());
    auto& v = *values_.emplace_back(std::make_unique<std::vector<float>>());
    for (int64_t i = 0; i < shape.numel(); ++i)
      v.push_back(spread * static_cast<float>(draw.normal()));
    shapes_.push_back(shape);
    return values_.size() - 1;
  }
  TensorView view(size_t i) { return {values_[i]->data(), shapes_[i], DType::kF32}; }
  size_t layer(const QLinear& op, size_t x, int64_t in, int64_t out) {
    const size_t w = value({out, in}, 1 / std::sqrt(static_cast<float>(in))), b = value({out}),
                 y = value({rows_, out});
    add(op, {x, w, b}, {y});
    return y;
  }
  // Returns the sum; what is normed is the last value.
  size_t norm(size_t a, size_t b, int64_t width) {
    const size_t w = value({width}), bias = value({width}), sum = value({rows_, width}),
                 y = value({rows_, width});
    add(AddLayerNorm{}, {a, b, w, bias}, {sum, y});
    return sum;
  }
  void add(Op op, const std::vector<size_t>& in, const std::vector<size_t>& out) {
    ops_.push_back(std::make_unique<Op>(std::move(op)));
    ChainNode node{.op = ops_.back().get(), .io = {}};
    for (const size_t i : in)
      node.io.in.push_back(view(i)), node.in.push_back(static_cast<int32_t>(i));
    for (const size_t i : out)
      node.io.out.push_back(view(i)), node.out.push_back(static_cast<int32_t>(i));
    nodes_.push_back(node);
  }
  void link(size_t i) {
    for (size_t r = 0; r < nodes_[i - 1].out.size(); ++r)
      for (size_t o = 0; o < nodes_[i].in.size(); ++o)
        if (nodes_[i - 1].out[r] == nodes_[i].in[o]) nodes_[i].result = r, nodes_[i].operand = o;
  }

  int64_t rows_;
  std::vector<std::unique_ptr<std::vector<float>>> values_;
  std::vector<Shape> shapes_;
  std::vector<std::unique_ptr<Op>> ops_;
  std::vector<ChainNode> nodes_;
  size_t sum2_ = 0, hidden_ = 0, qkv_ = 0;
};

class ByteChain : public ::testing::TestWithParam<Isa> {};

TEST_P(ByteChain, GivesTheBitsOfItsNodes) {
  for (const Sizes& s : {Sizes{197, 64, 200, 192}, Sizes{611, 33, 70, 17}, Sizes{48, 130, 96, 40},
                         Sizes{60, 16, 770, 129}}) {
    Block alone(s);
    alone.apart(*make_cpu_backend({.threads = 1, .max_isa = GetParam()}));
    for (const int threads : {1, 2, 3, 5})
      for (const bool kept : {false, true}) {
        Block together(s);
        together.join(*make_cpu_backend({.threads = threads, .max_isa = GetParam()}), kept);
        EXPECT_EQ(together.results(kept), alone.results(kept))
            << s.rows << " rows of " << s.width << ", " << threads << " threads";
      }
  }
}

// Where each thread would have few rows, all weights are not worth reading for them.
TEST_P(ByteChain, IsForEnoughRows) {
  const Block many({197, 64, 128, 192}), few({40, 64, 128, 192});
  const auto joins = [&](const Block& block, int threads, size_t first = 0) {
    return make_cpu_backend({.threads = threads, .max_isa = GetParam()})
        ->joins(block.nodes().subspan(first));
  };
  EXPECT_EQ(joins(many, 1), 6u);
  EXPECT_EQ(joins(many, 4), 6u);
  EXPECT_EQ(joins(many, 5), 1u);
  EXPECT_EQ(joins(few, 1), 1u);
  EXPECT_EQ(joins(many, 2, 1), 5u);  // beginning with a norm
}

INSTANTIATE_TEST_SUITE_P(Isa, ByteChain, ::testing::Values(Isa::kAuto, Isa::kAvx2),
                         [](const auto& info) {
                           return info.param == Isa::kAvx2 ? "avx2" : "auto";
                         });

}  // namespace
}  // namespace vitrum
