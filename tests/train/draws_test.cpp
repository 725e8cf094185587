// What is random in a training step, and the average that forgets its start.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/data_files.h"
#include "tests/support/tiny_run.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/train/update.h"

namespace vitrum {
namespace {

using test::TinyRun;

// The average is that of a run whose decay is at most (1 + t) / (10 + t) at step t, in numbers
// worked out here: weights go up by one a step.
TEST(Average, ForgetsItsStartQuickly) {
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  Graph g;
  g.param({.name = "w", .shape = {3}, .init = {}});
  ParamStore store(g, *backend);
  store.write(0, std::vector<float>{5, 5, 5});
  Recipe recipe;
  recipe.optimizer = OptimizerKind::kSgd, recipe.momentum = 0, recipe.lr = 1, recipe.ema = 0.6;
  const WorkShare share(nullptr, recipe, {{.offset = store.offset(0), .size = 3}},
                        store.elements(Arena::kGrad));
  Update update(recipe, share, DType::kF32, store, g, nullptr);
  double average = 5, weight = 5;
  for (int step = 0; step < 30; ++step) {
    store.write(0, std::vector<float>{-1, -1, -1}, Arena::kGrad);
    update.run(recipe.lr, step);
    weight += 1;
    const double decay = std::min(0.6, (1.0 + step) / (10.0 + step));
    average = decay * average + (1 - decay) * weight;
    EXPECT_NEAR(store.read(0)[0], weight, 1e-5);
    EXPECT_NEAR(store.read(0, Arena::kEma)[1], average, 1e-4) << "step " << step;
  }
}

// Images that are all alike: only what is dropped can tell batches apart.
class SameImages : public testing::Test {
 protected:
  // The loss of each step of a run over `images` images, whose weights do not move.
  std::vector<double> losses(int images, int64_t accumulate, int64_t epochs,
                             const std::string& setting) {
    const std::string data = "data" + std::to_string(images);
    for (const char* part : {"train", "t10k"}) {
      test::Bytes pixels = test::idx_images(0, 8, 8);
      pixels[7] = static_cast<uint8_t>(images);
      for (int i = 0; i < images; ++i)
        for (int at = 0; at < 64; ++at) pixels.push_back(static_cast<uint8_t>(3 * at));
      test::write_file(dir_ / (data + "/" + part + "-images-idx3-ubyte"), pixels);
      test::write_file(dir_ / (data + "/" + part + "-labels-idx1-ubyte"),
                       test::idx_labels(images, 1));
    }
    Recipe recipe = tiny_.recipe();
    recipe.data = "mnist:" + (dir_ / data);
    recipe.batch_size = 8, recipe.accumulate = accumulate, recipe.epochs = epochs, recipe.lr = 0;
    set_assignment(recipe, setting);
    std::vector<double> all;
    Trainer trainer(recipe, tiny_.options("run" + std::to_string(runs_++)));
    trainer.run({.step = [&](int64_t, double loss) { all.push_back(loss); }});
    return all;
  }

  TinyRun tiny_;
  test::TempDir dir_;
  int runs_ = 0;
};

// Were the masks the same, two batches would have the mean loss of one.
TEST_F(SameImages, EveryBatchOfAStepDrawsItsOwn) {
  for (const char* setting : {"dropout=0.5", "drop_path=0.5"}) {
    SCOPED_TRACE(setting);
    const std::vector<double> one = losses(8, 1, 1, setting), two = losses(16, 2, 1, setting);
    ASSERT_EQ(one.size(), 1u);
    ASSERT_EQ(two.size(), 1u);
    EXPECT_GT(std::abs(one[0] - two[0]), 1e-5);
    const std::vector<double> plain_one = losses(8, 1, 1, "dropout=0"),
                              plain_two = losses(16, 2, 1, "dropout=0");
    EXPECT_NEAR(plain_one[0], plain_two[0], 1e-6) << "nothing else tells them apart";
  }
}

TEST_F(SameImages, EveryStepAndEpochDrawsAnew) {
  const std::vector<double> all = losses(16, 1, 3, "dropout=0.5");
  ASSERT_EQ(all.size(), 6u);
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t k = i + 1; k < all.size(); ++k)
      EXPECT_GT(std::abs(all[i] - all[k]), 1e-7) << i << " and " << k;
}

}  // namespace
}  // namespace vitrum
