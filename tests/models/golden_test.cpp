// Whole models against PyTorch: tools/golden/models_golden.py wrote logits, loss, every gradient
// and ten optimiser steps.
#include "tests/support/golden.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/support/training_graph.h"
#include "vitrum/core/philox.h"
#include "vitrum/runtime/backends.h"

namespace vitrum::test {
namespace {

using Json = nlohmann::json;
constexpr double kTolerance = 1e-4;  // of a tensor's norm

SwinConfig swin_config_of(const Json& m) {
  return {.image_h = m.at("image")[0],
          .image_w = m.at("image")[1],
          .patch_h = m.at("patch"),
          .patch_w = m.at("patch"),
          .width = m.at("width"),
          .depths = m.at("depths"),
          .heads = m.at("heads"),
          .window_h = m.at("window"),
          .window_w = m.at("window"),
          .mlp_ratio = m.at("mlp_ratio"),
          .classes = m.at("classes")};
}

ModelConfig config_of(const Golden& golden) {
  const Json& m = golden.meta.at("model");
  if (m.contains("window")) return swin_config_of(m);
  const std::string act = m.at("act");
  ViTConfig cfg{.image_h = m.at("image")[0],
                .image_w = m.at("image")[1],
                .patch_h = m.at("patch"),
                .patch_w = m.at("patch"),
                .channels = m.at("channels"),
                .width = m.at("width"),
                .depth = m.at("depth"),
                .heads = m.at("heads"),
                .mlp_width = m.at("hidden"),
                .classes = m.at("classes"),
                .eps = m.at("eps")};
  cfg.act = act == "relu" ? Act::kRelu : act == "gelu_tanh" ? Act::kGeluTanh : Act::kGelu;
  cfg.patch_order =
      m.at("patch_order") == "PPC" ? PatchOrder::kChannelLast : PatchOrder::kChannelFirst;
  cfg.pre_norm = m.at("norm") == "pre",
  cfg.pool = m.at("pool") == "avg" ? ViTPool::kMean : ViTPool::kToken;
  cfg.qkv_bias = m.at("qkv_bias"), cfg.proj_bias = cfg.mlp_bias = m.at("bias");
  cfg.norm_bias = m.at("norm_bias"), cfg.head_bias = m.at("head_bias");
  cfg.layer_scale = m.at("layer_scale").get<bool>() ? 1.f : 0.f;
  for (const std::string place : m.at("dropout")) {
    const float p = golden.meta.at("random").at("p");
    (place == "pos"    ? cfg.drop_pos
     : place == "attn" ? cfg.drop_attn
     : place == "proj" ? cfg.drop_proj
     : place == "act"  ? cfg.drop_act
                       : cfg.drop_mlp) = p;
  }
  return cfg;
}

struct Bench {  // a golden model on one backend
  Bench(const Golden& golden, Backend& backend, DType master = DType::kF32,
        TrainingOptions options = {})
      : graph(config_of(golden), golden.meta.at("model").at("batch"),
              with_smoothing(golden, options)),
        store(graph.g, backend, master),
        program(graph.compile(store, {.compute = master})) {
    for (size_t i = 0; i < store.specs().size(); ++i)
      store.write(i, golden.f32("param." + store.specs()[i].name));
    upload_floats(graph.image, golden.f32("image"));
    program.upload(graph.target, golden.read<int32_t>("labels").data());
    const int64_t batch = golden.meta.at("model").at("batch");
    upload_floats(graph.weight,
                  std::vector<float>(static_cast<size_t>(batch), 1.f / static_cast<float>(batch)));
    if (golden.meta.contains("random")) {
      const RandomState random{golden.meta["random"].at("seed"), 0,
                               golden.meta["random"].at("step"), 0};
      program.upload(graph.rng, &random);
    }
  }
  static TrainingOptions with_smoothing(const Golden& golden, TrainingOptions options) {
    options.smoothing = golden.meta.at("model").at("label_smoothing");
    return options;
  }
  void upload_floats(Value v, const std::vector<float>& values) {
    const std::vector<double> wide(values.begin(), values.end());
    if (program[v].dtype == DType::kF64)
      program.upload(v, wide.data());
    else
      program.upload(v, values.data());
  }
  std::vector<float> logits() {
    std::vector<float> out(static_cast<size_t>(graph.logits.shape().numel()));
    program.download(out.data(), graph.logits);
    return out;
  }
  double gradient_norm() {
    double sum = 0;
    for (size_t i = 0; i < store.specs().size(); ++i)
      sum += std::pow(norm_of(store.read(i, Arena::kGrad)), 2);
    return std::sqrt(sum);
  }

  TrainingGraph graph;
  ParamStore store;
  Program program;
};

class GoldenModel : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(GoldenModel, LogitsLossAndGradients) {
  const auto [name, device] = GetParam();
  const Golden golden(name);
  const std::unique_ptr<Backend> backend = make_backend({.device = device, .threads = 2});
  Bench bench(golden, *backend);
  bench.program.run();
  expect_close(bench.logits(), golden.f32("logits"), 0, "logits");
  EXPECT_NEAR(bench.program.read_scalar(bench.graph.loss), golden.f32("loss")[0], 1e-5);
  const double floor = 1e-6 / kTolerance * bench.gradient_norm();
  for (size_t i = 0; i < bench.store.specs().size(); ++i) {
    const std::string& param = bench.store.specs()[i].name;
    expect_close(bench.store.read(i, Arena::kGrad), golden.f32("grad." + param), floor, param);
  }
}

INSTANTIATE_TEST_SUITE_P(
    PyTorch, GoldenModel,
    testing::Combine(testing::Values("vit_prenorm", "vit_postnorm", "minvit", "vit_switches",
                                     "vit_dropout", "minvit_dropout", "vit_dropout001", "swin"),
                     testing::Values("reference", "cpu")),
    [](const auto& info) {
      return std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
    });

// Ten steps on one batch, as the file's optimiser section describes them.
class GoldenOptimizer : public testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(GoldenOptimizer, TenSteps) {
  const auto [name, kind] = GetParam();
  const Golden golden(name);
  const Json& options = golden.meta.at("optimizers").at(kind);
  const std::unique_ptr<Backend> backend = make_backend({.device = "cpu", .threads = 2});
  Bench bench(golden, *backend);
  ParamStore& store = bench.store;

