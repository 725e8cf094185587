// Optimisers, SAM and adapters in whole runs: what they must not depend on, and what they leave.
#include <gmock/gmock.h>
#include <signal.h>

#include <cmath>

#include "tests/support/tiny_run.h"
#include "vitrum/core/error.h"
#include "vitrum/infer/model_program.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

using test::outcome;
using test::TinyRun;
using testing::HasSubstr;

Recipe recipe_with(const TinyRun& tiny, const std::vector<std::string>& settings) {
  Recipe recipe = tiny.recipe();
  for (const std::string& setting : settings) set_assignment(recipe, setting);
  return recipe;
}

std::vector<float> weights(ParamStore& store) {
  std::vector<float> all;
  for (size_t i = 0; i < store.specs().size(); ++i) {
    const std::vector<float> one = store.read(i);
    all.insert(all.end(), one.begin(), one.end());
  }
  return all;
}

const std::vector<std::vector<std::string>> kRuns = {
    {"optimizer=sgd", "nesterov=true", "lr=0.02"},
    {"optimizer=lion", "lr=2e-3"},
    {"optimizer=lamb", "lr=0.1", "ema=0.9"},
    {"optimizer=muon", "lr=0.02", "adamw_lr=3e-3", "precision=bf16"},
    {"sam=0.05", "batch_size=8", "accumulate=2", "ema=0.9"},
    {"sam=0.1", "optimizer=muon", "lr=0.02", "precision=bf16"},
    {"lora=4", "lora_alpha=8", "lora_dropout=0.1", "lr=0.02", "precision=bf16"},
};

// Cut in the middle, resumed with another number of threads: the same files.
TEST(Update, ResumedRunsAreTheUninterruptedOnes) {
  for (const auto& settings : kRuns) {
    SCOPED_TRACE(settings[0]);
    const TinyRun tiny;
    Recipe recipe = recipe_with(tiny, settings);
    recipe.epochs = 2, recipe.checkpoint_every = 1;
    Trainer(recipe, tiny.options("whole")).run();
    Trainer(recipe, tiny.options("cut")).run({.step = [](int64_t step, double) {
      if (step == 7) raise(SIGINT);
    }});
    tiny.resumed("cut", 3).run();
    test::expect_same(outcome(tiny / "cut"), outcome(tiny / "whole"));
  }
}

TEST(Update, EveryOptimizerLearns) {
  for (const auto& settings : kRuns) {
    if (settings[0] == "optimizer=sgd") continue;  // sixty steps are too few
    SCOPED_TRACE(settings[0]);
    const TinyRun tiny;
    Recipe recipe = recipe_with(tiny, settings);
    recipe.epochs = 12, recipe.eval_every = 12;
    std::vector<EpochMetrics> rows;
    Trainer trainer(recipe, tiny.options("run"));
    trainer.run({.epoch = [&](const EpochMetrics& row, bool) { rows.push_back(row); }});
    EXPECT_LT(rows.back().train_loss, 0.85 * rows.front().train_loss);
  }
}

// ---- Muon ----

// The parameters that a step of Muon alone moves.
std::vector<std::string> moved_by_muon(const TinyRun& tiny, Recipe recipe) {
  for (const char* setting : {"optimizer=muon", "lr=0.02", "adamw_lr=0", "weight_decay=0",
                              "max_steps=1", "precision=f32"})
    set_assignment(recipe, setting);
  Trainer trainer(recipe, tiny.options("moved"));
  const std::vector<ParamSpec>& specs = trainer.store().specs();
  std::vector<std::vector<float>> before;
  for (size_t i = 0; i < specs.size(); ++i) before.push_back(trainer.store().read(i));
  trainer.run();
  std::vector<std::string> moved;
  for (size_t i = 0; i < specs.size(); ++i)
    if (!specs[i].buffer && trainer.store().read(i) != before[i]) moved.push_back(specs[i].name);
  return moved;
}

