// Stopping inside an optimiser step: the step is given up, and the run that is resumed ends with
// the bits of one that was never stopped.
#include <gmock/gmock.h>
#include <signal.h>

#include "tests/support/measured.h"
#include "tests/support/tiny_run.h"
#include "vitrum/core/error.h"
#include "vitrum/train/lr_scan.h"

namespace vitrum {
namespace {

using test::outcome;
using test::TinyRun;

// Kernel by kernel, so that a signal can come at any moment: with the `at`-th kernel.
RunOptions with_signal_at(const TinyRun& tiny, const std::string& out, int64_t at, int64_t& count) {
  RunOptions options = tiny.options(out);
  options.trace = [at, &count](const Program::Step&, double) {
    if (++count == at) raise(SIGTERM);
  };
  return options;
}

void expect_same_when_cut(const TinyRun& tiny, const Recipe& recipe) {
  int64_t kernels = 0;
  Trainer(recipe, with_signal_at(tiny, "whole", -1, kernels)).run();
  const auto expected = outcome(tiny / "whole");
  for (int64_t part = 1; part <= 5; ++part) {
    SCOPED_TRACE(part);
    const std::string out = "cut" + std::to_string(part);
    int64_t count = 0;
    const RunOptions signalled = with_signal_at(tiny, out, kernels * part / 6 + part, count);
    EXPECT_EQ(Trainer(recipe, signalled).run().signal, SIGTERM);
    tiny.resumed(out, 3).run();
    test::expect_same(outcome(tiny / out), expected);
  }
}

Recipe accumulating(const TinyRun& tiny) {
  Recipe recipe = tiny.recipe();
  recipe.epochs = 2, recipe.batch_size = 4, recipe.accumulate = 4, recipe.ema = 0.9;
  recipe.augment = "crop-flip", recipe.mixup = 0.5;
  return recipe;
}

TEST(Stop, InsideAnAccumulatedStep) {
  const TinyRun tiny;
  expect_same_when_cut(tiny, accumulating(tiny));
}

// Without another process: nothing of the step that was given up is left.
void expect_same_when_gone_on(const TinyRun& tiny, const Recipe& recipe) {
  int64_t kernels = 0, count = 0;
  Trainer(recipe, with_signal_at(tiny, "whole", -1, kernels)).run();
  const auto expected = outcome(tiny / "whole");
  for (const int64_t part : {3, 5, 7}) {
    const std::string out = "run" + std::to_string(part);
    {
      Trainer trainer(recipe, with_signal_at(tiny, out, kernels / part, count = 0));
      EXPECT_EQ(trainer.run().signal, SIGTERM);
      EXPECT_EQ(trainer.run().signal, 0);
    }
    test::expect_same(outcome(tiny / out), expected);
  }
}

TEST(Stop, AndGoOnAtOnce) {
  const TinyRun tiny;
  expect_same_when_gone_on(tiny, accumulating(tiny));
}

// Where SAM had moved the weights, those that a bf16 program reads are put back, too.
TEST(Stop, AndGoOnAtOnceWithSamInBf16) {
  const TinyRun tiny;
  Recipe recipe = accumulating(tiny);
  recipe.sam = 0.5, recipe.accumulate = 2, recipe.precision = Precision::kBF16, recipe.ema = 0;
  expect_same_when_gone_on(tiny, recipe);
}

TEST(Stop, WithRunningStatistics) {
  const TinyRun tiny;
  Recipe recipe = accumulating(tiny);
  tiny.use_batch_norm(recipe);
  expect_same_when_cut(tiny, recipe);
}

TEST(Stop, BetweenTheTwoPassesOfSam) {
  const TinyRun tiny;
  Recipe recipe = accumulating(tiny);
  recipe.sam = 0.05, recipe.accumulate = 2;
  expect_same_when_cut(tiny, recipe);
  recipe.precision = Precision::kBF16, recipe.accumulate = 1, recipe.ema = 0;
  tiny.use_batch_norm(recipe);
  const TinyRun again;
  recipe.data = again.recipe().data;
  expect_same_when_cut(again, recipe);
}

// It does not wait for the other batches of the step.
TEST(Stop, DoesNotFinishTheStep) {
  const TinyRun tiny;
  Recipe recipe = accumulating(tiny);
  recipe.batch_size = 1, recipe.accumulate = 75, recipe.epochs = 1;
  int64_t all = 0, until = 0;
  Trainer(recipe, with_signal_at(tiny, "whole", -1, all)).run();
  Trainer trainer(recipe, with_signal_at(tiny, "run", 1, until));
  EXPECT_EQ(trainer.run().signal, SIGTERM);
  EXPECT_EQ(trainer.position().step, 0);
  EXPECT_LT(until, all / 20) << "kernels after the signal";
}

// A scan remembers a signal between its runs, too.
TEST(Stop, ScanEndsWithTheSignal) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.lr_scan = {1e-3, 1e-2}, recipe.lr_scan_epochs = 1, recipe.holdout = 0.2;
  RunOptions options = tiny.options("scan");
  int results = 0;
  const int signal = scan_learning_rates(
      recipe, options, {.start = {}, .result = [&](const ScanRow&) { ++results, raise(SIGINT); }});
  EXPECT_EQ(signal, SIGINT);
  EXPECT_EQ(results, 1);
  EXPECT_EQ(load_scan(tiny / "scan").size(), 1u);
}

// ---- a batch no larger than the data ----

TEST(Batch, LargerThanTheDataTakesNoMoreMemory) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.epochs = 1;
  Trainer(recipe, tiny.options("base")).run();
  recipe.batch_size = recipe.eval_batch_size.emplace(100'000);
  const test::Measured training =
      test::measure([&] { Trainer(recipe, tiny.options("large")).run(); });
  EXPECT_EQ(training.code, 0) << training.message;
  EXPECT_LE(training.grown_kb, 100'000);
  recipe.head_only = true, recipe.weights = tiny / "base/last";
  const test::Measured features =
      test::measure([&] { Trainer(recipe, tiny.options("head")).run(); });
  EXPECT_EQ(features.code, 0) << features.message;
  EXPECT_LE(features.grown_kb, 100'000);
}

TEST(Batch, LargerThanTheDataIsTheBatchOfAllImages) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.batch_size = TinyRun::kTrain, recipe.eval_batch_size = TinyRun::kTest;
  Trainer(recipe, tiny.options("all")).run();
  recipe.batch_size = 1000, recipe.eval_batch_size = 1000;
  Trainer(recipe, tiny.options("more")).run();
  test::Outcome expected = outcome(tiny / "all");
  expected.erase("config.toml");
  test::expect_same(outcome(tiny / "more"), expected);
  EXPECT_EQ(recipe_of_run(tiny / "more").batch_size, 1000) << "as the user wrote it";
  RunOptions options = tiny.options("more");
  options.resume = true;
  recipe.epochs = 4;
  EXPECT_EQ(Trainer(recipe, options).run().last.epoch, 4);
}

// ---- what is told ----

// Weights that do not move: every epoch finds the same.
TEST(Totals, AreOfOneEpoch) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.lr = 0, recipe.dropout = 0;
  std::vector<EpochMetrics> rows;
  Trainer(recipe, tiny.options("run")).run({.epoch = [&](const EpochMetrics& row, bool) {
    rows.push_back(row);
  }});
  ASSERT_EQ(rows.size(), 3u);
  for (const EpochMetrics& row : rows) {
    EXPECT_NEAR(row.train_loss, rows[0].train_loss, 1e-5);
    EXPECT_NEAR(row.train_loss_sum, 5 * rows[0].train_loss, 0.5);
    EXPECT_EQ(row.train_acc, rows[0].train_acc);
  }
}

// The pass over all images for their features is most of the first epoch.
TEST(HeadOnly, TheTimeOfTheFeaturesCounts) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.epochs = 1;
  Trainer(recipe, tiny.options("base")).run();
  recipe.epochs = 2, recipe.head_only = true, recipe.weights = tiny / "base/last";
  recipe.image_size = 96;  // 576 tokens: dear beside a head of 16 numbers
  std::vector<EpochMetrics> rows;
  Trainer trainer(recipe, tiny.options("run"));
  ASSERT_TRUE(trainer.keeps_features());
  trainer.run({.epoch = [&](const EpochMetrics& row, bool) { rows.push_back(row); }});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_GT(rows[0].seconds, 5 * rows[1].seconds);
  EXPECT_NEAR(rows[0].images_per_second, TinyRun::kTrain / rows[0].seconds, 1e-6);
}

TEST(Estimate, ComesOnceAndBeforeTheFirstEpoch) {
  const TinyRun tiny;
  std::vector<std::string> told;
  Trainer trainer(tiny.recipe(), tiny.options("run"));
  trainer.run({.epoch = [&](const EpochMetrics&, bool) { told.emplace_back("epoch"); },
               .estimate =
                   [&](double seconds) {
                     told.emplace_back("estimate");
                     EXPECT_GT(seconds, 0);
                     EXPECT_LT(seconds, 600);
                   }});
  EXPECT_THAT(told, testing::ElementsAre("estimate", "epoch", "epoch", "epoch"));
}

}  // namespace
}  // namespace vitrum
