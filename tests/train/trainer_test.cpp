#include "vitrum/train/trainer.h"

#include <gmock/gmock.h>
#include <signal.h>

#include <cmath>

#include "tests/support/measured.h"
#include "tests/support/tiny_run.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/infer/model_memory.h"
#include "vitrum/infer/predict_all.h"
#include "vitrum/train/draw.h"

namespace vitrum {
namespace {

using test::outcome;
using test::read_text;
using test::TinyRun;
using testing::AllOf;
using testing::HasSubstr;

std::vector<EpochMetrics> train(const TinyRun& tiny, const Recipe& recipe,
                                const std::string& out = "run") {
  std::vector<EpochMetrics> rows;
  Trainer trainer(recipe, tiny.options(out));
  trainer.run({.epoch = [&](const EpochMetrics& row, bool) { rows.push_back(row); }});
  return rows;
}

std::vector<float> weights(Trainer& trainer, Arena which = Arena::kMaster) {
  std::vector<float> all;
  for (size_t i = 0; i < trainer.store().specs().size(); ++i) {
    const auto values = trainer.store().read(i, which);
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i)
    most = std::max(most, std::abs(static_cast<double>(a[i] - b[i])));
  return a.size() == b.size() ? most : INFINITY;
}

std::string error_of(const std::function<void()>& body, ErrorKind kind) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(Trainer, LearnsAndReports) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.epochs = 12, recipe.lr = 1e-2;
  const auto rows = train(tiny, recipe);
  ASSERT_EQ(rows.size(), 12u);
  EXPECT_GT(rows.front().train_loss, 1.5);
  EXPECT_LT(rows.back().train_loss, 1.0);
  EXPECT_GT(rows.back().test_acc, 0.5);
  EXPECT_GE(rows.back().test_top5, rows.back().test_acc);
  EXPECT_EQ(rows.back().epoch, 12);
  EXPECT_EQ(rows.back().step, 12 * 5);  // 75 images are five batches, the last of 11
  EXPECT_EQ(rows.back().lr, recipe.lr);
  for (const char* file : {"config.toml", "metrics.csv", "metrics.jsonl", "best/config.json",
                           "best/model.safetensors", "last/config.json", "last/model.safetensors",
                           "state/state.safetensors", "curves.svg", "confusion.svg", "env.json"})
    EXPECT_FALSE(read_text(tiny / ("run/" + std::string(file))).empty()) << file;
}

// The rate that an epoch's row tells is that of its last step.
TEST(Trainer, TellsTheRateOfTheLastStep) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.schedule = ScheduleKind::kLinear, recipe.lr = 1e-3, recipe.min_lr = 0;
  const auto rows = train(tiny, recipe);
  ASSERT_EQ(rows.size(), 3u);
  for (const int64_t epoch : {1, 2, 3})  // of 5 steps
    EXPECT_NEAR(rows[static_cast<size_t>(epoch - 1)].lr, 1e-3 * double(16 - 5 * epoch) / 15, 1e-12);
}

TEST(Trainer, WritesTheDocumentsTags) {
  const TinyRun tiny;
  const auto rows = train(tiny, tiny.recipe());
  const std::string events = outcome(tiny / "run").at("events");
  for (const char* tag :
       {"train loss 1 ", "train acc 3 ", "test acc 3 ", "loss/step 15 ", "lr 15 "})
    EXPECT_THAT(events, HasSubstr(tag));
  EXPECT_NEAR(rows[0].train_loss_sum / 5, rows[0].train_loss,
              0.1);  // a sum over batches; a mean over images
}

// The mean loss at initialisation, image by image, must not depend on how images are put into
// batches.
TEST(Trainer, EveryImageCounts) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.epochs = 1, recipe.lr = 0, recipe.dropout = 0;
  const auto odd = train(tiny, recipe, "odd");
  recipe.batch_size = 75, recipe.eval_batch_size = 21;
  const auto whole = train(tiny, recipe, "whole");
  recipe.batch_size = 128, recipe.eval_batch_size = 1;
  const auto padded = train(tiny, recipe, "padded");
  for (const auto& other : {whole, padded}) {
    EXPECT_NEAR(odd[0].train_loss, other[0].train_loss, 1e-6);
    EXPECT_EQ(odd[0].train_acc, other[0].train_acc);
    EXPECT_NEAR(odd[0].test_loss, other[0].test_loss, 1e-6);
    EXPECT_EQ(odd[0].test_acc, other[0].test_acc);
  }
}

