// Runs that learn without labels: what they leave, and that nothing changes their bits.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "tests/support/data_files.h"
#include "tests/support/expect_error.h"
#include "tests/support/tiny_run.h"
#include "vitrum/core/files.h"
#include "vitrum/models/mae.h"
#include "vitrum/train/fast_recipe.h"
#include "vitrum/weights/convert.h"
#include "vitrum/weights/json_keys.h"
#include "vitrum/weights/mae_decoder.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using test::outcome;
using test::TinyRun;
using testing::HasSubstr;

Recipe masked(const TinyRun& tiny) {
  Recipe recipe = tiny.recipe();
  recipe.task = Task::kMae;
  return recipe;
}

// Everything that has state.
Recipe full_recipe(const TinyRun& tiny) {
  Recipe recipe = masked(tiny);
  recipe.batch_size = 8, recipe.accumulate = 2, recipe.ema = 0.9, recipe.clip_norm = 0.5;
  recipe.schedule = ScheduleKind::kCosine, recipe.warmup_epochs = 1;
  recipe.augment = "crop-flip", recipe.drop_path = 0.2, recipe.mask_ratio = 0.5;
  recipe.checkpoint_every = 1;
  return recipe;
}

TEST(Pretrain, LeavesAnEncoderAndLearns) {
  const TinyRun tiny;
  Recipe recipe = masked(tiny);
  recipe.epochs = 12;
  std::vector<EpochMetrics> rows;
  Trainer trainer(recipe, tiny.options("run"));
  EXPECT_TRUE(trainer.pretrains());
  const TrainResult result =
      trainer.run({.epoch = [&](const EpochMetrics& row, bool) { rows.push_back(row); }});
  ASSERT_EQ(rows.size(), 12u);
  EXPECT_LT(rows.back().train_loss, 0.9 * rows.front().train_loss);
  EXPECT_LT(rows.back().test_loss, rows.front().test_loss);
  EXPECT_TRUE(std::isnan(rows.back().train_acc) && std::isnan(rows.back().test_acc));
  EXPECT_EQ(result.best_accuracy,
            -std::min_element(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
               return a.test_loss < b.test_loss;
             })->test_loss);
  // The encoder, all of it and nothing else, with positions that timm would take for learned ones.
  const ModelSpec last = resolve_model(tiny / "run/last");
  EXPECT_EQ(last.config.classes(), 0);
  const SafetensorsFile file(tiny / "run/last/model.safetensors");
  bool positions = false;
  for (const TensorInfo& t : file.tensors()) {
    EXPECT_FALSE(in_decoder(t.name)) << t.name;
    positions |= t.name == "pos_embed";
  }
  EXPECT_TRUE(positions);
  const SafetensorsFile state(checkpoint_path(tiny / "run"));
  EXPECT_NE(state.find("weights/decoder_pred.weight"), nullptr);
  EXPECT_NE(state.find("moment1/mask_token"), nullptr);
  EXPECT_EQ(state.find("moment1/pos_embed"), nullptr);
  for (const char* none : {"predictions.csv", "confusion.svg"})
    EXPECT_FALSE(fs::exists(tiny / ("run/" + std::string(none)))) << none;
  const std::string card = read_file(tiny / "run/last/README.md");
  EXPECT_THAT(card, HasSubstr("masked autoencoder"));
  EXPECT_THAT(card, HasSubstr("vitrum pretrain --recipe"));
  EXPECT_THAT(card, testing::Not(HasSubstr("accuracy")));
  const std::string curves = read_file(tiny / "run/curves.svg");
  EXPECT_THAT(curves, HasSubstr("Loss"));
  EXPECT_THAT(curves, testing::Not(HasSubstr("Accuracy")));
}

// The loss on these test images, in batches of this size, with weights as they start.
double loss_on(const TinyRun& tiny, const std::vector<int64_t>& images, int64_t batch) {
  const Recipe recipe = masked(tiny);
  const TrainData data(recipe);
  const ModelSpec model = model_for(recipe, data.train());
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  TrainStep step(model, recipe, DType::kF32, *backend);
  MaskedEvaluator evaluator(recipe, model, step.store(), batch, Arena::kMaster);
  const auto some = select_images(data.test(), images);
  LoaderConfig config = loader_config(recipe, model, *some, 1);
  config.batch_size = batch, config.shuffle = false, config.augment = {};
  Loader loader(*some, config);
  const Evaluation all = evaluator.run(
      loader, [](int64_t) { return true; }, nullptr);
  EXPECT_EQ(all.images, static_cast<int64_t>(images.size()));
  return all.loss;
}

