// What a backend's kernels leave once more is not kept, and what nobody reads any more is known.
#include "vitrum/runtime/joints.h"

#include <gtest/gtest.h>

#include "tests/support/training_graph.h"
#include "vitrum/core/philox.h"
#include "vitrum/runtime/backends.h"

namespace vitrum::test {
namespace {

// The CPU's, with a kernel for the backward pass of an MLP in front of which GELU is computed
// again.
class Again final : public Backend {
 public:
  explicit Again(bool can) : can_(can) {}
  std::string name() const override { return cpu_->name(); }
  Buffer allocate(size_t bytes) override { return cpu_->allocate(bytes); }
  void upload(TensorView to, const void* from) override { cpu_->upload(to, from); }
  void download(void* to, TensorView from) override { cpu_->download(to, from); }
  bool host_visible() const override { return true; }
  std::unique_ptr<Kernel> lower(const Op& op, const Operands& io) override {
    return cpu_->lower(op, io);
  }
  size_t joins(std::span<const ChainNode> chain) const override {
    if (!std::holds_alternative<Activation>(*chain[0].op)) return cpu_->joins(chain);
    const bool mlp = chain.size() > 2 && chain[1].operand == LinearBwd::kX && chain[1].only &&
                     cpu_->joins(chain.subspan(1)) == 2;
    return can_ && mlp ? 3 : 1;
  }
  std::unique_ptr<Kernel> lower_joined(std::span<const ChainNode> joined) override {
    if (joined.size() < 3) return cpu_->lower_joined(joined);
    EXPECT_TRUE(joined[2].free[LinearBwd::kSaved]);
    EXPECT_FALSE(joined[2].free[LinearBwd::kWeight]);
    ++computed;
    const TensorView given = joined[0].io.in[Activation::kX];
    auto own = std::make_shared<Buffer>(cpu_->allocate(given.bytes()));
    std::vector<ChainNode> nodes(joined.begin(), joined.end());
    nodes[0].io.out[Activation::kY].data = nodes[1].io.in[LinearBwd::kX].data = own->data();
    const std::shared_ptr<Kernel> first = cpu_->lower(*nodes[0].op, nodes[0].io),
                                  then = cpu_->lower_joined(std::span(nodes).subspan(1));
    // Not even what GELU was given is read any more.
    return make_kernel([first, then, given, own] {
      first->launch(), then->launch();
      std::fill_n(static_cast<std::byte*>(given.data), given.bytes(), std::byte{0xff});
    });
  }

  int computed = 0;

 private:
  const std::unique_ptr<Backend> cpu_ = make_backend({.device = "cpu", .threads = 1});
  const bool can_;
};

constexpr int64_t kBatch = 3, kDepth = 5;

struct Trained {
  std::vector<float> gradients;
  int64_t bytes = 0;
  bool operator==(const Trained&) const = default;
};

Trained train(Again& backend, float drop = 0) {
  const ModelConfig config{ViTConfig{.image_h = 8,
                                     .image_w = 8,
                                     .patch_h = 4,
                                     .patch_w = 4,
                                     .width = 16,
                                     .depth = kDepth,
                                     .heads = 2,
                                     .mlp_width = 64,
                                     .classes = 5,
                                     .drop_act = drop}};
  TrainingGraph graph(config, kBatch);
  ParamStore store(graph.g, backend);
  store.initialize(1);
  Program program = graph.compile(store);
  std::vector<float> image(static_cast<size_t>(kBatch * 3 * 8 * 8));
  for (size_t i = 0; i < image.size(); ++i) image[i] = static_cast<float>(i % 17) / 8 - 1;
  const std::vector<float> weight(kBatch, 1.f / kBatch);
  const std::vector<int32_t> target = {0, 3, 4};
  const RandomState random{1, 2, 3, 0};
  program.upload(graph.image, image.data()), program.upload(graph.target, target.data());
  program.upload(graph.weight, weight.data());
  if (drop > 0) program.upload(graph.rng, &random);
  Trained trained{.bytes = program.plan().bytes};
  program.run();
  program.run();  // gradients add up
  const TensorView all = store.arena(Arena::kGrad);
  trained.gradients.resize(static_cast<size_t>(all.shape.numel()));
  backend.download(trained.gradients.data(), all);
  return trained;
}

TEST(Joints, WhatAKernelLeavesAgainIsNotKept) {
  Again can(true), cannot(false);
  const Trained less = train(can), all = train(cannot);
  EXPECT_EQ(less.gradients, all.gradients);
  EXPECT_EQ(can.computed, (kDepth + 1) / 2);  // of the first layers
  EXPECT_EQ(cannot.computed, 0);
  const int64_t tokens = 5, hidden = kBatch * tokens * 64 * 4;
  EXPECT_LE(less.bytes, all.bytes - can.computed * hidden * 9 / 10);
}

TEST(Joints, WhatWasDroppedIsKept) {
  Again can(true), cannot(false);
  EXPECT_EQ(train(can, 0.1f).gradients, train(cannot, 0.1f).gradients);
  EXPECT_EQ(can.computed, 0);
}

}  // namespace
}  // namespace vitrum::test
