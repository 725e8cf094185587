// ResNets against torchvision (tools/golden/resnet_golden.py): training mode with every gradient
// and the running statistics, inference mode, ten optimiser steps, padded batches.
#include "vitrum/models/resnet.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "tests/support/cuda.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "vitrum/graph/functional.h"
#include "vitrum/models/registry.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/runtime/program.h"
#include "vitrum/runtime/summary.h"

namespace vitrum::test {
namespace {

ResNetConfig config_of(const Golden& golden) {
  const auto& m = golden.meta.at("model");
  ResNetConfig c{.image_h = m.at("image")[0],
                 .image_w = m.at("image")[1],
                 .classes = m.at("classes"),
                 .width = m.at("width"),
                 .bottleneck = m.at("bottleneck"),
                 .small_stem = m.at("small_stem")};
  for (size_t i = 0; i < 4; ++i) c.depths[i] = m.at("depths")[i];
  return c;
}

void fill(ParamStore& store, const Golden& golden) {
  for (size_t i = 0; i < store.specs().size(); ++i)
    store.write(i, golden.f32("param." + store.specs()[i].name));
}

struct TrainOptions {
  bool fused = true;
  Recompute recompute = Recompute::kNone;
  int64_t padding = 0;  // samples of weight 0 behind the real ones
  int threads = 2;
};

// A golden model in training mode on one backend.
struct Training {
  Training(const Golden& golden, Backend& backend, const TrainOptions& options = {})
      : batch(golden.meta.at("model").at("batch")) {
    const ResNetConfig cfg = config_of(golden);
    const int64_t all = batch + options.padding;
    image = g.input("image", {all, 3, cfg.image_h, cfg.image_w});
    const Value target = g.input("target", {all}, DType::kI32),
                weight = g.input("weight", {all}, DType::kF32, /*exact=*/true);
    g.sample_weight = weight;
    logits = resnet(Scope(g), image, cfg);
    loss = cross_entropy(logits, target, weight);
    if (options.fused) fuse(g);
    differentiate(g, loss, options.recompute);
    store.emplace(g, backend);
    fill(*store, golden);
    program.emplace(g, std::array{loss, logits}, *store);

    std::vector<float> pixels = golden.f32("image"),
                       weights(static_cast<size_t>(batch), 1.f / static_cast<float>(batch));
    std::vector<int32_t> labels = golden.read<int32_t>("labels");
    pixels.resize(static_cast<size_t>(image.shape().numel()), 3.f);
    weights.resize(static_cast<size_t>(all)), labels.resize(weights.size());
    program->upload(image, pixels.data());
    program->upload(target, labels.data());
    program->upload(weight, weights.data());
  }
  std::vector<float> read_logits() {
    std::vector<float> out(static_cast<size_t>(logits.shape().numel()));
    program->download(out.data(), logits);
    out.resize(static_cast<size_t>(batch * logits.dim(1)));
    return out;
  }

  int64_t batch;
  Graph g{Mode::kTraining};
  Value image, logits, loss;
  std::optional<ParamStore> store;
  std::optional<Program> program;
};

std::vector<float> infer(const Golden& golden, ParamStore& store, bool fused) {
  const ResNetConfig cfg = config_of(golden);
  Graph g(Mode::kInference);
  const Value image =
      g.input("image", {golden.meta.at("model").at("batch"), 3, cfg.image_h, cfg.image_w});
  const Value logits = resnet(Scope(g), image, cfg);
  if (fused) fuse(g);
  Program program(g, std::span(&logits, 1), store);
  program.upload(image, golden.f32("image").data());
  program.run();
  std::vector<float> out(static_cast<size_t>(logits.shape().numel()));
  program.download(out.data(), logits);
  return out;
}

using Param = std::tuple<const char*, const char*>;
class GoldenResNet : public testing::TestWithParam<Param> {
 protected:
  const Golden golden_{std::get<0>(GetParam())};
  const std::unique_ptr<Backend> backend_ =
      make_backend({.device = std::get<1>(GetParam()), .threads = 2});