TEST(Trainer, AccumulationEqualsALargeBatch) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.epochs = 2, recipe.dropout = 0, recipe.optimizer = OptimizerKind::kSgd, recipe.lr = 0.05;
  Trainer large(recipe, tiny.options("large"));
  large.run();
  recipe.batch_size = 8, recipe.accumulate = 2;  // the last step of an epoch: 8 images and 3
  Trainer small(recipe, tiny.options("small"));
  small.run();
  EXPECT_EQ(small.position().step, large.position().step);
  EXPECT_LT(largest_difference(weights(large), weights(small)), 1e-5);
  EXPECT_NEAR(large.position().best_accuracy, small.position().best_accuracy, 1e-12);
}

TEST(Trainer, AveragedWeightsAreEvaluatedAndSaved) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.epochs = 1, recipe.ema = 0.5;
  Trainer trainer(recipe, tiny.options("run"));
  const auto start = weights(trainer);
  trainer.run();
  const auto raw = weights(trainer), average = weights(trainer, Arena::kEma);
  EXPECT_GT(largest_difference(raw, average), 1e-4);
  EXPECT_LT(largest_difference(raw, average), largest_difference(raw, start));

  ModelSpec saved = resolve_model(tiny / "run/last");
  load_weights(tiny / "run/last", saved, trainer.store());
  EXPECT_EQ(weights(trainer), average);
}

// They take the place of the weights' bf16 copy for a while, and training does not notice.
TEST(Trainer, AveragedWeightsAreEvaluatedInBf16) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.epochs = 2, recipe.ema = 0.9, recipe.lr = 1e-2, recipe.precision = Precision::kBF16;
  Trainer often(recipe, tiny.options("often"));
  const double loss = often.run().last.test_loss;
  recipe.eval_every = 2;
  Trainer seldom(recipe, tiny.options("seldom"));
  EXPECT_EQ(seldom.run().last.test_loss, loss);
  EXPECT_EQ(weights(often), weights(seldom));

  recipe.weights = tiny / "often/last", recipe.ema = 0, recipe.lr = 0, recipe.epochs = 1;
  EXPECT_EQ(train(tiny, recipe, "again").back().test_loss, loss);
}

TEST(Trainer, SmoothedLossAndClippingAreUsed) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.epochs = 1, recipe.lr = 0;
  const double plain = train(tiny, recipe, "plain")[0].train_loss;
  recipe.label_smoothing = 0.3;
  EXPECT_NE(train(tiny, recipe, "smooth")[0].train_loss, plain);

  recipe = tiny.recipe();
  recipe.optimizer = OptimizerKind::kSgd, recipe.momentum = 0, recipe.max_steps = 1, recipe.lr = 1,
  recipe.clip_norm = 1e-3;
  Trainer trainer(recipe, tiny.options("clipped"));
  const auto before = weights(trainer);
  trainer.run();
  double squares = 0;
  const auto after = weights(trainer);
  for (size_t i = 0; i < after.size(); ++i)
    squares += std::pow(static_cast<double>(after[i] - before[i]), 2);
  EXPECT_NEAR(std::sqrt(squares), 1e-3, 2e-5);
}

TEST(Trainer, NoDecayLeavesBiasesAlone) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.optimizer = OptimizerKind::kAdamW, recipe.max_steps = 1, recipe.lr = 0.1,
  recipe.weight_decay = 0.5;
  const auto norm_weight_after = [&](bool no_decay) {
    recipe.no_decay = no_decay;
    Trainer trainer(recipe, tiny.options(no_decay ? "some" : "all"));
    trainer.run();
    return trainer.store().read(static_cast<size_t>(trainer.store().index("norm.weight")))[0];
  };
  // LayerNorm weights start as 1; Adam moves them by lr, decay by lr * 0.5 of their size.
  EXPECT_NEAR(norm_weight_after(true) - norm_weight_after(false), 0.05, 1e-4);
}

