// README.md of the model directories of a run.
#include "vitrum/train/model_card.h"

#include <gmock/gmock.h>

#include "tests/support/tiny_run.h"
#include "vitrum/core/error.h"
#include "vitrum/weights/convert.h"

namespace vitrum {
namespace {

using test::TinyRun;

TEST(ModelCard, SaysWhatItIsOnTheHubsTerms) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.epochs = 8, recipe.lr = 1e-2;
  Trainer trainer(recipe, tiny.options("run"));
  const TrainResult result = trainer.run();
  ASSERT_GT(result.best_epoch, 1);
  const std::string best = test::read_text(tiny / "run/best/README.md"),
                    last = test::read_text(tiny / "run/last/README.md");
  using testing::HasSubstr;
  EXPECT_THAT(best, testing::StartsWith("---\nlibrary_name: timm\n"));
  for (const char* part :
       {"\ntags:\n- image-classification\n", "\ndatasets:\n- \"mnist\"\n", "\nmodel-index:\n",
        "- type: accuracy\n", "75 training and 21 test images", "**Classes** (10)",
        "vitrum classify photo.jpg --model DIR", "timm.create_model(\"local-dir:DIR\"",
        "vitrum train --recipe recipe.toml", "\nbatch_size = 16\n"})
    EXPECT_THAT(best, HasSubstr(part));
  EXPECT_THAT(best, HasSubstr(fmt::format("      value: {}\n---\n", result.best_accuracy)));
  EXPECT_THAT(best, HasSubstr(fmt::format("after epoch {}\n", result.best_epoch)));
  EXPECT_THAT(last, HasSubstr(fmt::format("      value: {}\n---\n", result.last.test_acc)));
  EXPECT_THAT(last, HasSubstr("after epoch 8\n"));
  const auto stated = stated_accuracy(best);
  ASSERT_TRUE(stated);
  EXPECT_EQ(stated->data, "mnist");
  EXPECT_EQ(stated->accuracy, result.best_accuracy);
}

TEST(ModelCard, OtherFilesStateNoAccuracy) {
  const std::string index =
      "---\nmodel-index:\n- name: a\n  results:\n  - dataset:\n      name: b\n";
  EXPECT_EQ(
      stated_accuracy(index + "    metrics:\n    - type: accuracy\n      value: 0.5\n---\n")->data,
      "b");
  for (const std::string& text :
       {std::string(), std::string("---"), std::string("# A model\n"), index, index + "---\n",
        index + "    metrics:\n    - type: f1\n      value: 0.5\n---\n",
        index + "    metrics:\n    - type: accuracy\n      value: high\n---\n",
        index + "    metrics:\n    - type: accuracy\n      value: 81.5\n---\n",
        index + "---\n    metrics:\n    - type: accuracy\n      value: 0.5\n",
        std::string("---\nvalue: 0.5\n---\n")})
    EXPECT_FALSE(stated_accuracy(text)) << text;
}

// What timm cannot build is not promised to it.
TEST(ModelCard, PromisesNoMoreThanIsTrue) {
  const TinyRun tiny;
  Recipe recipe = tiny.recipe();
  recipe.head_bias = false, recipe.max_steps = 1;
  Trainer(recipe, tiny.options("run")).run();
  const std::string card = test::read_text(tiny / "run/last/README.md");
  EXPECT_THAT(card, testing::StartsWith("---\nlibrary_name: vitrum\n"));
  EXPECT_THAT(card, testing::Not(testing::HasSubstr("timm.create_model")));
}

TEST(ModelCard, TransformersHasNoNormsAfterTheBlocks) {
  ModelSpec model{.architecture = "vit_small28"};
  model.config = ViTConfig{.classes = 10};
  EXPECT_NO_THROW(require_hf(model));
  model.config = ViTConfig{.classes = 10, .pre_norm = false};
  EXPECT_THROW(require_hf(model), Error);
}

}  // namespace
}  // namespace vitrum