TEST(Muon, TakesTheFiltersOfAResNetsBlocks) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  tiny.use_batch_norm(recipe);
  EXPECT_THAT(moved_by_muon(tiny, recipe),
              testing::ElementsAre(
                  "layer1.0.conv1.weight", "layer1.0.conv2.weight", "layer2.0.downsample.0.weight",
                  "layer2.0.conv1.weight", "layer2.0.conv2.weight", "layer3.0.downsample.0.weight",
                  "layer3.0.conv1.weight", "layer3.0.conv2.weight", "layer4.0.downsample.0.weight",
                  "layer4.0.conv1.weight", "layer4.0.conv2.weight"));
}

TEST(Muon, LeavesStemAndDepthwiseFiltersOfAConvNeXt) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.model = "convnext_atto", recipe.image_size = 32, recipe.batch_size = 4, recipe.subset = 4;
  const std::vector<std::string> moved = moved_by_muon(tiny, recipe);
  for (const std::string& name : moved)
    EXPECT_THAT(name,
                testing::AnyOf(testing::EndsWith(".fc1.weight"), testing::EndsWith(".fc2.weight"),
                               testing::EndsWith(".downsample.1.weight")));
  EXPECT_EQ(moved.size(), 2u * (2 + 2 + 6 + 2) + 3);
}

// A filter is one row, whatever its window: the first step turns them to right angles.
TEST(Muon, FiltersAreRows) {
  const TinyRun tiny;
  Recipe recipe = recipe_with(tiny, {"optimizer=muon", "lr=0.02", "weight_decay=0", "max_steps=1"});
  tiny.use_batch_norm(recipe);
  Trainer trainer(recipe, tiny.options("run"));
  const auto at = static_cast<size_t>(trainer.store().index("layer1.0.conv2.weight"));
  const std::vector<float> before = trainer.store().read(at);
  trainer.run();
  const std::vector<float> after = trainer.store().read(at);
  const size_t rows = 4, columns = before.size() / rows;
  ASSERT_EQ(columns, 36u);
  double off = 0;
  for (size_t i = 0; i < rows; ++i)
    for (size_t j = 0; j < rows; ++j) {
      double sum = 0;
      for (size_t k = 0; k < columns; ++k)
        sum += static_cast<double>(after[i * columns + k] - before[i * columns + k]) *
               static_cast<double>(after[j * columns + k] - before[j * columns + k]);
      off += std::pow(sum / (0.02 * 0.02) - (i == j ? 1 : 0), 2);
    }
  EXPECT_LT(std::sqrt(off / static_cast<double>(rows)), 0.45);
}

TEST(Muon, AResumedResNetIsTheUninterruptedOne) {
  const TinyRun tiny;
  Recipe recipe = recipe_with(tiny, {"optimizer=muon", "lr=0.02", "adamw_lr=3e-3", "epochs=2",
                                     "precision=bf16", "checkpoint_every=1"});
  tiny.use_batch_norm(recipe);
  Trainer(recipe, tiny.options("whole")).run();
  Trainer(recipe, tiny.options("cut")).run({.step = [](int64_t step, double) {
    if (step == 7) raise(SIGINT);
  }});
  tiny.resumed("cut", 3).run();
  test::expect_same(outcome(tiny / "cut"), outcome(tiny / "whole"));
}

// On the way up a batch is not counted again, and a step of length zero leaves everything where it
// was.
TEST(Update, SamComesBackToWhereItWas) {
  const TinyRun tiny;
  Recipe recipe = recipe_with(tiny, {"sam=0.5", "lr=0", "epochs=1", "dropout=0"});
  Trainer trainer(recipe, tiny.options("sam"));
  const std::vector<float> before = weights(trainer.store());
  const EpochMetrics sam = trainer.run().last;
  EXPECT_EQ(weights(trainer.store()), before);
  recipe.sam = 0;
  const EpochMetrics plain = Trainer(recipe, tiny.options("plain")).run().last;
  EXPECT_EQ(sam.train_loss, plain.train_loss);
  EXPECT_EQ(sam.train_acc, plain.train_acc);
}

// ---- adapters ----