TEST(Trainer, MaxStepsEndsInsideAnEpoch) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.max_steps = 7;
  const auto rows = train(tiny, recipe);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].step, 7);
  EXPECT_FALSE(std::isnan(rows[1].test_acc));
}

TEST(Trainer, WhatStartsAsZero) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  tiny.use_batch_norm(recipe);
  recipe.zero_init = {"*.bn2.weight"};
  Trainer trainer(recipe, tiny.options("run"));
  recipe.zero_init = {"*.bn3.weight"};
  EXPECT_THAT(error_of([&] { Trainer(recipe, tiny.options("no")); }, ErrorKind::kUsage),
              AllOf(HasSubstr("zero_init"), HasSubstr("matches no parameter")));
  recipe.zero_init = {};
  Trainer plain(recipe, tiny.options("plain"));
  int zeros = 0;
  for (size_t i = 0; i < trainer.store().specs().size(); ++i) {
    const std::string& name = trainer.store().specs()[i].name;
    const std::vector<float> values = trainer.store().read(i), usual = plain.store().read(i);
    const bool zero = name.ends_with(".bn2.weight");
    zeros += zero;
    EXPECT_EQ(values, zero ? std::vector<float>(usual.size()) : usual) << name;
  }
  EXPECT_EQ(zeros, 4);
}

TEST(Trainer, EvaluatesWhenDueAndAtTheEnd) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.eval_every = 2;
  const auto rows = train(tiny, recipe);
  EXPECT_TRUE(std::isnan(rows[0].test_acc));
  EXPECT_FALSE(std::isnan(rows[1].test_acc));
  EXPECT_FALSE(std::isnan(rows[2].test_acc));
}

// A model whose answers to an image and to its mirror image differ.
TEST(Trainer, AnswersAreTheMeanOfAnImageAndItsMirrorImage) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.epochs = 1, recipe.lr = 1e-2;
  const double plain = train(tiny, recipe, "plain").back().test_loss;
  recipe.eval_tta = Tta::kFlip;
  Trainer trainer(recipe, tiny.options("run"));
  const double loss = trainer.run().last.test_loss;
  EXPECT_NE(loss, plain);
  EXPECT_THAT(read_text(tiny / "run/best/README.md"),
              AllOf(HasSubstr("mirror image's\n"), HasSubstr("--tta flip\n")));

  const Dataset& test = trainer.data().test();
  Predictor predictor(tiny / "run/last", {.precision = DType::kF32});
  EvaluationTotals totals(10);
  predict_all(predictor, test, {.tta = Tta::kFlip}, [&](const PredictedSample& sample) {
    totals.add(sample.logits, test.label(sample.index));
    return true;
  });
  EXPECT_NEAR(totals.result().loss, loss, 1e-5);
}

TEST(Trainer, HoldsOut) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.holdout = 0.2;
  const Trainer trainer(recipe, tiny.options("run"));
  EXPECT_EQ(trainer.data().train().size(), 60);
  EXPECT_EQ(trainer.data().test().size(), 15);
}

// What a run directory resumes with.
std::vector<float> saved_weights(const TinyRun& tiny, const std::string& out) {
  Trainer trainer = tiny.resumed(out);
  return weights(trainer);
}

bool finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

TEST(Trainer, NanStopsWithTheStepAndKeepsTheCheckpoint) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.optimizer = OptimizerKind::kSgd, recipe.lr = 1e6, recipe.epochs = 100,
  recipe.checkpoint_every = 1;
  std::string message;
  {
    Trainer trainer(recipe, tiny.options("run"));
    message = error_of([&] { trainer.run(); }, ErrorKind::kFailed);
  }
  EXPECT_THAT(message, AllOf(HasSubstr(" at step "), HasSubstr(tiny / "run")));
  EXPECT_TRUE(finite(saved_weights(tiny, "run")));
}

