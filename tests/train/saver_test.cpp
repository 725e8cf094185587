// Saving beside training: what is told is on disk, what is on disk can be resumed, and what cannot
// be written is heard of.
#include "vitrum/train/saver.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <set>
#include <thread>

#include "tests/support/file_calls.h"
#include "tests/support/tiny_run.h"
#include "vitrum/core/error.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using test::outcome;
using test::TinyRun;
using testing::ElementsAre;
using testing::HasSubstr;

class Saving : public testing::Test {
 protected:
  Recipe recipe() const {
    Recipe recipe = tiny_.recipe();
    recipe.epochs = 6, recipe.ema = 0.9, recipe.lr = 1e-2;
    return recipe;
  }
  // Of a run that was left alone.
  std::map<std::string, std::string> expected() {
    Trainer(recipe(), tiny_.options("whole")).run();
    return outcome(tiny_ / "whole");
  }
  void resume(const std::string& out) { tiny_.resumed(out).run(); }
  int64_t epochs_on_disk(const std::string& out) const {
    return std::stoll(SafetensorsFile(checkpoint_path(tiny_ / out)).metadata().at("epochs"));
  }

  TinyRun tiny_;
};

TEST_F(Saving, WhatIsToldIsOnDisk) {
  std::vector<int> told;
  Trainer trainer(recipe(), tiny_.options("run"));
  trainer.run({.epoch = [&](const EpochMetrics& row, bool) {
    told.push_back(row.epoch);
    EXPECT_GE(epochs_on_disk("run"), row.epoch);
    EXPECT_GE(MetricsLog::load(tiny_ / "run").size(), told.size());
  }});
  EXPECT_THAT(told, ElementsAre(1, 2, 3, 4, 5, 6));
}

// Epochs between are told once their rows are on disk; what is left does not depend on it.
TEST_F(Saving, SeldomIsWhenDueTheBestAndTheLast) {
  Recipe seldom = recipe();
  seldom.eval_every = 3, seldom.save_every = 4;
  Trainer(seldom, tiny_.options("whole")).run();
  std::vector<int> told;
  std::set<int64_t> states;
  const auto look = [&] {
    if (has_checkpoint(tiny_ / "run")) states.insert(epochs_on_disk("run"));
  };
  seldom.save_every = 2;
  Trainer trainer(seldom, tiny_.options("run"));
  trainer.run({.epoch =
                   [&](const EpochMetrics& row, bool) {
                     told.push_back(row.epoch);
                     EXPECT_GE(MetricsLog::load(tiny_ / "run").size(), told.size());
                     EXPECT_TRUE(row.epoch > 1 || !has_checkpoint(tiny_ / "run"));
                     EXPECT_TRUE(row.epoch < 3 || fs::exists(tiny_ / "run/best/config.json"));
                     look();
                   },
               .step =
                   [&](int64_t, double) {
                     std::this_thread::sleep_for(std::chrono::milliseconds(20));
                     look();
                   }});
  EXPECT_THAT(told, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(states, testing::IsSubsetOf({2, 3, 4, 6})) << "3 is the first one that was judged";
  EXPECT_EQ(epochs_on_disk("run"), 6);
  auto run = outcome(tiny_ / "run"), whole = outcome(tiny_ / "whole");
  for (const char* recipe_inside : {"config.toml", "best/README.md", "last/README.md"})
    run.erase(recipe_inside), whole.erase(recipe_inside);
  EXPECT_EQ(run, whole);
}

// A disk slower than the epochs: states take each other's place, rows and the best model do not.
TEST_F(Saving, ASlowDiskLosesNothing) {
  std::vector<int> told;
  int saves = 0;
  Trainer trainer(recipe(), tiny_.options("run"));
  trainer.run({.epoch = [&](const EpochMetrics& row, bool) { told.push_back(row.epoch); },
               .saved =
                   [&] {
                     std::this_thread::sleep_for(std::chrono::milliseconds(200));
                     ++saves;
                   }});
  EXPECT_THAT(told, ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_LT(saves, 5);
  EXPECT_EQ(outcome(tiny_ / "run"), expected());
}

// Rows and models of epochs whose state never came to disk are there already: they are written
// again.
TEST_F(Saving, AFailedSaveEndsTheRunAndCanBeResumed) {
  const std::string state = checkpoint_path(tiny_ / "run"), kept = tiny_ / "kept";
  const auto put_aside = [&] {
    if (fs::exists(kept)) return;
    fs::rename(state, kept);
    fs::create_directory(state);
  };
  const auto slow = [](int64_t, double) {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  };
  {
    Trainer trainer(recipe(), tiny_.options("run"));
    try {
      trainer.run({.step = slow, .saved = put_aside});
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInput);
      EXPECT_THAT(error.what(), HasSubstr(state + "': it is a directory"));
    }
    EXPECT_LE(trainer.position().epochs, 4);
  }
  fs::remove(state);
  fs::rename(kept, state);
  EXPECT_GT(MetricsLog::load(tiny_ / "run").size(), static_cast<size_t>(epochs_on_disk("run")));
  resume("run");
  EXPECT_EQ(outcome(tiny_ / "run"), expected());
}

// Whatever a kill leaves, a state on disk has its models, rows and pictures beside it.
TEST_F(Saving, TheStateComesLast) {
  Recipe short_run = recipe();
  short_run.epochs = 1;
  Trainer trainer(short_run, tiny_.options("run"));
  const test::FileCalls calls;
  trainer.run();
  std::vector<std::string> renamed;
  for (const std::string& call : calls.made())
    if (call.starts_with("rename ")) renamed.push_back(call.substr(call.rfind(' ') + 1));
  EXPECT_EQ(renamed.back(), "state.safetensors");
  EXPECT_EQ(std::ranges::count(renamed, "state.safetensors"), 1);
  EXPECT_EQ(std::ranges::count(renamed, "model.safetensors"), 2) << "best/ and last/";
  EXPECT_EQ(std::ranges::count(renamed, "curves.svg"), 1);
}

// A state newer than the snapshot that is being written.
TEST_F(Saving, ASnapshotStaysAsItWas) {
  Trainer trainer(recipe(), tiny_.options("run"));
  Snapshot before(trainer.store());
  const auto weights = before.store().read(0), average = before.store().read(0, Arena::kEma);
  trainer.run();
  EXPECT_EQ(before.store().read(0), weights);
  EXPECT_EQ(before.store().read(0, Arena::kEma), average);
  EXPECT_NE(trainer.store().read(0), weights);
  EXPECT_TRUE(before.finite());
  for (const float broken : {NAN, INFINITY, -INFINITY}) {
    auto values = weights;
    values.back() = broken;
    before.store().write(0, values);
    EXPECT_FALSE(before.finite()) << broken;
  }
}

}  // namespace
}  // namespace vitrum
