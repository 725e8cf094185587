// `vitrum finetune` as a user meets it.
#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>

#include "tests/support/data_files.h"
#include "tests/support/process.h"
#include "tests/support/tiny_run.h"
#include "vitrum/core/files.h"

namespace vitrum {
namespace {

using test::Finished;
using test::read_text;
using test::TinyRun;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

ptrdiff_t lines(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

class FinetuneCli : public testing::Test {
 protected:
  FinetuneCli() {
    Recipe recipe = tiny_.recipe();
    recipe.epochs = 1;
    Trainer(recipe, tiny_.options("base")).run();
  }
  Finished run(const std::string& verb, std::vector<std::string> more) const {
    std::vector<std::string> all = {
        verb,    "--data",     "mnist:" + (tiny_ / ""), "--batch-size", "16", "--threads", "1",
        "--out", tiny_ / "run"};
    all.insert(all.end(), more.begin(), more.end());
    return test::run_vitrum(all, tiny_ / "output");
  }
  Finished finetune(std::vector<std::string> more) const {
    more.insert(more.begin(), {"--weights", tiny_ / "base/last"});
    return run("finetune", std::move(more));
  }

  TinyRun tiny_;
};

TEST_F(FinetuneCli, SaysWhatIsTakenOverAndWhatLearns) {
  const Finished done =
      finetune({"--head-only", "--head-init", "zero", "--epochs", "2", "--lr", "0.01"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.err, AllOf(HasSubstr("(timm): new head of 10 classes"),
                              HasSubstr("learns  170 of "), HasSubstr("computed once and kept")));
  EXPECT_THAT(done.out, HasSubstr("epoch 2/2"));
  EXPECT_THAT(read_text(tiny_ / "run/config.toml"), HasSubstr("head_only = true"));
}

TEST_F(FinetuneCli, ScansThenTrains) {
  const Finished done = finetune({"--lr-scan", "1e-9,0.01", "--set", "lr_scan_epochs=3", "--epochs",
                                  "1", "--json", "--freeze", "pos_embed", "--freeze", "blocks.0",
                                  "--lr-scale", "head=2", "--set", "holdout=0.2"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_EQ(lines(done.out), 1) << "JSON of the run itself, not of the scan: " << done.out;
  EXPECT_THAT(done.err, AllOf(HasSubstr("3 epochs on 60 images each, judged by 15 held out"),
                              HasSubstr("the best is lr 0.01"), HasSubstr("75 training")));
  EXPECT_EQ(lines(read_text(tiny_ / "run/lr_scan.csv")), 3);
  EXPECT_THAT(read_text(tiny_ / "run/config.toml"),
              AllOf(HasSubstr("lr = 0.01\n"), HasSubstr("freeze = [\"pos_embed\", \"blocks.0\"]"),
                    HasSubstr("lr_scale = [\"head=2\"]")));
}

// A folder a class and nothing else is what people have.
TEST_F(FinetuneCli, HoldsBackWhereThereIsNoSplit) {
  for (const std::string name : {"ash", "birch"}) {
    std::filesystem::create_directories(tiny_ / ("photos/" + name));
    for (int i = 0; i < 10; ++i)
      test::write_file(tiny_ / ("photos/" + name + "/" + std::to_string(i) + ".png"),
                       test::encode_png(test::gradient(1, 16, 16)));
  }
  const auto on_photos = [&](std::vector<std::string> more) {
    more.insert(more.begin(),
                {"finetune", "--weights", tiny_ / "base/last", "--data",
                 "folder:" + (tiny_ / "photos"), "--epochs", "1", "--out", tiny_ / "run"});
    return test::run_vitrum(more, tiny_ / "output");
  };
  EXPECT_THAT(on_photos({}).err, HasSubstr("or train with --set holdout=0.2"));
  EXPECT_THAT(on_photos({"--lr-scan", "0.01"}).err, HasSubstr("or train with --set holdout=0.2"));
  EXPECT_FALSE(std::filesystem::exists(tiny_ / "run"));
  const Finished done = on_photos({"--lr-scan", "0.01,0.001", "--set", "holdout=0.25"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("15 training and 5 test images, 2 classes"));
  EXPECT_THAT(done.out, HasSubstr("--split holdout\n"));
}

TEST_F(FinetuneCli, ADirectoryReplacesTheRecipesModel) {
  write_file_atomic(tiny_ / "r.toml", "model = \"vit_base_patch16_224\"\nepochs = 1\n");
  EXPECT_EQ(finetune({"--recipe", tiny_ / "r.toml"}).code, 0);
  std::filesystem::remove_all(tiny_ / "run");
  // A recipe of `train` that names weights is the same thing.
  write_file_atomic(tiny_ / "r.toml", "weights = \"" + (tiny_ / "base/last") + "\"\nepochs = 1\n");
  EXPECT_EQ(run("train", {"--recipe", tiny_ / "r.toml"}).code, 0);
}

TEST_F(FinetuneCli, FastSaysWhatItDoes) {
  const Finished done = finetune({"--fast", "--epochs", "2"});
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.err, HasSubstr("--fast: 2 epochs, batch 16"));
}

TEST_F(FinetuneCli, MistakesAreOneLineAndTheRightCode) {
  const auto expect = [&](const Finished& done, int code, const std::string& text) {
    EXPECT_EQ(done.code, code) << done.err;
    EXPECT_EQ(lines(done.err), 1) << done.err;
    EXPECT_THAT(done.err, HasSubstr(text));
    EXPECT_FALSE(std::filesystem::exists(tiny_ / "run"));
  };
  expect(run("finetune", {}), 2, "no weights: give --weights");
  expect(run("finetune", {"--weights", tiny_ / "nowhere"}), 3, "no such file");
  expect(finetune({"--freeze", "bloks.*"}), 2, "did you mean 'blocks.*'?");
  expect(finetune({"--freeze", "*"}), 2, "nothing is left to train");
  expect(finetune({"--lr-scale", "head"}), 2,
         "--lr-scale: lr_scale = \"head\": expected PATTERN=X");
  expect(finetune({"--lr-scale", "heads=3"}), 2, "did you mean 'head'?");
  expect(finetune({"--lr-scan", "0.1,x"}), 2, "--lr-scan: lr_scan");
  expect(finetune({"--lr-scan", "0.1,0.1"}), 2, "0.1 is there twice");
  expect(finetune({"--lr-scan", "0.1", "--set", "holdout=0.001"}), 2, "leaves one side empty");
  expect(finetune({"--set", "holdout=1.5"}), 2, "holdout = 1.5");
  expect(finetune({"--head-init", "ones"}), 2, "zero, normal");
}

}  // namespace
}  // namespace vitrum
