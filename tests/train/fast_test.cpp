// --fast against what the command line says.
#include <gmock/gmock.h>

#include <filesystem>

#include "tests/support/process.h"
#include "tests/support/tiny_run.h"
#include "vitrum/train/fast_recipe.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using test::TinyRun;

// Every recipe on small data, starting from scratch, where anything costs too much.
TEST(Fast, WhatIsGivenStaysInEveryRecipe) {
  const TinyRun tiny;
  int recipes = 0;
  for (const auto& entry : fs::directory_iterator(VITRUM_SOURCE_DIR "/recipes")) {
    SCOPED_TRACE(entry.path().filename());
    ++recipes;
    Recipe r;
    load_recipe(r, entry.path());
    forget_teacher(r);
    r.data = tiny.recipe().data, r.weights.clear();
    if (r.model.empty()) r.model = "vit_tiny_patch16_224", r.image_size = 32;
    r.subset = 64;
    EXPECT_EQ(fast_recipe(r, {"subset"}, 1).subset, 64);
    EXPECT_LE(fast_recipe(r, {}, 1).subset, 64) << "--fast makes nothing larger";
    const std::vector<std::string> all = {"subset",  "epochs",        "batch_size",
                                          "lr_scan", "warmup_epochs", "warmup_steps"};
    EXPECT_EQ(changed_keys(r, fast_recipe(r, all, 1)), std::vector<std::string>());
    EXPECT_NE(fast_recipe(r, {}, 1), r);
  }
  EXPECT_GE(recipes, 10);
}

TEST(Fast, CommandLineWins) {
  const TinyRun tiny;
  const test::Finished run = test::run_vitrum(
      {"train",    "--model",        tiny / "model", "--data",      tiny.recipe().data,
       "--out",    tiny / "run",     "--fast",       "--epochs",    "100000",
       "--set",    "image_size=128", "--set",        "max_steps=1", "--set",
       "subset=5", "--set",          "batch_size=3", "--threads",   "1"},
      tiny / "output");
  EXPECT_EQ(run.code, 0) << run.err;
  const Recipe made = recipe_of_run(tiny / "run");
  EXPECT_EQ(made.subset, 5);
  EXPECT_EQ(made.epochs, 100000);
  EXPECT_EQ(made.batch_size, 3);
}

}  // namespace
}  // namespace vitrum
