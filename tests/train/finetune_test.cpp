// Starting from weights: what is taken over, the head alone, the learning-rate scan, early stops.
#include <gmock/gmock.h>
#include <signal.h>

#include <cmath>
#include <filesystem>
#include <functional>
#include <numeric>

#include "tests/support/expect_error.h"
#include "tests/support/tiny_run.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/train/fast_recipe.h"
#include "vitrum/train/lr_scan.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using test::outcome;
using test::read_text;
using test::TinyRun;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

std::vector<float> param(Trainer& trainer, const std::string& name) {
  const int index = trainer.store().index(name);
  EXPECT_GE(index, 0) << name;
  return trainer.store().read(static_cast<size_t>(index));
}

std::string error_of(const std::function<void()>& body, ErrorKind kind) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    EXPECT_THAT(error.what(), testing::Not(HasSubstr("\n")));
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

// A model that has seen the data a little.
class Finetune : public testing::Test {
 protected:
  Finetune() {
    Recipe recipe = tiny_.recipe();
    recipe.epochs = 4, recipe.lr = 1e-2;
    Trainer(recipe, tiny_.options("base")).run();
  }
  Recipe recipe() const {
    Recipe r = tiny_.recipe();
    r.model.clear(), r.weights = tiny_ / "base/last";
    return r;
  }

  TinyRun tiny_;
};

TEST_F(Finetune, StartsFromTheWeightsAndKeepsAHeadThatFits) {
  Trainer from_weights(recipe(), tiny_.options("run"));
  Trainer base = tiny_.resumed("base");
  for (const char* name : {"pos_embed", "blocks.1.mlp.fc2.weight", "head.weight", "head.bias"})
    EXPECT_EQ(param(from_weights, name), param(base, name)) << name;
  EXPECT_TRUE(from_weights.loaded().adapted.empty());
  EXPECT_EQ(from_weights.loaded().dialect, "timm");
}

TEST_F(Finetune, AveragesStartAtTheWeights) {
  Recipe r = recipe();
  r.ema = 0.999;
  Trainer trainer(r, tiny_.options("run"));
  for (size_t i = 0; i < trainer.store().specs().size(); ++i)
    EXPECT_EQ(trainer.store().read(i, Arena::kEma), trainer.store().read(i));
}

TEST_F(Finetune, NewHeads) {
  const auto zero = [](float x) { return x == 0; };
  Recipe r = recipe();
  r.head_init = HeadInit::kZero;
  Trainer zeros(r, tiny_.options("zeros"));
  EXPECT_TRUE(std::ranges::all_of(param(zeros, "head.weight"), zero));
  r.head_init = HeadInit::kNormal, r.head_bias = false, r.num_classes = 12;
  Trainer normal(r, tiny_.options("normal"));
  const auto weight = param(normal, "head.weight");
  EXPECT_EQ(weight.size(), 12u * 16);
  EXPECT_NEAR(std::sqrt(std::inner_product(weight.begin(), weight.end(), weight.begin(), 0.0) /
                        static_cast<double>(weight.size())),
              0.02, 0.004);
  EXPECT_EQ(normal.store().index("head.bias"), -1);
  // From scratch as well.
  r = tiny_.recipe(), r.head_init = HeadInit::kZero;
  Trainer scratch(r, tiny_.options("scratch"));
  EXPECT_TRUE(std::ranges::all_of(param(scratch, "head.weight"), zero));
  EXPECT_FALSE(std::ranges::all_of(param(scratch, "blocks.0.attn.qkv.weight"), zero));
}

TEST_F(Finetune, AnotherResolution) {
  Recipe r = recipe();
  r.image_size = 16, r.pos_resample = PosResample::kBilinear, r.epochs = 1;
  Trainer trainer(r, tiny_.options("run"));
  EXPECT_EQ(param(trainer, "pos_embed").size(), 17u * 16);
  EXPECT_THAT(trainer.loaded().adapted[0], HasSubstr("positions 2x2 -> 4x4 (bilinear)"));
  EXPECT_EQ(trainer.run().last.epoch, 1);
}

