// What a program promises: the same bits however it is planned, recomputed, fused or threaded; a
// plan that meets the lower bound; no allocation while running.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdlib>
#include <new>

#include "tests/support/training_graph.h"
#include "tests/support/vit_of.h"
#include "vitrum/core/philox.h"
#include "vitrum/cpu/cpu.h"
#include "vitrum/models/registry.h"

static std::atomic<long> g_allocations{0};
#ifdef __SANITIZE_ADDRESS__  // which has an allocator of its own
constexpr bool kCountsAllocations = false;
#else
constexpr bool kCountsAllocations = true;
// gcc takes the pair below for a mismatch where it inlines only one of them.
#pragma GCC diagnostic ignored "-Wmismatched-new-delete"
void* operator new(size_t n) {
  ++g_allocations;
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
#endif

namespace vitrum::test {
namespace {

constexpr int64_t kBatch = 5;

ViTConfig small_vit() {  // every kind of op, odd sizes, head size above the side-by-side limit
  return {.image_h = 20,
          .image_w = 12,
          .patch_h = 4,
          .patch_w = 4,
          .channels = 3,
          .width = 72,
          .depth = 3,
          .heads = 3,
          .mlp_width = 200,
          .classes = 11,
          .layer_scale = 0.5f,
          .drop_pos = 0.1f,
          .drop_attn = 0.1f,
          .drop_proj = 0.1f,
          .drop_act = 0.2f,
          .drop_mlp = 0.1f,
          .drop_path = 0.2f,
          .patch_drop = 0.4f};
}
ViTConfig small_postnorm() {
  return {.image_h = 14,
          .image_w = 14,
          .patch_h = 7,
          .patch_w = 7,
          .channels = 1,
          .width = 40,
          .depth = 2,
          .heads = 5,
          .mlp_width = 130,
          .classes = 10,
          .act = Act::kRelu,
          .patch_order = PatchOrder::kChannelLast,
          .init = InitStyle::kMnist,
          .pre_norm = false,
          .drop_attn = 0.1f,
          .drop_proj = 0.1f,
          .drop_act = 0.1f,
          .drop_mlp = 0.1f};
}

struct Variant {
  TrainingOptions graph = {};
  CompileOptions compile = {};
  CpuOptions cpu = {.threads = 1};
};

// Loss, logits and every gradient of one step, as bytes would compare them.
std::vector<float> one_step(const ViTConfig& cfg, const Variant& v) {
  const std::unique_ptr<Backend> backend = make_cpu_backend(v.cpu);
  TrainingGraph t(cfg, kBatch, v.graph);
  ParamStore store(t.g, *backend);
  store.initialize(3);
  Program program = t.compile(store, v.compile);
  PhiloxStream random(1, 99, 0);
  std::vector<float> image(static_cast<size_t>(t.image.shape().numel()));
  for (float& x : image) x = static_cast<float>(random.normal());
  program.upload(t.image, image.data());
  const std::array<int32_t, kBatch> labels = {1, 0, 7, 9, 3};
  program.upload(t.target, labels.data());
  const std::array<float, kBatch> weights = {0.25f, 0.25f, 0.25f, 0.25f,
                                             0};  // the last sample is padding
  program.upload(t.weight, weights.data());
  const RandomState rng{11, 0, 5, 0};
  program.upload(t.rng, &rng);
  program.run();
  std::vector<float> all(static_cast<size_t>(t.logits.shape().numel()));
  program.download(all.data(), t.logits);
  all.push_back(static_cast<float>(program.read_scalar(t.loss)));
  for (size_t i = 0; i < store.specs().size(); ++i) {
    const std::vector<float> gradient = store.read(i, Arena::kGrad);
    all.insert(all.end(), gradient.begin(), gradient.end());
  }
  return all;
}

class SameBits : public testing::TestWithParam<std::tuple<bool, DType, Isa>> {
 protected:
  ViTConfig cfg() const { return std::get<0>(GetParam()) ? small_vit() : small_postnorm(); }
  Variant base() const {
    return {.compile = {.compute = std::get<1>(GetParam())},
            .cpu = {.threads = 1, .max_isa = std::get<2>(GetParam())}};
  }
};

TEST_P(SameBits, AnyThreadCount) {
  const std::vector<float> one = one_step(cfg(), base());
  for (int threads : {2, 3, 4, 8}) {
    Variant v = base();
    v.cpu.threads = threads;
    EXPECT_EQ(one_step(cfg(), v), one) << threads << " threads";
  }
}
TEST_P(SameBits, PlannedAndUnplanned) {
  Variant v = base();
  v.compile.share_memory = false;
  EXPECT_EQ(one_step(cfg(), v), one_step(cfg(), base()));
}
TEST_P(SameBits, FusedAndPlain) {
  Variant v = base();
  v.graph.fused = false;
  EXPECT_EQ(one_step(cfg(), v), one_step(cfg(), base()));
}
TEST_P(SameBits, EveryRecomputePolicy) {
  const std::vector<float> kept = one_step(cfg(), base());
  for (bool fused : {true, false})
    for (Recompute policy : {Recompute::kCheap, Recompute::kBlock}) {
      Variant v = base();
      v.graph = {.fused = fused, .recompute = policy};
      EXPECT_EQ(one_step(cfg(), v), kept)
          << "policy " << static_cast<int>(policy) << " fused " << fused;
    }
}
INSTANTIATE_TEST_SUITE_P(Models, SameBits,
                         testing::Combine(testing::Bool(),
                                          testing::Values(DType::kF32, DType::kBF16),
                                          testing::Values(Isa::kAvx2, Isa::kAuto)));

TEST(Program, InstructionSetsAgree) {
  for (const ViTConfig& cfg : {small_vit(), small_postnorm()}) {
    const std::vector<float> wide = one_step(cfg, {}),
                             narrow = one_step(cfg, {.cpu = {.threads = 1, .max_isa = Isa::kAvx2}});
    ASSERT_EQ(wide.size(), narrow.size());
    for (size_t i = 0; i < wide.size(); ++i)
      ASSERT_NEAR(wide[i], narrow[i], 1e-5 * (1 + std::abs(wide[i]))) << i;
  }
}

// Logits of one image, alone or anywhere in a batch.
TEST(Program, SameBitsWhateverTheBatch) {
  const std::unique_ptr<Backend> backend = make_cpu_backend({.threads = 2});
  ViTConfig cfg = small_vit();
  PhiloxStream random(2, 99, 0);
  std::vector<float> images(static_cast<size_t>(7 * cfg.channels * cfg.image_h * cfg.image_w));
  for (float& x : images) x = static_cast<float>(random.normal());
  std::vector<std::vector<float>> runs;
  for (int64_t batch : {7, 1}) {
    Graph g;
    const Value image = g.input("image", {batch, cfg.channels, cfg.image_h, cfg.image_w});
    const Value logits = vit(Scope(g), image, cfg);
    fuse(g);
    ParamStore store(g, *backend);
    store.initialize(3);
    Program program(g, std::span(&logits, 1), store);
    for (int64_t first = 0; first < 7; first += batch) {
      program.upload(image, images.data() + first * image.shape().numel() / batch);
      program.run();
      std::vector<float> out(static_cast<size_t>(logits.shape().numel()));
      program.download(out.data(), logits);
      for (int64_t b = 0; b < batch; ++b)
        runs.emplace_back(out.begin() + b * cfg.classes, out.begin() + (b + 1) * cfg.classes);
    }
  }
  for (size_t i = 0; i < 7; ++i) EXPECT_EQ(runs[i], runs[i + 7]) << "image " << i;
}

// One for each layout: programs of two precisions may read the same parameter.
TEST(PackedParams, OneCopyOfWhatMayBeCopied) {
  using enum PackedParams::Layout;
  PackedParams packed;
  const float param = 1, other = 2;
  packed.allow(&param);
  int made = 0;
  const auto make = [&](std::byte* memory) { *memory = std::byte(++made); };
  const std::byte* copy = packed.copy(&param, kPanels, 64, make);
  ASSERT_NE(copy, nullptr);
  EXPECT_EQ(*copy, std::byte{1});
  packed.allow(&param);  // another program
  EXPECT_EQ(packed.copy(&param, kPanels, 64, make), copy);
  EXPECT_EQ(made, 1);
  EXPECT_EQ(packed.copy(&other, kPanels, 64, make), nullptr);
  EXPECT_EQ(*packed.copy(&param, kTiles, 32, make), std::byte{2});
}

// A narrow layer of few rows: packed weights are kept where the store says that they stay.
TEST(Program, FrozenWeightsArePackedOnce) {
  const std::unique_ptr<Backend> backend = make_cpu_backend({.threads = 2});
  const auto graph = [](Graph& g) {
    const Value x = g.input("x", {64, 96});
    return std::pair(x, linear(Scope(g, "fc"), x, 160, {}));
  };
  Graph g, frozen_g;
  const auto [x, y] = graph(g);
  const auto [frozen_x, frozen_y] = graph(frozen_g);
  ParamStore store(g, *backend);
  store.initialize(1);
  std::vector<float> in(64 * 96);
  PhiloxStream random(2, 99, 0);
  for (float& v : in) v = static_cast<float>(random.normal());
  const auto run = [&](Program& program, Value from, Value to) {
    std::vector<float> out(64 * 160);
    program.upload(from, in.data()), program.run(), program.download(out.data(), to);
    return out;
  };
  Program plain(g, std::span(&y, 1), store);
  store.freeze();
  Program frozen(frozen_g, std::span(&frozen_y, 1), store);
  const std::vector<float> before = run(plain, x, y);
  EXPECT_EQ(run(frozen, frozen_x, frozen_y), before);
  store.write(0, std::vector<float>(160 * 96, 0.5f));  // which is not allowed, and shows the copy
  EXPECT_NE(run(plain, x, y), before);
  EXPECT_EQ(run(frozen, frozen_x, frozen_y), before);
}

TEST(Program, RunsWithoutAllocating) {
  if (!kCountsAllocations) GTEST_SKIP() << "the sanitizer owns the allocator";
  const std::unique_ptr<Backend> backend = make_cpu_backend({.threads = 2});
  TrainingGraph t(small_vit(), kBatch, {.recompute = Recompute::kCheap});
  ParamStore store(t.g, *backend);
  store.initialize(0);
  Program program = t.compile(store);
  program.run();
  const long before = g_allocations;
  for (int i = 0; i < 5; ++i) program.run();
  EXPECT_EQ(g_allocations - before, 0);
}

// Every preset, inference and training under every policy: the arena is as small as liveness
// allows.
TEST(Plan, MeetsTheLowerBound) {
  for (const char* name : {"vit_mnist", "minvit_cifar10", "vit_tiny_patch16_224",
                           "vit_base_patch16_224", "vit_small28"}) {
    const ViTConfig cfg = vit_of(find_preset(name));
    for (Recompute policy : {Recompute::kNone, Recompute::kCheap, Recompute::kBlock}) {
      TrainingGraph t(cfg, 32, {.recompute = policy});
      const std::array outputs = {t.loss, t.logits};
      drop_dead(t.g, outputs);
      const Plan plan = plan_memory(t.g, outputs);
      EXPECT_EQ(plan.bytes, plan.lower_bound) << name << " policy " << static_cast<int>(policy);
      EXPECT_LT(plan.bytes, plan.naive_bytes);
    }
    Graph g;
    const Value logits =
        vit(Scope(g), g.input("image", {8, cfg.channels, cfg.image_h, cfg.image_w}), cfg);
    fuse(g);
    drop_dead(g, std::span(&logits, 1));
    const Plan plan = plan_memory(g, std::span(&logits, 1));
    EXPECT_EQ(plan.bytes, plan.lower_bound) << name << " inference";
  }
}

TEST(Plan, RecomputeSavesMemory) {
  const ViTConfig cfg = vit_of(find_preset("vit_base_patch16_224"));
  std::vector<int64_t> bytes;
  for (Recompute policy : {Recompute::kNone, Recompute::kCheap, Recompute::kBlock}) {
    TrainingGraph t(cfg, 64, {.recompute = policy});
    const std::array outputs = {t.loss};
    drop_dead(t.g, outputs);
    bytes.push_back(plan_memory(t.g, outputs).bytes);
  }
  EXPECT_LT(bytes[1], bytes[0] * 8 / 10);
  EXPECT_LT(bytes[2], bytes[1] / 2);
}

// The tests above notice a difference of one bit.
TEST(SameBitsCheck, CanFail) {
  Variant v;
  v.graph.smoothing = 1e-6f;
  EXPECT_NE(one_step(small_vit(), v), one_step(small_vit(), {}));
}

}  // namespace
}  // namespace vitrum::test