std::vector<float> logits_of(const ModelSpec& model, ParamStore& store, Arena which) {
  ModelProgram program(model, store, 4, {.weights = which});
  std::vector<uint8_t> pixels(4 * 64);
  for (size_t i = 0; i < pixels.size(); ++i) pixels[i] = static_cast<uint8_t>(37 * i);
  program.run(pixels.data());
  std::vector<float> logits(static_cast<size_t>(4 * model.config.classes()));
  program.read_logits(logits.data());
  return logits;
}

TEST(Lora, StartsAsTheBaseModelAndMergesToWhatItWas) {
  const TinyRun tiny;
  Recipe recipe = recipe_with(tiny, {"lora=4", "lora_alpha=12", "lr=0.02", "ema=0.5"});
  recipe.lora_targets = {"qkv", "attn.proj", "fc1", "blocks.1.mlp.fc2"};
  Trainer adapted(recipe, tiny.options("lora"));
  recipe.lora = 0;
  Trainer plain(recipe, tiny.options("plain"));
  EXPECT_EQ(logits_of(adapted.model(), adapted.store(), Arena::kMaster),
            logits_of(plain.model(), plain.store(), Arena::kMaster));

  adapted.run();
  for (size_t i = 0; i < plain.store().specs().size(); ++i) {
    const ParamSpec& p = plain.store().specs()[i];
    const auto at = static_cast<size_t>(adapted.store().index(p.name));
    EXPECT_EQ(adapted.store().read(at) == plain.store().read(i), !p.name.starts_with("head"))
        << p.name;
  }
  const std::vector<float> start = logits_of(plain.model(), plain.store(), Arena::kMaster),
                           applied = logits_of(adapted.model(), adapted.store(), Arena::kEma);
  const ModelSpec merged = resolve_model(tiny / "lora/last");
  load_weights(tiny / "lora/last", merged, plain.store());
  const std::vector<float> loaded = logits_of(merged, plain.store(), Arena::kMaster);
  for (size_t i = 0; i < applied.size(); ++i) {
    EXPECT_NEAR(loaded[i], applied[i], 2e-5);
    EXPECT_GT(std::abs(loaded[i] - start[i]), 1e-3);
  }
}

// The pretrained weights go under the adapters, which start anew.
TEST(Lora, LoadsAPlainModelUnderTheAdapters) {
  const TinyRun tiny;
  Recipe recipe = recipe_with(tiny, {"epochs=1"});
  Trainer plain(recipe, tiny.options("plain"));
  plain.run();
  recipe.lora = 4;
  Trainer adapted(recipe, tiny.options("lora"));
  load_weights(tiny / "plain/last", adapted.model(), adapted.store());
  EXPECT_EQ(logits_of(adapted.model(), adapted.store(), Arena::kMaster),
            logits_of(plain.model(), plain.store(), Arena::kMaster));
}

TEST(Lora, AdaptersAreSavedApart) {
  const TinyRun tiny;
  Trainer(recipe_with(tiny, {"lora=3", "epochs=1"}), tiny.options("run")).run();
  const SafetensorsFile file(tiny / "run/last/adapter/adapter_model.safetensors");
  EXPECT_EQ(file.tensors().size(), 2u * 2 * 2 + 2);  // A and B of two layers of two blocks; head
  EXPECT_EQ(file.at("base_model.model.blocks.1.attn.qkv.lora_B.weight").shape, (Shape{48, 3}));
  EXPECT_EQ(file.at("base_model.model.head.weight").shape, (Shape{10, 16}));
  const std::string config = test::read_text(tiny / "run/last/adapter/adapter_config.json");
  EXPECT_THAT(config, HasSubstr(R"("r":3)"));
  EXPECT_THAT(config, HasSubstr(R"("blocks.0.attn.proj")"));
  EXPECT_THAT(config, HasSubstr(R"("modules_to_save":["head"])"));
}

TEST(Lora, ATargetThatFitsNothingIsAMistake) {
  const TinyRun tiny;
  Recipe recipe = recipe_with(tiny, {"lora=4"});
  recipe.lora_targets = {"qkv", "fc"};
  try {
    Trainer trainer(recipe, tiny.options("run"));
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("'fc'"), HasSubstr("did you mean 'fc")));
  }
}

}  // namespace
}  // namespace vitrum