TEST_F(Finetune, PreprocessingIsTheWeightsOwnUnlessTheRecipeSays) {
  const std::string path = tiny_ / "base/last/config.json";
  std::string config = read_text(path);
  const auto put = [&](const std::string& key, const std::string& value) {
    const size_t at = config.find("\"" + key + "\":");
    ASSERT_NE(at, std::string::npos) << key;
    const size_t end = config.find_first_of(",\n}", at);
    config.replace(at, end - at, "\"" + key + "\": " + value);
  };
  put("interpolation", "\"bilinear\""), put("crop_pct", "0.5");
  write_file_atomic(path, config);
  Recipe r = recipe();
  const TrainData data(r);
  EXPECT_EQ(model_for(r, data.train()).preprocess.interpolation, "bilinear");
  EXPECT_EQ(model_for(r, data.train()).preprocess.crop_pct, 0.5);
  r.model = tiny_ / "model";  // the architecture, not its preprocessing
  EXPECT_EQ(model_for(r, data.train()).preprocess.crop_pct, 0.5);
  r.crop_pct = 1, r.interpolation = "bicubic", r.resize = ResizeMode::kSquash;
  const Preprocessing p = model_for(r, data.train()).preprocess;
  EXPECT_EQ(p.crop_pct, 1);
  EXPECT_EQ(p.interpolation, "bicubic");
  EXPECT_EQ(p.crop_mode, "squash");
}

// A new head may read the mean of the patches beside the class token, of patches of another size.
TEST_F(Finetune, TheHeadReadsWhatTheRecipeSays) {
  Recipe r = recipe();
  const TrainData data(r);
  const ViTConfig plain = *model_for(r, data.train()).config.as<ViTConfig>();
  r.pool = "token_and_mean", r.patch_size = plain.patch_h / 2, r.epochs = 1;
  const ModelSpec model = model_for(r, data.train());
  EXPECT_EQ(feature_width(model.config), 2 * plain.width);
  EXPECT_EQ(model.config.as<ViTConfig>()->patches(), 4 * plain.patches());
  Trainer trainer(r, tiny_.options("run"));
  EXPECT_THAT(trainer.loaded().adapted, Contains(HasSubstr("pseudo-inverse")));
  EXPECT_THAT(trainer.loaded().adapted, Contains(HasSubstr("new head")));
  EXPECT_EQ(trainer.run().last.epoch, 1);
  r.pool = "median";
  EXPECT_ERROR(model_for(r, data.train()), ErrorKind::kUsage, "token_and_mean or model");
  r.pool = "model", r.patch_size = 3;
  EXPECT_ERROR(model_for(r, data.train()), ErrorKind::kUsage, "3");
}

// ---- the head alone ----

TEST_F(Finetune, KeptFeaturesGiveTheSameBits) {
  Recipe r = recipe();
  r.head_only = true, r.dropout = 0.5, r.num_classes = 11, r.ema = 0.5;
  Trainer kept(r, tiny_.options("kept"));
  EXPECT_TRUE(kept.keeps_features());
  kept.run();
  // A crop with no room to move is an augmentation only by name.
  Recipe again = r;
  again.augment = "flip";
  Trainer flips(again, tiny_.options("flips"));
  EXPECT_FALSE(flips.keeps_features());

  TrainStep step(kept.model(), kept.recipe(), DType::kF32, kept.backend());
  const TrainData data(r);
  Loader loader(data.train(), {.batch_size = r.batch_size,
                               .shuffle = true,
                               .seed = static_cast<uint64_t>(r.seed),
                               .preprocess = preprocess_of(kept.model())});
  int64_t at = 0;
  for (int64_t epoch = 0; epoch < r.epochs; ++epoch) {
    loader.start(epoch);
    for (Batch batch; loader.next(batch); ++at)
      step.backward(batch, batch.count, at), step.update(r.lr, at);
  }
  for (size_t i = 0; i < kept.store().specs().size(); ++i)
    for (const Arena arena : {Arena::kMaster, Arena::kEma})
      EXPECT_EQ(step.store().read(i, arena), kept.store().read(i, arena))
          << kept.store().specs()[i].name;
}

TEST_F(Finetune, HeadOnlyTrainsTheHeadAndResumes) {
  Recipe r = recipe();
  r.head_only = true, r.head_init = HeadInit::kZero, r.epochs = 6;
  Trainer whole(r, tiny_.options("whole"));
  const auto before = param(whole, "blocks.1.attn.qkv.weight");
  const TrainResult result = whole.run();
  EXPECT_EQ(param(whole, "blocks.1.attn.qkv.weight"), before);
  EXPECT_GT(result.last.train_acc, 0.4);
  {
    Trainer part(r, tiny_.options("part"));
    part.run({.step = [](int64_t step, double) {
      if (step == 13) raise(SIGINT);
    }});
  }
  tiny_.resumed("part").run();
  EXPECT_TRUE(outcome(tiny_ / "part") == outcome(tiny_ / "whole"));
}

