// Whole models on a CUDA card: the same training as on the CPU, the same bits however it is run.
#include <gtest/gtest.h>
#include <signal.h>

#include <cmath>

#include "tests/support/cuda.h"
#include "tests/support/tiny_run.h"
#include "tests/support/training_graph.h"
#include "tests/support/vit_of.h"
#include "vitrum/core/philox.h"
#include "vitrum/infer/model_program.h"
#include "vitrum/train/step.h"

namespace vitrum::test {
namespace {

ModelSpec small_model() {
  ModelSpec model{.architecture = "vit_tiny_cifar"};
  model.config = ViTConfig{.image_h = 32,
                           .image_w = 32,
                           .patch_h = 4,
                           .patch_w = 4,
                           .width = 128,
                           .depth = 3,
                           .heads = 2,
                           .mlp_width = 256,
                           .classes = 10,
                           .layer_scale = 0.1f,
                           .drop_pos = 0.1f,
                           .drop_attn = 0.1f,
                           .drop_act = 0.1f,
                           .drop_path = 0.2f,
                           .patch_drop = 0.3f};
  model.preprocess.mean = model.preprocess.std = {0.5f, 0.5f, 0.5f};
  return model;
}

ModelSpec small_swin() {
  ModelSpec model = small_model();
  model.architecture = "swin_tiny_cifar";
  model.config = SwinConfig{.image_h = 32,
                            .image_w = 32,
                            .patch_h = 2,
                            .patch_w = 2,
                            .width = 32,
                            .depths = {2, 2},
                            .heads = {2, 4},
                            .window_h = 4,
                            .window_w = 4,
                            .classes = 10,
                            .drop_path = 0.2f};
  return model;
}

// The same windows, norms behind the branches, and heads of unit length.
ModelSpec small_swin_v2() {
  ModelSpec model = small_swin();
  model.architecture = "swinv2_tiny_window8_256";
  SwinV2Config config;
  static_cast<SwinConfig&>(config) = *model.config.as<SwinConfig>();
  model.config = config;
  return model;
}

// Enough channels for convolutions of two a thread in the first stage, too few pixels in the
// second.
ModelSpec small_convnext() {
  ModelSpec model = small_model();
  model.architecture = "convnext_tiny";
  model.config = ConvNeXtConfig{.image_h = 32,
                                .image_w = 32,
                                .classes = 10,
                                .patch_h = 2,
                                .patch_w = 2,
                                .depths = {2, 1},
                                .widths = {320, 352},
                                .layer_scale = 0.1f,
                                .drop_path = 0.2f};
  return model;
}

Batch noise_batch(const ModelConfig& c, int64_t count) {
  Batch batch;
  batch.count = count;
  batch.storage =
      allocate_host(static_cast<size_t>(count * c.channels() * c.image_h() * c.image_w()));
  PhiloxStream random(3, 1, 0);
  for (uint8_t& pixel : batch.pixels()) pixel = static_cast<uint8_t>(random.next_u32());
  for (int64_t i = 0; i < count; ++i)
    batch.labels.push_back(static_cast<int32_t>(random.below(10)));
  return batch;
}

std::vector<StepResult> losses(const ModelSpec& model, Backend& backend, DType compute) {
  Recipe recipe;
  recipe.batch_size = 24, recipe.clip_norm = 1, recipe.ema = 0.9, recipe.label_smoothing = 0.1;
  TrainStep step(model, recipe, compute, backend);
  const Batch batch = noise_batch(model.config, recipe.batch_size);
  for (int64_t i = 0; i < 6; ++i) step.backward(batch, batch.count, i), step.update(1e-3, i);
  return step.results();
}

void expect_close(const std::vector<StepResult>& got, const std::vector<StepResult>& expected,
                  double tolerance) {
  ASSERT_EQ(got.size(), expected.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(got[i].loss, expected[i].loss, tolerance * expected[i].loss) << "step " << i;
    EXPECT_NEAR(got[i].norm, expected[i].norm, 10 * tolerance * expected[i].norm) << "step " << i;
  }
}

TEST(CudaModel, TrainsAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  const auto card = cuda(/*exact=*/true), cpu = make_backend({.device = "cpu"});
  for (const ModelSpec& model : {small_model(), small_swin(), small_swin_v2(), small_convnext()}) {
    SCOPED_TRACE(model.architecture);
    expect_close(losses(model, *card, DType::kF32), losses(model, *cpu, DType::kF32), 1e-4);
    expect_close(losses(model, *card, DType::kBF16), losses(model, *cpu, DType::kBF16), 1e-2);
  }
}

// The gradients of one step, through run() or kernel by kernel.
std::vector<float> gradients(Backend& backend, Recompute recompute, bool captured) {
  const ViTConfig config = vit_of(small_model());
  TrainingGraph graph(config, 16, {.recompute = recompute});
  ParamStore store(graph.g, backend);
  store.initialize(5);
  Program program = graph.compile(store, {.compute = DType::kBF16});
  PhiloxStream random(4, 1, 0);
  std::vector<float> image(static_cast<size_t>(graph.image.shape().numel()));
  for (float& x : image) x = static_cast<float>(random.normal());
  const std::vector<int32_t> target(16, 3);
  const std::vector<float> weight(16, 1.f / 16);
  const RandomState rng{1, 2, 3, 0};
  program.upload(graph.image, image.data());
  program.upload(graph.target, target.data());
  program.upload(graph.weight, weight.data());
  program.upload(graph.rng, &rng);
  if (captured)
    program.run();
  else
    program.run_traced([](const Program::Step&, double) {});
  std::vector<float> all;
  for (size_t i = 0; i < store.specs().size(); ++i) {
    const std::vector<float> one = store.read(i, Arena::kGrad);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

TEST(CudaModel, CapturedAndRecomputedAreTheSameBits) {
  SKIP_WITHOUT_CUDA();
  const auto card = cuda(/*exact=*/false);
  const std::vector<float> plain = gradients(*card, Recompute::kNone, /*captured=*/false);
  EXPECT_TRUE(gradients(*card, Recompute::kNone, true) == plain);
  EXPECT_TRUE(gradients(*card, Recompute::kCheap, true) == plain);
  EXPECT_TRUE(gradients(*card, Recompute::kBlock, true) == plain);
  EXPECT_TRUE(gradients(*cuda(false), Recompute::kNone, true) == plain);
}

ModelSpec wide_model() {
  ModelSpec model = small_model();
  ViTConfig& config = vit_of(model);
  config.width = 768, config.heads = 12, config.mlp_width = 3072;
  config.layer_scale = config.drop_path = 0;
  return model;
}
// Norms far from plain ones.
void add_noise(ParamStore& store) {
  PhiloxStream random(6, 1, 0);
  for (size_t i = 0; i < store.specs().size(); ++i) {
    std::vector<float> values = store.read(i);
    for (float& x : values) x += 0.02f * static_cast<float>(random.normal());
    store.write(i, values);
  }
}

// The same with what newer families have.
std::vector<ModelSpec> wide_models() {
  std::vector<ModelSpec> models;
  const auto with = [&](const char* name, const auto& change) {
    models.push_back(wide_model());
    models.back().architecture = name;
    change(vit_of(models.back()));
  };
  with("plain", [](ViTConfig&) {});
  with("tanh", [](ViTConfig& c) { c.act = Act::kGeluTanh; });
  with("quick", [](ViTConfig& c) { c.act = Act::kQuickGelu; });
  with("rotated", [](ViTConfig& c) {
    c.rope = Rope::kDinov3, c.layer_scale = 0.3f, c.learned_positions = false, c.patch_drop = 0;
  });
  with("gated", [](ViTConfig& c) {
    c.rope = Rope::kEva, c.gated = c.mlp_norm = true, c.act = Act::kSilu, c.mlp_width = 2048;
    c.patch_drop = 0;
  });
  return models;
}

void expect_same_frozen(const ModelSpec& model, Backend& backend, int64_t images) {
  SCOPED_TRACE(model.architecture);
  Graph g(Mode::kInference);
  trace(g, model, 1);
  ParamStore store(g, backend);
  store.initialize(5), add_noise(store);
  const Batch batch = noise_batch(model.config, images);
  const auto logits = [&] {
    ModelProgram program(model, store, images, {.compute = DType::kBF16});
    std::vector<float> all(static_cast<size_t>(images) * 10);
    program.run(batch.pixels().data()), program.read_logits(all.data());
    return all;
  };
  const std::vector<float> expected = logits();
  store.freeze();
  const std::vector<float> got = logits();
  double squares = 0, errors = 0;
  for (size_t i = 0; i < got.size(); ++i)
    squares += std::pow(expected[i], 2), errors += std::pow(got[i] - expected[i], 2);
  EXPECT_LT(std::sqrt(errors), 0.03 * std::sqrt(squares)) << images;
}

// Many and few rows of a wide model: weights that never change may have the norms before them in
// them, and the scale behind them.
TEST(CudaModel, FrozenGivesTheSameLogits) {
  SKIP_WITHOUT_CUDA();
  const auto card = cuda(/*exact=*/false);
  for (const ModelSpec& model : wide_models())
    for (const int64_t images : {346, 3}) expect_same_frozen(model, *card, images);
  for (const ModelSpec& model : {small_convnext(), small_swin_v2()})
    expect_same_frozen(model, *card, 24);
}

// Kernels of few rows begin while others end: run again and again, or one by one.
TEST(CudaModel, FewRowsAreAlwaysTheSameBits) {
  SKIP_WITHOUT_CUDA();
  constexpr int64_t kImages = 3;
  const ModelSpec model = wide_model();
  const auto card = cuda(/*exact=*/false);
  Graph g(Mode::kInference);
  const TracedModel traced = trace(g, model, kImages);
  fuse(g);
  ParamStore store(g, *card);
  store.initialize(5), add_noise(store);
  store.freeze();
  Program program(g, std::span(&traced.logits, 1), store, {.compute = DType::kBF16});
  const Batch batch = noise_batch(model.config, kImages);
  program.upload(traced.image, batch.pixels().data());
  const auto logits = [&] {
    std::vector<float> all(kImages * 10);
    program.download(all.data(), traced.logits);
    return all;
  };
  program.run_traced([](const Program::Step&, double) {});
  const std::vector<float> expected = logits();
  for (int i = 0; i < 30; ++i) {
    for (int together = 0; together < 10; ++together) program.run();
    ASSERT_TRUE(logits() == expected) << i;
  }
}

TEST(CudaModel, ResumedRunIsTheUninterruptedRun) {
  SKIP_WITHOUT_CUDA();
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.accumulate = 2, recipe.batch_size = 8, recipe.ema = 0.9, recipe.checkpoint_every = 1;
  recipe.precision = Precision::kBF16, recipe.patch_drop = 0.5, recipe.augment_off = 0.34;
  const auto options = [&](const std::string& out, bool resume) {
    RunOptions o = tiny.options(out);
    o.device.device = "cuda", o.resume = resume;
    return o;
  };
  Trainer(recipe, options("whole", false)).run();
  Trainer(recipe, options("cut", false)).run({.step = [](int64_t step, double) {
    if (step == 7) raise(SIGINT);
  }});
  Trainer rest(recipe_of_run(tiny / "cut"), options("cut", true));
  EXPECT_EQ(rest.position().step, 7);
  rest.run();
  const auto expected = outcome(tiny / "whole"), got = outcome(tiny / "cut");
  for (const auto& [name, text] : expected) EXPECT_TRUE(got.at(name) == text) << name << " differs";
}

// Logits and features of a model in use, whose features stay f32 beside bf16 weights.
std::vector<float> logits_of(const ModelSpec& model, Backend& backend, DType compute) {
  Graph g(Mode::kInference);
  trace(g, model, 1);
  ParamStore store(g, backend);
  store.initialize(5);
  ModelProgram program(model, store, 3, {.compute = compute});
  const Batch batch = noise_batch(model.config, 3);
  program.run(batch.pixels().data());
  std::vector<float> logits(static_cast<size_t>(3 * model.config.classes()));
  program.read_logits(logits.data());
  return logits;
}

TEST(CudaModel, EveryFamilyAnswersAsOnTheCpu) {
  SKIP_WITHOUT_CUDA();
  const auto card = cuda(/*exact=*/true), host = make_backend({.device = "cpu", .threads = 2});
  for (const char* name : {"vit_lite_cifar", "deit_small_cifar", "swin_tiny_cifar",
                           "resnet18_cifar", "vit_c10_patch4_32"}) {
    const ModelSpec model = resolve_model(name);
    const std::vector<float> expected = logits_of(model, *host, DType::kF32);
    double square = 0, wrong_f32 = 0, wrong_bf16 = 0;
    const std::vector<float> f32 = logits_of(model, *card, DType::kF32),
                             bf16 = logits_of(model, *card, DType::kBF16);
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto squared = [](float x) { return static_cast<double>(x) * static_cast<double>(x); };
      square += squared(expected[i]);
      wrong_f32 += squared(f32[i] - expected[i]), wrong_bf16 += squared(bf16[i] - expected[i]);
    }
    EXPECT_LT(wrong_f32, 1e-8 * square) << name;
    EXPECT_LT(wrong_bf16, 1e-2 * square) << name;
  }
}

}  // namespace
}  // namespace vitrum::test