  Graph u;
  OptimizerStep step{.kind = kind == std::string("sgd")    ? OptimizerKind::kSgd
                             : kind == std::string("adam") ? OptimizerKind::kAdam
                                                           : OptimizerKind::kAdamW};
  if (options.contains("momentum")) step.beta1 = options["momentum"];
  for (size_t i = 0; i < store.specs().size(); ++i)
    step.segments.push_back(
        {store.offset(i), store.specs()[i].shape.numel(), 1, options.at("weight_decay")});
  const Value hyper = u.input("hyper", {4}, DType::kF32, true),
              clip = u.add_value({.name = "clip", .shape = {2}, .exact = true});
  const auto arena = [&](Arena which) {
    return u.arena(which, store.elements(which), DType::kF32).id();
  };
  const ValueId gradients = arena(Arena::kGrad);
  u.nodes.push_back({.op = ClipScale{.max_norm = options.value("clip_norm", 0.f)},
                     .in = {gradients},
                     .out = {clip.id()}});
  u.nodes.push_back({.op = step,
                     .in = {hyper.id(), clip.id()},
                     .out = {gradients, arena(Arena::kMaster), arena(Arena::kMoment1),
                             arena(Arena::kMoment2), kAbsent, kAbsent}});
  Program update(u, std::span(&clip, 1), store);

  const std::vector<float> losses = golden.f32(std::string("losses.") + kind),
                           norms = golden.f32(std::string("norms.") + kind);
  for (int t = 1; t <= 10; ++t) {
    bench.program.run();
    const size_t at = static_cast<size_t>(t - 1);
    EXPECT_NEAR(bench.program.read_scalar(bench.graph.loss), losses[at], 1e-4 * losses[at])
        << "step " << t;
    const std::array<float, 4> values = {options.at("lr"),
                                         static_cast<float>(1 - std::pow(step.beta1, t)),
                                         static_cast<float>(1 - std::pow(step.beta2, t)), 0};
    update.upload(hyper, values.data());
    update.run();
    EXPECT_NEAR(update.read_scalar(clip), norms[at], 1e-4 * norms[at]) << "step " << t;
  }
  for (size_t i = 0; i < store.specs().size(); ++i) {
    const std::string& param = store.specs()[i].name;
    std::vector<float> ours = store.read(i),
                       theirs = golden.f32(std::string("after10.") + kind + "." + param);
    if (param.ends_with("attn.qkv.bias")) {
      // The key bias has no gradient in exact arithmetic; an adaptive optimiser makes steps of its
      // rounding errors.
      const auto third = static_cast<std::ptrdiff_t>(ours.size() / 3);
      for (auto* v : {&ours, &theirs}) std::fill(v->begin() + third, v->begin() + 2 * third, 0.f);
    }
    expect_close(ours, theirs, 0, param);
  }
}

INSTANTIATE_TEST_SUITE_P(PyTorch, GoldenOptimizer,
                         testing::Combine(testing::Values("vit_prenorm", "vit_postnorm", "minvit",
                                                          "vit_switches", "swin"),
                                          testing::Values("sgd", "adam", "adamw")),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::get<1>(info.param);
                         });

TEST(Golden, DoublePrecisionGradients) {
  const Golden golden("vit_prenorm");
  const std::unique_ptr<Backend> backend = make_backend({.device = "reference"});
  Bench bench(golden, *backend, DType::kF64);
  bench.program.run();
  for (size_t i = 0; i < bench.store.specs().size(); ++i) {
    const std::string& param = bench.store.specs()[i].name;
    const TensorView view = bench.store.view(i, Arena::kGrad);
    const std::vector<double> theirs = golden.read<double>("grad64." + param);
    double worst = 0, scale = 1e-9;
    for (size_t k = 0; k < theirs.size(); ++k) {
      worst = std::max(worst, std::abs(view.f64()[k] - theirs[k]));
      scale = std::max(scale, std::abs(theirs[k]));
    }
    EXPECT_LE(worst, 1e-6 * std::max(scale, 1e-3)) << param;  // ours has eps as a float
  }
}

TEST(Golden, SoftTargets) {
  const Golden golden("vit_switches");
  const std::unique_ptr<Backend> backend = make_backend({.device = "cpu"});
  const int64_t batch = golden.meta.at("model").at("batch"),
                classes = golden.meta.at("model").at("classes");
  Graph g(Mode::kTraining);
  const Value logits = g.input("logits", {batch, classes}),
              target = g.input("target", {batch, classes});
  const Value weight = g.input("weight", {batch}, DType::kF32, true),
              loss = cross_entropy(logits, target, weight);
  ParamStore store(g, *backend);
  Program program(g, std::span(&loss, 1), store);
  program.upload(logits, golden.f32("logits").data());
  program.upload(target, golden.f32("soft.targets").data());
  program.upload(
      weight,
      std::vector<float>(static_cast<size_t>(batch), 1.f / static_cast<float>(batch)).data());
  program.run();
  EXPECT_NEAR(program.read_scalar(loss), golden.f32("soft.loss")[0], 1e-5);
}

}  // namespace
}  // namespace vitrum::test