TEST(Trainer, BrokenWeightsAreNeverSaved) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.checkpoint_every = 1;
  {
    Trainer trainer(recipe, tiny.options("run"));
    const auto poison = [&](int64_t step, double) {
      if (step != 7) return;
      auto values = trainer.store().read(2);
      values.back() = NAN;
      trainer.store().write(2, values);
    };
    EXPECT_THAT(error_of([&] { trainer.run({.step = poison}); }, ErrorKind::kFailed),
                HasSubstr("weight"));
    EXPECT_EQ(trainer.position().step, 7);
  }
  EXPECT_TRUE(finite(saved_weights(tiny, "run")));
}

TEST(Trainer, InterruptSavesAndSaysSo) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const TinyRun tiny;
    Trainer trainer(tiny.recipe(), tiny.options("run"));
    const TrainResult result = trainer.run({.step = [&](int64_t step, double) {
      if (step == 7) raise(signal);
    }});
    EXPECT_EQ(result.signal, signal);
    EXPECT_EQ(trainer.position().step, 7);
    EXPECT_TRUE(has_checkpoint(tiny / "run"));
  }
}

// Where augment_off ends augmentation, patches are dropped no more, and the run is one that never
// dropped any from there on.
TEST(Trainer, PatchesAreDroppedUntilImagesArePlain) {
  const TinyRun tiny;
  struct Run {
    std::vector<EpochMetrics> rows;
    int64_t bytes;
    std::vector<float> weights;
  };
  const auto run = [&](double drop, double off, const std::string& out) {
    Recipe recipe = tiny.recipe();
    recipe.patch_drop = drop, recipe.augment_off = off;
    Trainer trainer(recipe, tiny.options(out));
    Run run{.rows = {}, .bytes = trainer.activation_bytes(), .weights = {}};
    trainer.run({.epoch = [&](const EpochMetrics& row, bool) { run.rows.push_back(row); }});
    run.weights = weights(trainer);
    return run;
  };
  const Run whole = run(0, 0, "whole"), plain = run(0.5, 1, "plain"), fewer = run(0.5, 0, "fewer"),
            both = run(0.5, 0.34, "both");
  EXPECT_EQ(plain.weights, whole.weights);
  EXPECT_NE(fewer.weights, whole.weights);
  for (const size_t epoch : {0, 1}) {
    EXPECT_EQ(both.rows[epoch].train_loss, fewer.rows[epoch].train_loss);
    EXPECT_EQ(both.rows[epoch].test_loss, fewer.rows[epoch].test_loss);
  }
  EXPECT_NE(both.rows[2].train_loss, fewer.rows[2].train_loss);
  EXPECT_LT(fewer.bytes, whole.bytes);
  EXPECT_EQ(both.bytes, whole.bytes) << "the most that a run will need";
}

TEST(Trainer, RefusesWhatCannotWork) {
  const TinyRun tiny;
  const auto usage = [&](const std::function<void(Recipe&)>& change) {
    Recipe recipe = tiny.recipe();
    change(recipe);
    return error_of([&] { Trainer trainer(recipe, tiny.options("bad")); }, ErrorKind::kUsage);
  };
  EXPECT_THAT(usage([](Recipe& r) { r.image_size = 9; }), HasSubstr("not divisible"));
  EXPECT_THAT(usage([](Recipe& r) { r.num_classes = 3; }), HasSubstr("10 classes"));
  Recipe mistyped = tiny.recipe();
  mistyped.model = "vit_bas_patch16_224";
  EXPECT_THAT(error_of([&] { Trainer trainer(mistyped, tiny.options("bad")); }, ErrorKind::kInput),
              HasSubstr("vit_base_patch16_224"));
  EXPECT_THAT(usage([](Recipe& r) {
                r.mean = {0.5, 0.5}, r.std = {0.5, 0.5};
              }),
              HasSubstr("channels"));
  EXPECT_THAT(usage([](Recipe& r) { r.model = "swin_tiny_cifar", r.patch_drop = 0.5; }),
              AllOf(HasSubstr("patch_drop"), HasSubstr("leave the key out")));
  EXPECT_FALSE(std::filesystem::exists(tiny / "bad"))
      << "a run that cannot start leaves nothing behind";
}

