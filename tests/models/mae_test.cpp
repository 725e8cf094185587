// Masked autoencoders: against transformers (tools/golden/mae_golden.py), and what can be one.
#include "vitrum/models/mae.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/vit_of.h"
#include "vitrum/core/philox.h"
#include "vitrum/graph/functional.h"
#include "vitrum/graph/passes.h"
#include "vitrum/models/registry.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/runtime/program.h"

namespace vitrum {
namespace {

using test::Golden;

ViTConfig encoder_of(const Golden& golden) {
  const auto& m = golden.meta.at("model");
  return {.image_h = m.at("image_size"),
          .image_w = m.at("image_size"),
          .patch_h = m.at("patch_size"),
          .patch_w = m.at("patch_size"),
          .channels = m.at("num_channels"),
          .width = m.at("hidden_size"),
          .depth = m.at("num_hidden_layers"),
          .heads = m.at("num_attention_heads"),
          .mlp_width = m.at("intermediate_size"),
          .classes = 0,
          .eps = m.at("layer_norm_eps")};
}

MaeConfig decoder_of(const Golden& golden, bool norm_pix) {
  const auto& m = golden.meta.at("model");
  return {.mask_ratio = m.at("mask_ratio"),
          .width = m.at("decoder_hidden_size"),
          .depth = m.at("decoder_num_hidden_layers"),
          .heads = m.at("decoder_num_attention_heads"),
          .mlp_width = m.at("decoder_intermediate_size"),
          .norm_pix = norm_pix};
}

// A masked autoencoder on one backend, with its gradients.
struct MaeBench {
  MaeBench(const ViTConfig& encoder, const MaeConfig& mae, int64_t batch, Backend& backend,
           Recompute recompute = Recompute::kNone, DType compute = DType::kF32)
      : image(g.input("image", {batch, encoder.channels, encoder.image_h, encoder.image_w})),
        weight(g.input("weight", {batch}, DType::kF32, /*exact=*/true)),
        loss(mae_loss(Scope(g), {image, image, weight}, encoder, mae)),
        store((fuse(g), differentiate(g, loss, recompute), g), backend),
        program(g, std::span(&loss, 1), store, {.compute = compute}) {
    store.initialize(1);
    const std::vector<float> weights(static_cast<size_t>(batch), 1.f / static_cast<float>(batch));
    program.upload(weight, weights.data());
  }
  void draw(const RandomState& random) { program.upload(g.rng(), &random); }

