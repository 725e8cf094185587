// A run that was stopped anywhere and resumed is the run that was never stopped, bit for bit.
#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>

#include "tests/support/tiny_run.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/philox.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using test::outcome;
using test::TinyRun;

// Everything that has state: moments, averages, dropout, shuffling, augmentation, accumulation, a
// schedule.
Recipe full_recipe(const TinyRun& tiny) {
  Recipe recipe = tiny.recipe();
  recipe.batch_size = 8, recipe.accumulate = 2, recipe.ema = 0.9, recipe.clip_norm = 0.5;
  recipe.schedule = ScheduleKind::kCosine, recipe.warmup_epochs = 1,
  recipe.augment = "crop-flip+trivial-m0.5";
  recipe.erase = 0.3, recipe.repeat = 2, recipe.augment_off = 0.34;
  recipe.patch_drop = 0.5;  // but for the last epoch
  recipe.mixup = 0.8, recipe.cutmix = 1, recipe.mix_prob = 0.7;
  recipe.checkpoint_every = 1;
  return recipe;
}

TrainHooks stop_at(int64_t wanted) {
  return {.step = [wanted](int64_t step, double) {
    if (step == wanted) raise(SIGINT);
  }};
}

class Resume : public testing::Test {
 protected:
  Resume() {
    Trainer whole(full_recipe(tiny_), tiny_.options("whole"));
    whole.run();
    steps_ = whole.total_steps();
    expected_ = outcome(tiny_ / "whole");
  }
  void expect_same(const std::string& out) { test::expect_same(outcome(tiny_ / out), expected_); }

  TinyRun tiny_;
  int64_t steps_ = 0;
  std::map<std::string, std::string> expected_;
};

TEST_F(Resume, InterruptedAtEveryStepIsTheUninterruptedRun) {
  for (int64_t step = 1; step < steps_; ++step) {
    SCOPED_TRACE(step);
    const std::string out = "cut" + std::to_string(step);
    TrainPosition stopped;
    {
      Trainer trainer(full_recipe(tiny_), tiny_.options(out));
      EXPECT_EQ(trainer.run(stop_at(step)).signal, SIGINT);
      stopped = trainer.position();
    }
    Trainer rest = tiny_.resumed(out, 1 + static_cast<int>(step % 4));
    EXPECT_EQ(rest.position().step, step);
    EXPECT_EQ(rest.position().epochs, stopped.epochs);
    EXPECT_EQ(rest.position().loss_images, stopped.loss_images);
    EXPECT_EQ(rest.position().best_accuracy, stopped.best_accuracy);
    EXPECT_EQ(rest.position().best_epoch, stopped.best_epoch);
    rest.run();
    expect_same(out);
  }
}

// The process dies where it stands: rows, events and models newer than the checkpoint are on disk
// already.
TEST_F(Resume, KilledAnywhereIsTheUninterruptedRun) {
  struct Killed {};
  Recipe recipe = full_recipe(tiny_);
  recipe.checkpoint_every = 3;  // fewer checkpoints: something to do again
  for (int64_t step = 1; step <= steps_; step += 2) {
    SCOPED_TRACE(step);
    const std::string out = "killed" + std::to_string(step);
    const auto die = [&](int64_t at, double) {
      if (at == step) throw Killed();
    };
    EXPECT_THROW(Trainer(recipe, tiny_.options(out)).run({.step = die}), Killed);
    Trainer rest = tiny_.resumed(out);
    // Every third step is on disk, and the end of every epoch.
    const int64_t epoch = steps_ / 3, done = step - 1;
    EXPECT_EQ(rest.position().step, std::max(done / 3 * 3, done / epoch * epoch));
    rest.run();
    expected_["config.toml"] = to_toml(rest.recipe());
    expect_same(out);
  }
}

TEST_F(Resume, StoppedAgainAndAgain) {
  Trainer(full_recipe(tiny_), tiny_.options("run")).run(stop_at(2));
  for (int64_t step = 3; step < steps_; step += 2) tiny_.resumed("run").run(stop_at(step));
  tiny_.resumed("run").run();
  expect_same("run");
}

TEST_F(Resume, InBf16Too) {
  Recipe recipe = full_recipe(tiny_);
  recipe.precision = Precision::kBF16, recipe.ema = 0;
  Trainer(recipe, tiny_.options("bf16")).run();
  expected_ = outcome(tiny_ / "bf16");
  Trainer(recipe, tiny_.options("cut")).run(stop_at(7));
  tiny_.resumed("cut", 2).run();
  expect_same("cut");
}

TEST_F(Resume, AfterTheEndChangesNothing) {
  const TrainResult result = tiny_.resumed("whole").run();
  EXPECT_EQ(result.signal, 0);
  EXPECT_EQ(result.last.epoch, 3);
  expect_same("whole");
}

TEST_F(Resume, MoreEpochsMayFollow) {
  RunOptions options = tiny_.options("whole");
  options.resume = true;
  Recipe longer = recipe_of_run(tiny_ / "whole");
  longer.epochs = 4;
  EXPECT_EQ(Trainer(longer, options).run().last.epoch, 4);
  longer.lr = 1;
  EXPECT_THROW(Trainer(longer, options), Error);
}

// An older checkpoint, and all that a kill may leave of newer files: a longer log, a torn line,
// half-written files.
TEST_F(Resume, WhatIsNewerThanTheCheckpointIsDropped) {
  Trainer(full_recipe(tiny_), tiny_.options("run")).run(stop_at(4));
  const std::string old = test::read_text(checkpoint_path(tiny_ / "run"));
  tiny_.resumed("run").run(stop_at(11));
  write_file_atomic(checkpoint_path(tiny_ / "run"), old);
  const std::string csv = tiny_ / "run/metrics.csv";
  write_file_atomic(csv, test::read_text(csv) + "3,15,0.");
  write_file_atomic(tiny_ / "run/state/.123-0.vitrum-tmp", "torn");
  tiny_.resumed("run").run();
  expect_same("run");
  EXPECT_FALSE(fs::exists(tiny_ / "run/state/.123-0.vitrum-tmp"));
}

TEST_F(Resume, ADamagedStateIsRefused) {
  const std::string path = checkpoint_path(tiny_ / "whole"), good = test::read_text(path);
  const auto message = [&] {
    try {
      tiny_.resumed("whole");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      return std::string(error.what());
    }
    return std::string();
  };
  for (size_t size : {size_t{0}, size_t{7}, good.size() / 2, good.size() - 1}) {
    write_file_atomic(path, good.substr(0, size));
    EXPECT_THAT(message(), testing::HasSubstr(path)) << size;
  }
  write_safetensors(path, {}, {{"format", "vitrum-state-1"}, {"step", "x"}});
  EXPECT_THAT(message(), testing::HasSubstr("counter"));
  for (const char* key : {"step", "epochs", "best_epoch"}) {
    std::map<std::string, std::string> counters = {
        {"format", "vitrum-state-1"}, {"step", "1"},    {"epochs", "1"},    {"loss_images", "0"},
        {"best_accuracy", "0"},       {"seconds", "0"}, {"best_epoch", "1"}};
    counters[key] = "9223372036854775807";
    write_safetensors(path, {}, counters);
    EXPECT_THAT(message(), testing::HasSubstr("no place in a run")) << key;
  }
  write_safetensors(path, {}, {});
  EXPECT_THAT(message(), testing::HasSubstr("not a training state"));
  fs::remove(tiny_ / "whole/config.toml");
  EXPECT_THAT(message(), testing::HasSubstr("config.toml"));
}

}  // namespace
}  // namespace vitrum