TEST(Trainer, DoesNotOverwriteARun) {
  const TinyRun tiny;
  const Trainer first(tiny.recipe(), tiny.options("run"));
  EXPECT_THAT(
      error_of([&] { Trainer second(tiny.recipe(), tiny.options("run")); }, ErrorKind::kUsage),
      HasSubstr("--resume"));
  RunOptions again = tiny.options("run");
  again.resume = true;
  EXPECT_THAT(
      error_of([&] { Trainer third(recipe_of_run(tiny / "run"), again); }, ErrorKind::kInput),
      HasSubstr("another process"));
}

// Or a little less: a backend that computes two layers together keeps nothing between them.
TEST(Trainer, MemoryIsWhatTheSummarySays) {
  const TinyRun tiny;
  for (const Precision precision : {Precision::kF32, Precision::kBF16}) {
    Recipe recipe = tiny.recipe();
    recipe.precision = precision;
    const Trainer trainer(recipe, tiny.options(precision == Precision::kF32 ? "f32" : "bf16"));
    const ModelMemory memory = training_memory(
        trainer.model(), {.batch = recipe.batch_size, .compute = compute_for(recipe)});
    EXPECT_LE(trainer.activation_bytes(), memory.arena);
    EXPECT_GE(trainer.activation_bytes(), memory.arena * 3 / 4);
  }
}

TEST(Evaluation, CountsRanksAndConfusion) {
  EvaluationTotals totals(3);
  totals.add(std::vector<float>{3, 2, 1}, 0);
  totals.add(std::vector<float>{3, 2, 1}, 1);
  totals.add(std::vector<float>{1, 1, 1}, 1);  // the lowest index wins a tie
  const Evaluation e = totals.result();
  EXPECT_EQ(e.images, 3);
  EXPECT_DOUBLE_EQ(e.top1, 1.0 / 3);
  EXPECT_DOUBLE_EQ(e.top5, 1);
  const double lse = std::log(std::exp(3) + std::exp(2) + std::exp(1));
  EXPECT_NEAR(e.loss, (lse - 3 + lse - 2 + std::log(3.0)) / 3, 1e-9);
  EXPECT_EQ(e.confusion, (Confusion{{0, 0, 1}, {1, 0, 2}}));
  EXPECT_EQ(e.per_class[0], 1);
  EXPECT_EQ(e.per_class[1], 0);
  EXPECT_TRUE(std::isnan(e.per_class[2]));
}

TEST(Evaluation, NanIsNeverRight) {
  EvaluationTotals totals(2);
  totals.add(std::vector<float>{NAN, NAN}, 0);
  EXPECT_EQ(totals.result().top1, 0);
  EXPECT_TRUE(std::isnan(totals.result().loss));
}

TEST(Evaluation, MoreOutputsThanClasses) {
  EvaluationTotals totals(2);
  totals.add(std::vector<float>{0, 0, 0, 5}, 1);
  EXPECT_EQ(totals.result().per_class.size(), 4u);
  EXPECT_EQ(totals.result().confusion, (Confusion{{1, 3, 1}}));
}

// A table of all pairs would have 20,000 x 20,000 numbers: 3.2 GB.
TEST(Evaluation, ManyClassesTakeLittleMemory) {
  constexpr int kClasses = 20'000;
  const test::Measured cost = test::measure([] {
    EvaluationTotals totals(kClasses);
    std::vector<float> logits(kClasses);
    for (int k = 0; k < kClasses; k += 40) {
      logits[static_cast<size_t>(k)] = 1;
      totals.add(logits, k);
      logits[static_cast<size_t>(k)] = 0;
    }
    const Evaluation e = totals.result();
    draw_confusion(e.confusion, e.per_class.size(), {});
    if (e.top1 != 1 || e.confusion.size() != 500) fail("{} cells", e.confusion.size());
  });
  EXPECT_EQ(cost.code, 0) << cost.message;
  EXPECT_LE(cost.grown_kb, 50'000);
}

}  // namespace
}  // namespace vitrum