// ---- the scan ----

TEST_F(Finetune, ScanChoosesTheBestAndTrainsOnEverything) {
  Recipe r = recipe();
  r.head_init = HeadInit::kZero, r.lr_scan = {1e-7, 3e-3, 1e6}, r.holdout = 0.2, r.epochs = 2;
  r.optimizer = OptimizerKind::kSgd;
  RunOptions options = tiny_.options("run");
  std::vector<ScanRow> seen;
  std::vector<int64_t> images;
  const int signal = scan_learning_rates(
      r, options,
      {.start = [&](const Trainer& t) { images.push_back(t.data().train().size()); },
       .result = [&](const ScanRow& row) { seen.push_back(row); }});
  EXPECT_EQ(signal, 0);
  EXPECT_EQ(images, (std::vector<int64_t>{60, 60, 60}));
  EXPECT_EQ(load_scan(tiny_ / "run"), seen);
  ASSERT_EQ(seen.size(), 3u);
  EXPECT_EQ(r.lr, 3e-3);
  EXPECT_TRUE(std::isinf(seen[2].loss)) << "diverged";
  EXPECT_EQ(recipe_of_run(tiny_ / "run").lr, 3e-3);
  for (const auto& entry : fs::directory_iterator(tiny_ / "run"))
    EXPECT_FALSE(entry.is_directory()) << entry.path();

  Trainer trainer(r, options);
  EXPECT_EQ(trainer.data().train().size(), TinyRun::kTrain);
  EXPECT_EQ(trainer.data().test().size(), TinyRun::kTest);
  EXPECT_EQ(trainer.run().last.epoch, 2);
}

TEST_F(Finetune, EveryCandidateStartsAlike) {
  Recipe r = recipe();
  r.epochs = 8, r.warmup_epochs = 4, r.lr_scan = {0.1, 0.2}, r.lr_scan_epochs = 2, r.patience = 1;
  const Recipe one = scan_recipe(r, 0.1), two = scan_recipe(r, 0.2);
  EXPECT_EQ(changed_keys(one, two), std::vector<std::string>{"lr"});
  EXPECT_EQ(one.epochs, 2);
  EXPECT_EQ(one.warmup_epochs, 1);
  EXPECT_EQ(one.holdout, 0.02);
  EXPECT_EQ(one.patience, 0);
  EXPECT_TRUE(one.lr_scan.empty());
}

TEST_F(Finetune, AnInterruptedScanGoesOn) {
  Recipe r = recipe();
  r.head_only = true, r.lr_scan = {1e-4, 1e-2, 3e-3}, r.lr_scan_epochs = 2, r.holdout = 0.2;
  {
    Recipe whole = r;
    RunOptions options = tiny_.options("whole");
    ASSERT_EQ(scan_learning_rates(whole, options), 0);
    Trainer(whole, options).run();
  }
  RunOptions options = tiny_.options("part");
  {
    Recipe part = r;
    int candidates = 0;
    const ScanHooks stop_in_the_second = {.start = [&](const Trainer&) { ++candidates; },
                                          .result = {},
                                          .train = {.epoch = {}, .step = [&](int64_t step, double) {
                                                      if (candidates == 2 && step == 3)
                                                        raise(SIGINT);
                                                    }}};
    EXPECT_EQ(scan_learning_rates(part, options, stop_in_the_second), SIGINT);
    EXPECT_EQ(load_scan(tiny_ / "part").size(), 1u);
  }
  Recipe rest = recipe_of_run(tiny_ / "part");
  int runs = 0;
  EXPECT_EQ(
      scan_learning_rates(rest, options, {.start = [&](const Trainer&) { ++runs; }, .result = {}}),
      0);
  EXPECT_EQ(runs, 2) << "the first is not tried again";
  Trainer(rest, options).run();
  EXPECT_TRUE(outcome(tiny_ / "part") == outcome(tiny_ / "whole"));
  EXPECT_EQ(read_text(tiny_ / "part/lr_scan.csv"), read_text(tiny_ / "whole/lr_scan.csv"));
}