  void expect_gradients(Training& t) {
    double all = 0;
    for (size_t i = 0; i < t.store->specs().size(); ++i)
      if (t.store->has_room(i, Arena::kGrad))
        all += std::pow(norm_of(t.store->read(i, Arena::kGrad)), 2);
    for (size_t i = 0; i < t.store->specs().size(); ++i) {
      const ParamSpec& spec = t.store->specs()[i];
      if (spec.buffer)
        expect_close(t.store->read(i), golden_.f32("moved." + spec.name), 0, spec.name);
      else
        expect_close(t.store->read(i, Arena::kGrad), golden_.f32("grad." + spec.name),
                     1e-2 * std::sqrt(all), spec.name, tolerance("gradient"));
    }
  }
  double tolerance(const char* what) const { return golden_.meta.at("tolerance").at(what); }
};

TEST_P(GoldenResNet, TrainingAndInference) {
  Training t(golden_, *backend_);
  t.program->run();
  expect_close(t.read_logits(), golden_.f32("logits"), 0, "logits");
  EXPECT_NEAR(t.program->read_scalar(t.loss), golden_.f32("loss")[0], 1e-4);
  expect_gradients(t);
  expect_close(infer(golden_, *t.store, true), golden_.f32("inference"), 0, "inference");
}

// Padding changes nothing: neither statistics nor gradients see it.
TEST_P(GoldenResNet, PaddedBatch) {
  Training t(golden_, *backend_, {.padding = 2});
  t.program->run();
  expect_close(t.read_logits(), golden_.f32("logits"), 0, "logits");
  expect_gradients(t);
}

TEST_P(GoldenResNet, TenSteps) {
  Training t(golden_, *backend_);
  ParamStore& store = *t.store;
  const auto& sgd = golden_.meta.at("sgd");
  OptimizerStep step{.kind = OptimizerKind::kSgd, .beta1 = sgd.at("momentum")};
  for (size_t i = 0; i < store.specs().size(); ++i)
    if (store.specs()[i].trainable)
      step.segments.push_back(
          {store.offset(i), store.specs()[i].shape.numel(), 1, sgd.at("weight_decay")});
  Graph u;
  const Value hyper = u.input("hyper", {4}, DType::kF32, true),
              clip = u.add_value({.name = "clip", .shape = {2}, .exact = true});
  const auto arena = [&](Arena which) {
    return u.arena(which, store.elements(which), DType::kF32).id();
  };
  const ValueId gradients = arena(Arena::kGrad);
  u.nodes.push_back({.op = ClipScale{}, .in = {gradients}, .out = {clip.id()}});
  u.nodes.push_back({.op = step,
                     .in = {hyper.id(), clip.id()},
                     .out = {gradients, arena(Arena::kMaster), arena(Arena::kMoment1), kAbsent,
                             kAbsent, kAbsent}});
  Program update(u, std::span(&clip, 1), store);
  const std::array<float, 4> values = {sgd.at("lr"), 1, 1, 0};
  update.upload(hyper, values.data());

  const std::vector<float> losses = golden_.f32("losses");
  for (size_t s = 0; s < losses.size(); ++s) {
    t.program->run();
    EXPECT_NEAR(t.program->read_scalar(t.loss), losses[s],
                tolerance("losses") * std::max(losses[s], 0.1f))
        << "step " << s;
    update.run();
  }
  for (size_t i = 0; i < store.specs().size(); ++i)
    expect_close(store.read(i), golden_.f32("after10." + store.specs()[i].name), 0.1,
                 store.specs()[i].name, tolerance("after10"));
}

INSTANTIATE_TEST_SUITE_P(PyTorch, GoldenResNet,
                         testing::Combine(testing::Values("resnet_basic", "resnet_bottleneck"),
                                          testing::Values("reference", "cpu")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param);
                         });

TEST(ResNet, OnCudaAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  const auto backend = cuda(/*exact=*/true), host = make_backend({.device = "cpu", .threads = 2});
  for (const char* name : {"resnet_basic", "resnet_bottleneck"}) {
    const Golden golden(name);
    Training card(golden, *backend, {.padding = 1}), cpu(golden, *host);
    card.program->run(), cpu.program->run();
    expect_close(card.read_logits(), golden.f32("logits"), 0, "logits");
    for (size_t i = 0; i < cpu.store->specs().size(); ++i) {
      const ParamSpec& spec = cpu.store->specs()[i];
      const Arena which = spec.buffer ? Arena::kMaster : Arena::kGrad;
      expect_close(card.store->read(i, which), cpu.store->read(i, which), 1e-2, spec.name, 1e-3);
    }
    expect_close(infer(golden, *card.store, true), golden.f32("inference"), 0, "inference");
  }
}

// ---- what must not depend on how a program is compiled or run ----

std::vector<std::vector<float>> everything(const TrainOptions& options) {
  const Golden golden("resnet_basic");
  const auto backend = make_backend({.device = "cpu", .threads = options.threads});
  Training t(golden, *backend, options);
  t.program->run();
  std::vector<std::vector<float>> all = {t.read_logits()};
  for (size_t i = 0; i < t.store->specs().size(); ++i)
    all.push_back(t.store->read(i, t.store->specs()[i].buffer ? Arena::kMaster : Arena::kGrad));
  return all;
}

TEST(ResNet, SameBitsFusedRecomputedAndForAnyThreads) {
  const auto plain = everything({.fused = false, .threads = 1});
  EXPECT_EQ(everything({.threads = 1}), plain);
  EXPECT_EQ(everything({.threads = 3}), plain);
  EXPECT_EQ(everything({.recompute = Recompute::kCheap}), plain);
  // Recomputing must not move the running statistics a second time.
  EXPECT_EQ(everything({.recompute = Recompute::kBlock}), plain);
}

TEST(ResNet, FusedInferenceIsTheSameBits) {
  for (const char* name : {"resnet_basic", "resnet_bottleneck"}) {
    const Golden golden(name);
    const auto backend = make_backend({.device = "cpu", .threads = 2});
    Graph g;
    const ResNetConfig cfg = config_of(golden);
    resnet(Scope(g), g.input("image", {1, 3, cfg.image_h, cfg.image_w}), cfg);
    ParamStore store(g, *backend);
    fill(store, golden);
    EXPECT_EQ(infer(golden, store, true), infer(golden, store, false)) << name;
  }
}

TEST(ResNet, FusionLeavesConvolutionsAndPoolsOnly) {
  Graph g;
  const ResNetConfig cfg{.image_h = 64, .image_w = 64, .bottleneck = true};
  resnet(Scope(g), normalize(g.input("image", {1, 3, 64, 64}, DType::kU8), {0.5f}, {0.5f}), cfg);
  fuse(g);
  for (const Node& node : g.nodes)
    EXPECT_TRUE(std::holds_alternative<Conv2d>(node.op) ||
                std::holds_alternative<MaxPool>(node.op) || std::holds_alternative<Pool>(node.op) ||
                std::holds_alternative<Linear>(node.op) ||
                std::holds_alternative<Patchify>(node.op))
        << node.name;
}

// The average of the weights has no statistics of its own: it is run with the model's.
TEST(ResNet, RunningStatisticsAreNotAveraged) {
  const Golden golden("resnet_basic");
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  Training t(golden, *backend);
  t.store->arena(Arena::kEma);
  t.program->run();
  const auto at = static_cast<size_t>(t.store->index("bn1.running_mean"));
  EXPECT_EQ(t.store->read(at, Arena::kEma), t.store->read(at));
  EXPECT_NE(t.store->read(at), golden.f32("param.bn1.running_mean"));
}

TEST(ResNet, ParametersAndMultiplyAddsAreTorchvisions) {
  const auto count = [](const char* name) {
    const ModelConfig& c = find_preset(name).config;
    Graph g;
    model(Scope(g), g.input("image", {1, c.channels(), c.image_h(), c.image_w()}), c);
    return std::pair(count_parameters(g).all, multiply_adds(g));
  };
  EXPECT_EQ(count("resnet18").first, 11'689'512);
  EXPECT_EQ(count("resnet34").first, 21'797'672);
  EXPECT_EQ(count("resnet50").first, 25'557'032);
  EXPECT_EQ(count("resnet101").first, 44'549'160);
  EXPECT_EQ(count("resnet18_cifar").first, 11'173'962);
  EXPECT_NEAR(static_cast<double>(count("resnet18").second), 1.814e9, 1e6);
  EXPECT_NEAR(static_cast<double>(count("resnet50").second), 4.089e9, 1e6);
}

TEST(ResNet, ImpossibleModelsAreRefused) {
  const auto trace = [](ResNetConfig cfg) {
    Graph g;
    resnet(Scope(g), g.input("image", {1, cfg.channels, 8, 8}), cfg);
  };
  trace({});
  EXPECT_ERROR(trace(ResNetConfig({.depths = {1, 0, 1, 1}})), ErrorKind::kUsage, "block");
  EXPECT_ERROR(trace(ResNetConfig({.width = 0})), ErrorKind::kUsage, "width");
  EXPECT_ERROR(trace(ResNetConfig({.momentum = 2})), ErrorKind::kUsage, "momentum");
  EXPECT_ERROR(trace(ResNetConfig({.image_h = 0, .image_w = 0})), ErrorKind::kUsage, "0x0");
}

}  // namespace
}  // namespace vitrum::test