TEST(Pretrain, TheLossOnTestImagesIsOfThemAndOfManyMasks) {
  const TinyRun tiny;
  // Places of a batch without an image count nothing.
  EXPECT_NEAR(loss_on(tiny, {3, 1, 2}, 8), loss_on(tiny, {3, 1, 2}, 3), 1e-6);
  EXPECT_NE(loss_on(tiny, {3, 1, 2}, 3), loss_on(tiny, {3, 1, 4}, 3));
  // Each batch has masks of its own: the same images again are another sum.
  EXPECT_NE(loss_on(tiny, {3, 1, 2, 3, 1, 2}, 3), loss_on(tiny, {3, 1, 2}, 3));
  EXPECT_EQ(loss_on(tiny, {3, 1, 2, 3, 1, 2}, 3), loss_on(tiny, {3, 1, 2, 3, 1, 2}, 3));
}

TEST(Pretrain, FinetuningStartsFromIt) {
  const TinyRun tiny;
  Trainer(masked(tiny), tiny.options("run")).run();
  Recipe recipe = tiny.recipe();
  recipe.model.clear(), recipe.weights = tiny / "run/last";
  Trainer trainer(recipe, tiny.options("tuned"));
  EXPECT_EQ(trainer.model().config.classes(), 10);
  EXPECT_THAT(trainer.loaded().adapted, testing::ElementsAre("new head of 10 classes"));
  const SafetensorsFile file(tiny / "run/last/model.safetensors");
  const std::vector<float> start =
      trainer.store().read(static_cast<size_t>(trainer.store().index("blocks.1.mlp.fc1.weight")));
  EXPECT_EQ(std::memcmp(start.data(), file.bytes(file.at("blocks.1.mlp.fc1.weight")).data(),
                        start.size() * sizeof(float)),
            0);
  for (const ParamSpec& p : trainer.store().specs()) EXPECT_TRUE(p.trainable) << p.name;
  trainer.run();
  recipe.head_only = true;
  EXPECT_TRUE(Trainer(recipe, tiny.options("probe")).keeps_features());
}

// Beside the encoder, which timm finds as it would without it.
TEST(Pretrain, LeavesItsDecoderBesideAndGoesOnFromIt) {
  const TinyRun tiny;
  Recipe recipe = masked(tiny);
  recipe.mask_ratio = 0.5, recipe.norm_pix = false, recipe.decoder_heads = 2;
  Trainer trainer(recipe, tiny.options("run"));
  trainer.run();
  const std::optional<MaeConfig> stored = stored_decoder(tiny / "run/last");
  ASSERT_TRUE(stored);
  EXPECT_EQ(*stored, mae_for(recipe, trainer.model()));
  EXPECT_TRUE(fs::exists(tiny / "run/best/decoder.safetensors"));
  Recipe on = masked(tiny);
  on.model.clear(), on.weights = tiny / "run/last", on.mask_ratio = 0.5;
  Trainer again(on, tiny.options("on"));
  EXPECT_THAT(again.loaded().adapted, testing::Contains("decoder as stored"));
  for (const char* name : {"decoder_pred.weight", "mask_token", "decoder_blocks.1.attn.qkv.bias"}) {
    const auto values = [&](Trainer& t) {
      return t.store().read(static_cast<size_t>(t.store().index(name)));
    };
    EXPECT_EQ(values(again), values(trainer)) << name;
  }
  fs::copy(tiny / "run/last", tiny / "cut", fs::copy_options::recursive);
  test::write_file(tiny / "cut/decoder.safetensors", {1, 2, 3});
  on.weights = tiny / "cut";
  EXPECT_ERROR(Trainer(on, tiny.options("no")), ErrorKind::kInput, "cut/decoder.safetensors");
}