TEST_F(Finetune, ScansRefuseWhatCannotWork) {
  Recipe r = recipe();
  r.lr_scan = {0.1, 0.1};
  RunOptions options = tiny_.options("bad");
  const auto scan = [&] { scan_learning_rates(r, options); };
  EXPECT_THAT(error_of(scan, ErrorKind::kUsage), HasSubstr("0.1 is there twice"));
  r.lr_scan = {0.1}, r.holdout = 0.999;
  EXPECT_THAT(error_of(scan, ErrorKind::kUsage), HasSubstr("leaves one side empty"));
  EXPECT_FALSE(fs::exists(tiny_ / "bad"));
  EXPECT_THAT(error_of([] { best_of({{.lr = 1}}); }, ErrorKind::kFailed), HasSubstr("diverged"));
}

TEST_F(Finetune, TheLossDecidesBetweenEqualAccuracies) {
  const std::vector<ScanRow> rows = {{.lr = 1, .accuracy = 0.5, .loss = 1},
                                     {.lr = 2, .accuracy = 0.5, .loss = 0.9},
                                     {.lr = 3, .accuracy = 0.4, .loss = 0.1},
                                     {.lr = 4, .accuracy = 0.5, .loss = 1.1}};
  EXPECT_EQ(best_of(rows).lr, 2);
}

// ---- ending early ----

TEST_F(Finetune, PatienceEndsARunThatGetsNoBetter) {
  Recipe r = recipe();
  r.lr = 0, r.epochs = 10, r.patience = 3;
  Trainer trainer(r, tiny_.options("run"));
  const TrainResult result = trainer.run();
  EXPECT_EQ(result.last.epoch, 4) << "the best is the first, then three that are no better";
  EXPECT_EQ(result.best_epoch, 1);
  EXPECT_EQ(result.signal, 0);
  EXPECT_TRUE(trainer.finished());
}

// ---- other ----

TEST_F(Finetune, SubsetsAreTheSameForTheSameSeed) {
  Recipe r = recipe();
  r.subset = 20;
  const TrainData a(r), b(r);
  ASSERT_EQ(a.train().size(), 20);
  ASSERT_EQ(a.test().size(), 20);
  for (int64_t i = 0; i < 20; ++i) EXPECT_EQ(a.train().name(i), b.train().name(i));
  r.seed = 1;
  const TrainData c(r);
  std::vector<std::string> first, second;
  for (int64_t i = 0; i < 20; ++i)
    first.push_back(a.train().name(i)), second.push_back(c.train().name(i));
  EXPECT_NE(first, second);
}

TEST_F(Finetune, FastLeavesSmallThingsAloneAndCutsLargeOnes) {
  Recipe small = recipe();
  small.lr_scan = {0.1};
  const Recipe same = fast_recipe(small);
  EXPECT_EQ(changed_keys(small, same), std::vector<std::string>{"lr_scan"});
  Recipe large = recipe();
  large.image_size = 512, large.epochs = 100, large.warmup_epochs = 10;
  const Recipe cut = fast_recipe(large);
  EXPECT_EQ(cut.epochs, 3);
  EXPECT_LT(cut.warmup_epochs, 1);
  EXPECT_GE(cut.subset, 16);
}

TEST_F(Finetune, RefusesWeightsThatCannotBe) {
  const auto usage = [&](const std::function<void(Recipe&)>& change, ErrorKind kind) {
    Recipe r = recipe();
    change(r);
    return error_of([&] { Trainer trainer(r, tiny_.options("bad")); }, kind);
  };
  EXPECT_THAT(usage([](Recipe& r) { r.weights += "/nowhere"; }, ErrorKind::kInput),
              AllOf(HasSubstr("no such file"), HasSubstr("vitrum download")));
  EXPECT_THAT(usage([](Recipe& r) { r.weights += "/model.safetensors"; }, ErrorKind::kUsage),
              HasSubstr("--model"));
  EXPECT_THAT(usage([](Recipe& r) { r.model = "vit_tiny_cifar"; }, ErrorKind::kInput),
              AllOf(HasSubstr("base/last' are of vit_small28, not of vit_tiny_cifar"),
                    HasSubstr("leave out the model")));
  EXPECT_THAT(usage([](Recipe& r) { r.freeze = {"bloks.*"}; }, ErrorKind::kUsage),
              HasSubstr("did you mean 'blocks.*'?"));
  EXPECT_FALSE(fs::exists(tiny_ / "bad"));
}

}  // namespace
}  // namespace vitrum