  Graph g{Mode::kTraining};
  Value image, weight, loss;
  ParamStore store;
  Program program;
};

class MaeGolden : public testing::TestWithParam<std::tuple<const char*, Recompute>> {};

TEST_P(MaeGolden, LossAndGradients) {
  const auto [device, recompute] = GetParam();
  const Golden golden("mae");
  const auto backend = make_backend({.device = device, .threads = 2});
  for (const bool norm_pix : {true, false}) {
    MaeBench bench(encoder_of(golden), decoder_of(golden, norm_pix), golden.meta.at("batch"),
                   *backend, recompute);
    ASSERT_EQ(bench.store.specs().size(), 50u);
    for (size_t i = 0; i < bench.store.specs().size(); ++i) {
      const ParamSpec& spec = bench.store.specs()[i];
      // Positions are ours, and theirs.
      if (spec.name.ends_with("pos_embed"))
        for (size_t k = 0; k < spec.init.values.size(); ++k)
          ASSERT_NEAR(spec.init.values[k], golden.f32("param." + spec.name)[k], 1e-6) << spec.name;
      else
        bench.store.write(i, golden.f32("param." + spec.name));
    }
    bench.program.upload(bench.image, golden.f32("image").data());
    const auto& step = golden.meta.at("step");
    bench.draw({golden.meta.at("seed"), 0, step[0], step[1]});
    bench.program.run();
    const double expected = golden.f32(norm_pix ? "loss" : "loss.plain")[0];
    EXPECT_NEAR(bench.program.read_scalar(bench.loss), expected, 1e-5 * expected);
    double norm = 0;
    for (size_t i = 0; i < bench.store.specs().size(); ++i)
      if (bench.store.specs()[i].trainable)
        norm += std::pow(test::norm_of(bench.store.read(i, Arena::kGrad)), 2);
    for (size_t i = 0; i < bench.store.specs().size(); ++i) {
      const std::string& name = bench.store.specs()[i].name;
      EXPECT_EQ(bench.store.specs()[i].trainable, !name.ends_with("pos_embed")) << name;
      if (name.ends_with("pos_embed")) continue;
      test::expect_close(bench.store.read(i, Arena::kGrad),
                         golden.f32((norm_pix ? "grad." : "grad.plain.") + name),
                         1e-2 * std::sqrt(norm), name);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Transformers, MaeGolden,
                         testing::Combine(testing::Values("reference", "cpu"),
                                          testing::Values(Recompute::kNone, Recompute::kCheap,
                                                          Recompute::kBlock)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param)) + "_" +
                                  std::to_string(static_cast<int>(std::get<1>(info.param)));
                         });

// Another mask, another loss; and the same again from the same state, for any number of threads.
TEST(Mae, MasksHangOnTheStepAlone) {
  const Golden golden("mae");
  const auto loss_at = [&](uint32_t step, int threads) {
    const auto backend = make_backend({.device = "cpu", .threads = threads});
    MaeBench bench(encoder_of(golden), decoder_of(golden, true), 3, *backend);
    bench.program.upload(bench.image, golden.f32("image").data());
    bench.draw({9, 0, step, 0});
    bench.program.run();
    return bench.program.read_scalar(bench.loss);
  };
  EXPECT_EQ(loss_at(4, 1), loss_at(4, 3));
  EXPECT_NE(loss_at(4, 1), loss_at(5, 1));
}

// What is not seen is asked for, and nothing else: pixels of patches that are seen do not matter to
// the question, those of others not to the answer.
TEST(Mae, OnlyHiddenPatchesAreAskedFor) {
  const Golden golden("mae");
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  const ViTConfig encoder = encoder_of(golden);
  const int64_t side = encoder.image_h, patch = encoder.patch_h, columns = side / patch;
  std::vector<float> image = golden.f32("image");
  const std::vector<float> mask = golden.f32("mask");
  Graph g(Mode::kTraining);
  const Value seen = g.input("seen", {3, 3, side, side}), asked = g.input("asked", seen.shape()),
              weight = g.input("weight", {3}, DType::kF32, true);
  const Value loss = mae_loss(Scope(g), {seen, asked, weight}, encoder, decoder_of(golden, true));
  ParamStore store(g, *backend);
  store.initialize(1);
  Program program(g, std::span(&loss, 1), store);
  const std::vector<float> weights(3, 1.f);
  const RandomState random{golden.meta.at("seed"), 0, golden.meta.at("step")[0],
                           golden.meta.at("step")[1]};
  program.upload(weight, weights.data());
  program.upload(g.rng(), &random);
  const auto run = [&](Value to, bool hidden) {  // with other pixels in these patches of `to`
    std::vector<float> changed = image;
    for (int64_t i = 0; i < seen.shape().numel(); ++i) {
      const int64_t y = i / side % side, x = i % side, b = i / (3 * side * side);
      const int64_t at = (b * columns + y / patch) * columns + x / patch;
      if ((mask[static_cast<size_t>(at)] > 0) == hidden)
        changed[static_cast<size_t>(i)] += 0.1f * static_cast<float>(x);
    }
    program.upload(seen, (to.id() == seen.id() ? changed : image).data());
    program.upload(asked, (to.id() == asked.id() ? changed : image).data());
    program.run();
    return program.read_scalar(loss);
  };
  program.upload(seen, image.data()), program.upload(asked, image.data());
  program.run();
  const double plain = program.read_scalar(loss);
  EXPECT_EQ(run(seen, true), plain);
  EXPECT_EQ(run(asked, false), plain);
  EXPECT_NE(run(seen, false), plain);
  EXPECT_NE(run(asked, true), plain);
}

// Every parameter of the model without its head, in its order, and the decoder behind it.
TEST(Mae, EveryPresetThatCanBePretrainedHasItsOwnParameters) {
  int pretrained = 0, refused = 0;
  for (const Preset& preset : presets()) {
    const auto* vit = preset.config.as<ViTConfig>();
    if (!vit) continue;
    ViTConfig c = *vit;
    c.classes = 0;
    const MaeConfig mae = usual_decoder(c);
    Graph g(Mode::kTraining), plain;
    const Shape shape{1, c.channels, c.image_h, c.image_w};
    const Value weight = g.input("weight", {1}), image = g.input("image", shape);
    if (c.rope != Rope::kNone || c.distance_bias != DistanceBias::kNone) {
      EXPECT_ERROR(mae_loss(Scope(g), {image, image, weight}, c, mae), ErrorKind::kUsage,
                   "positions of its own");
      ++refused;
      continue;
    }
    mae_loss(Scope(g), {image, image, weight}, c, mae);
    ::vitrum::vit(Scope(plain), plain.input("image", shape), c);
    ASSERT_GT(g.params.size(), plain.params.size()) << preset.name;
    for (size_t i = 0; i < g.params.size(); ++i) {
      const bool own = i < plain.params.size();
      EXPECT_EQ(in_decoder(g.params[i].name), !own) << preset.name;
      if (own) {
        EXPECT_EQ(g.params[i].name, plain.params[i].name) << preset.name;
        EXPECT_EQ(g.params[i].shape, plain.params[i].shape) << g.params[i].name;
      }
    }
    ++pretrained;
  }
  EXPECT_GT(pretrained, 30);
  EXPECT_GT(refused, 5);
}

TEST(Mae, DecoderOfThePaperHasItsSize) {
  ViTConfig c = vit_of(find_preset("vit_base_patch16_224"));
  c.classes = 0;
  Graph g(Mode::kTraining);
  const Value weight = g.input("weight", {1}), image = g.input("image", {1, 3, 224, 224});
  mae_loss(Scope(g), {image, image, weight}, c, usual_decoder(c));
  int64_t all = 0;
  for (const ParamSpec& p : g.params) all += p.shape.numel();
  EXPECT_EQ(all, 111'907'840);  // facebook/vit-mae-base
}

TEST(Mae, ImpossibleOnesAreRefused) {
  const ViTConfig c = vit_of(find_preset("vit_tiny_patch16_224"));
  const auto refused = [](MaeConfig mae, const ViTConfig& cfg, const char* why) {
    EXPECT_ERROR(validate(mae, cfg), ErrorKind::kUsage, why);
  };
  refused({.width = 30}, c, "multiple of 4");
  refused({.width = 32, .heads = 5}, c, "set decoder_heads");
  ViTConfig one = c;
  one.image_h = one.image_w = 16;
  refused({}, one, "leaves none to ask for");
}

// What is drawn is what the loss is of: the mean square of the guess less the pixels, over those
// patches that were hidden; what was seen is left out.
TEST(Mae, TheGuessIsWhatTheLossIsOf) {
  const Golden golden("mae");
  const ViTConfig encoder = encoder_of(golden);
  const MaeConfig mae = decoder_of(golden, /*norm_pix=*/false);
  for (const char* device : {"reference", "cpu"}) {
    const auto backend = make_backend({.device = device, .threads = 2});
    Graph g(Mode::kInference);
    const Value image = g.input("image", {3, encoder.channels, encoder.image_h, encoder.image_w});
    const MaeGuess guess = mae_guess(Scope(g), image, encoder, mae);
    fuse(g);
    ParamStore store(g, *backend);
    for (size_t i = 0; i < store.specs().size(); ++i)
      store.write(i, golden.f32("param." + store.specs()[i].name));
    const std::array outputs = {guess.pixels, guess.hidden};
    Program program(g, outputs, store);
    const std::vector<float> pixels = golden.f32("image"), mask = golden.f32("mask");
    const auto& step = golden.meta.at("step");
    const RandomState random{golden.meta.at("seed"), 0, step[0], step[1]};
    program.upload(image, pixels.data());
    program.upload(g.rng(), &random);
    program.run();
    std::vector<float> said(static_cast<size_t>(guess.pixels.shape().numel())), hidden(mask.size());
    program.download(said.data(), guess.pixels);
    program.download(hidden.data(), guess.hidden);
    EXPECT_EQ(hidden, mask);
    const int64_t side = encoder.image_h, patch = encoder.patch_h, columns = side / patch,
                  values = 3 * patch * patch;
    double sum = 0, count = 0;
    for (int64_t i = 0; i < std::ssize(said); ++i) {
      const int64_t at = i / values, b = at / (columns * columns), n = at % (columns * columns),
                    c = i % 3, x = i % values / 3 % patch, y = i % values / 3 / patch;
      const float v = said[static_cast<size_t>(i)];
      if (mask[static_cast<size_t>(at)] == 0) {
        ASSERT_EQ(v, 0);
        continue;
      }
      const int64_t pixel =
          ((b * 3 + c) * side + n / columns * patch + y) * side + n % columns * patch + x;
      sum += std::pow(v - pixels[static_cast<size_t>(pixel)], 2), ++count;
    }
    const double expected = golden.f32("loss.plain")[0];
    EXPECT_NEAR(sum / count, expected, 1e-5 * expected) << device;
  }
}

}  // namespace
}  // namespace vitrum