std::vector<std::byte> bytes_of(const SafetensorsFile& file, const std::string& name) {
  const auto bytes = file.bytes(file.at(name));
  return {bytes.begin(), bytes.end()};
}

// transformers' ViTMAEForPreTraining and Meta's file, and back.
TEST(Pretrain, ItsDecoderIsConvertedWhereThatIsAskedFor) {
  const TinyRun tiny;
  Trainer(masked(tiny), tiny.options("run")).run();
  const std::string last = tiny / "run/last";
  const Parts with{.decoder = true};
  convert_model(last, {}, tiny / "hf", "hf", {}, with);
  const JsonKeys config(read_file(tiny / "hf/config.json"), "config.json");
  EXPECT_EQ(config.text("model_type", ""), "vit_mae");
  EXPECT_EQ(config.texts("architectures"), std::vector<std::string>{"ViTMAEForPreTraining"});
  EXPECT_EQ(config.integer("decoder_hidden_size", 0, {0, 1000}), 16);
  EXPECT_EQ(config.integer("decoder_num_hidden_layers", 0, {0, 1000}), 4);
  EXPECT_TRUE(config.boolean("norm_pix_loss", false));
  const SafetensorsFile hf(tiny / "hf/model.safetensors"), own(last + "/" + kDecoderFile);
  EXPECT_EQ(bytes_of(hf, "decoder.decoder_pred.weight"), bytes_of(own, "decoder_pred.weight"));
  EXPECT_NE(hf.find("vit.encoder.layer.1.attention.attention.key.weight"), nullptr);
  EXPECT_NE(hf.find("decoder.decoder_layers.3.attention.attention.key.weight"), nullptr);
  // What the hub's files are called is read again, by every way.
  convert_model(tiny / "hf", {}, tiny / "back", "timm", {}, with);
  for (const char* file : {"model.safetensors", kDecoderFile})
    EXPECT_EQ(read_file(tiny / ("back/" + std::string(file))), read_file(last + "/" + file));
  EXPECT_EQ(stored_decoder(tiny / "hf"), stored_decoder(last));
  convert_model(last, {}, tiny / "meta.pth", "original", {}, with);
  EXPECT_EQ(stored_decoder(tiny / "meta.pth")->depth, 4);
  // Not asked for, it stays out: an encoder that sees all of an image is what most want.
  convert_model(last, {}, tiny / "plain", "hf");
  EXPECT_EQ(JsonKeys(read_file(tiny / "plain/config.json"), "c").text("model_type", ""), "vit");
  EXPECT_FALSE(stored_decoder(tiny / "plain"));
  EXPECT_ERROR(convert_model(tiny / "plain", {}, tiny / "x", "hf", {}, with), ErrorKind::kUsage,
               "has no decoder");
  EXPECT_ERROR(convert_model(last, {}, tiny / "x.npz", "npz", {}, with), ErrorKind::kInput,
               "has no masked autoencoder");
  EXPECT_ERROR(convert_model(last, {}, tiny / "x.safetensors", "timm", {}, with), ErrorKind::kUsage,
               "decoder.safetensors");
}

TEST(Pretrain, InterruptedAtEveryStepIsTheUninterruptedRun) {
  const TinyRun tiny;
  Trainer whole(full_recipe(tiny), tiny.options("whole"));
  whole.run();
  const test::Outcome expected = outcome(tiny / "whole");
  for (int64_t step = 1; step < whole.total_steps(); ++step) {
    SCOPED_TRACE(step);
    const std::string out = "cut" + std::to_string(step);
    {
      Trainer trainer(full_recipe(tiny), tiny.options(out));
      EXPECT_EQ(trainer
                    .run({.step =
                              [step](int64_t now, double) {
                                if (now == step) raise(SIGINT);
                              }})
                    .signal,
                SIGINT);
    }
    tiny.resumed(out, 1 + static_cast<int>(step % 3)).run();
    test::expect_same(outcome(tiny / out), expected);
  }
}

TEST(Pretrain, ThreadsChangeNothingAndNorDoesRecomputation) {
  const TinyRun tiny;
  Trainer(full_recipe(tiny), tiny.options("one")).run();
  Trainer(full_recipe(tiny), tiny.options("three", 3)).run();
  test::expect_same(outcome(tiny / "three"), outcome(tiny / "one"));
  for (const Recompute policy : {Recompute::kCheap, Recompute::kBlock}) {
    Recipe recipe = full_recipe(tiny);
    recipe.recompute = policy;
    const std::string out = "again" + std::to_string(static_cast<int>(policy));
    Trainer(recipe, tiny.options(out)).run();
    EXPECT_EQ(outcome(tiny / out).at("last/model.safetensors"),
              outcome(tiny / "one").at("last/model.safetensors"));
  }
}

TEST(Pretrain, LearnsInBf16AndInSlices) {
  const TinyRun tiny;
  for (const bool sliced : {false, true}) {
    Recipe recipe = masked(tiny);
    recipe.epochs = 6, recipe.ema = 0.5;
    if (sliced)
      recipe.slices = 4;
    else
      recipe.precision = Precision::kBF16, recipe.recompute = Recompute::kBlock;
    std::vector<double> losses;
    Trainer trainer(recipe, tiny.options(sliced ? "slices" : "bf16"));
    trainer.run(
        {.epoch = [&](const EpochMetrics& row, bool) { losses.push_back(row.train_loss); }});
    EXPECT_LT(losses.back(), losses.front());
  }
}

// A folder of photos, which nobody has sorted or divided.
TEST(Pretrain, NeedsNeitherClassesNorTestImages) {
  const TinyRun tiny;
  ensure_directory(tiny / "photos/all");
  for (int i = 0; i < 20; ++i)
    test::write_file(tiny / ("photos/all/" + std::to_string(i) + ".png"),
                     test::encode_png(test::gradient(1, 9 + i % 3, 12)));
  Recipe recipe = masked(tiny);
  recipe.data = "folder:" + (tiny / "photos");
  std::vector<EpochMetrics> rows;
  Trainer trainer(recipe, tiny.options("photos-run"));
  EXPECT_EQ(trainer.data().test().size(), 0);
  const TrainResult result =
      trainer.run({.epoch = [&](const EpochMetrics& row, bool) { rows.push_back(row); }});
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_TRUE(std::isnan(rows.back().test_loss));
  EXPECT_EQ(-result.best_accuracy, rows[static_cast<size_t>(result.best_epoch) - 1].train_loss);
  EXPECT_TRUE(is_model_dir(tiny / "photos-run/best"));
  recipe.task = Task::kClassify;
  EXPECT_ERROR(Trainer(recipe, tiny.options("sorted")), ErrorKind::kInput, "holdout");
}

TEST(Pretrain, RefusesWhatNeedsLabels) {
  const TinyRun tiny;
  const auto refused = [&](const auto& change, const char* why) {
    Recipe recipe = masked(tiny);
    change(recipe);
    EXPECT_ERROR(Trainer(recipe, tiny.options("no")), ErrorKind::kUsage, why);
  };
  refused([](Recipe& r) { r.mixup = 0.8; }, "mixup is for learning with labels");
  refused([](Recipe& r) { r.label_smoothing = 0.1; }, "label_smoothing is for");
  refused([](Recipe& r) { r.head_only = true; }, "head_only is for");
  refused([](Recipe& r) { r.lr_scan = {0.1, 0.2}; }, "lr_scan is for");
  refused([](Recipe& r) { r.lora = 4; }, "lora");
  refused([](Recipe& r) { r.patch_drop = 0.5; }, "mask_ratio");
  refused([](Recipe& r) { r.decoder_width = 30; }, "multiple of 4");
  refused([&](Recipe& r) { tiny.use_batch_norm(r); }, "only a ViT");
  refused([](Recipe& r) { r.task = Task::kClassify, r.mask_ratio = 0.5; }, "task = \"mae\"");
}

TEST(Pretrain, FastRecipesAreShorter) {
  const TinyRun tiny;
  Recipe recipe = masked(tiny);
  recipe.epochs = 1000;
  const Recipe fast = fast_recipe(recipe, {}, /*budget=*/1e8);
  EXPECT_EQ(fast.task, Task::kMae);
  EXPECT_LT(fast.epochs, recipe.epochs);
}

}  // namespace
}  // namespace vitrum
