// A batch in slices: the same gradient but for rounding, and bits that depend on nothing but the
// number of slices.
#include <gmock/gmock.h>
#include <signal.h>

#include <cmath>

#include "tests/support/expect_error.h"
#include "tests/support/tiny_run.h"
#include "vitrum/train/work_share.h"

namespace vitrum {
namespace {

using test::outcome;
using test::TinyRun;

// What a process adds up, as text: the tree itself.
std::string text_of(Stretch leaves, const TreeNode& node) {
  if (node.level == 0) return std::to_string(node.index);
  const TreeNode left{node.level - 1, 2 * node.index}, right{node.level - 1, 2 * node.index + 1};
  if (right.index << right.level >= leaves.last) return text_of(leaves, left);
  return "(" + text_of(leaves, left) + "+" + text_of(leaves, right) + ")";
}

// The sum over all processes: each brings its nodes, and they are merged as GradientTree does.
std::string sum_of(int ranks, int64_t leaves) {
  TreeStack stack;
  std::vector<std::string> waiting;
  for (int r = 0; r < ranks; ++r)
    for (const TreeNode& node : nodes_of(leaves_of(r, ranks, leaves))) {
      std::string sum = text_of({0, leaves}, node);
      for (size_t merged = stack.push(node); merged > 0; --merged) {
        sum = "(" + waiting.back() + "+" + sum + ")";
        waiting.pop_back();
      }
      waiting.push_back(sum);
    }
  while (waiting.size() > 1) {
    const std::string right = waiting.back();
    waiting.pop_back();
    waiting.back() = "(" + waiting.back() + "+" + right + ")";
  }
  return waiting[0];
}

TEST(LeafTree, IsTheSameForAnyNumberOfProcesses) {
  EXPECT_EQ(sum_of(1, 4), "((0+1)+(2+3))");
  EXPECT_EQ(sum_of(1, 6), "(((0+1)+(2+3))+(4+5))");
  for (int64_t leaves = 1; leaves <= 40; ++leaves)
    for (int ranks = 2; ranks <= leaves; ++ranks)
      EXPECT_EQ(sum_of(ranks, leaves), sum_of(1, leaves)) << ranks << " of " << leaves;
}

class FakeRanks final : public Communicator {
 public:
  FakeRanks(int rank, int size) : rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return rank_; }
  int local_size() const override { return size_; }
  void exchange(std::span<const Send>, std::span<const Receive>) override {}
  std::string name_of(int) const override { return ""; }
  void note_step(int64_t) override {}
  void check() override {}
  void abort(ErrorKind, const std::string&) override {}
  void finish() override {}

 private:
  int rank_, size_;
};

// Every element has one owner, who has whole blocks of it, or whole tensors.
TEST(WorkShare, CoversAllElementsOnce) {
  const std::vector<Segment> segments = {
      {0, 40000, 1, 0}, {40000, 3, 1, 0}, {40016, 100000, 1, 0}, {140016, 16384, 1, 0}};
  for (const OptimizerKind kind : {OptimizerKind::kAdamW, OptimizerKind::kLamb})
    for (int ranks = 1; ranks <= 9; ++ranks) {
      Recipe recipe;
      recipe.optimizer = kind, recipe.slices = 16;
      int64_t elements = 0, blocks = 0, owned = 0;
      for (int r = 0; r < ranks; ++r) {
        FakeRanks comm(r, ranks);
        const WorkShare share(&comm, recipe, segments, 156400);
        EXPECT_EQ(share.elements().first, elements);
        EXPECT_EQ(share.blocks().first, blocks);
        elements = share.elements().last, blocks = share.blocks().last;
        for (const Segment& own : share.segments()) {
          owned += own.size;
          if (kind == OptimizerKind::kLamb) {
            EXPECT_TRUE(own.size == 40000 || own.size == 3 || own.size == 100000 ||
                        own.size == 16384);
          }
        }
      }
      EXPECT_EQ(elements, 156400);
      EXPECT_EQ(blocks, 3 + 1 + 7 + 1);
      EXPECT_EQ(owned, 40000 + 3 + 100000 + 16384);
    }
}

std::vector<float> gradients_of(const TinyRun& tiny, int64_t slices, int threads) {
  Recipe r = tiny.recipe();
  r.slices = slices, r.dropout = 0;
  const auto backend = make_backend({.device = "cpu", .threads = threads});
  const TrainData data(r);
  const ModelSpec model = model_for(r, data.train());
  TrainStep step(model, r, DType::kF32, *backend);
  Loader loader(data.train(), loader_config(r, model, data.train(), 1));
  loader.start(0);
  Batch batch;
  for (int64_t k = 0; k < slices; ++k) {
    EXPECT_TRUE(loader.next(batch));
    step.backward(batch, r.batch_size, k), step.fold(k);
  }
  const TensorView all = step.store().arena(Arena::kGrad);
  return {all.f32(), all.f32() + all.shape.numel()};
}

TEST(Slices, HaveTheGradientOfTheBatch) {
  const TinyRun tiny;
  const std::vector<float> whole = gradients_of(tiny, 1, 1);
  double size = 0;
  for (const float x : whole) size += static_cast<double>(x) * static_cast<double>(x);
  EXPECT_GT(size, 1e-4);
  for (const int64_t slices : {2, 4, 16}) {
    const std::vector<float> sliced = gradients_of(tiny, slices, 1);
    double error = 0;
    for (size_t i = 0; i < whole.size(); ++i)
      error += std::pow(static_cast<double>(whole[i]) - static_cast<double>(sliced[i]), 2);
    EXPECT_LT(std::sqrt(error / size), 1e-6) << slices;
    EXPECT_TRUE(gradients_of(tiny, slices, 3) == sliced);
  }
}

Recipe sliced_recipe(const TinyRun& tiny) {
  Recipe r = tiny.recipe();
  r.slices = 8, r.accumulate = 2, r.epochs = 2, r.ema = 0.9, r.clip_norm = 0.5;
  r.mixup = 0.8, r.repeat = 2, r.augment = "crop-flip", r.checkpoint_every = 1;
  return r;
}

// 75 images are four batches of 16 and most of a fifth: the last step has leaves without any.
TEST(Slices, DoNotDependOnThreadsOrInterruptions) {
  const TinyRun tiny;
  Trainer whole(sliced_recipe(tiny), tiny.options("whole"));
  whole.run();
  EXPECT_EQ(whole.total_steps(), 6);
  const auto expected = outcome(tiny / "whole");
  Trainer(sliced_recipe(tiny), tiny.options("threads", 3)).run();
  EXPECT_TRUE(outcome(tiny / "threads") == expected);
  const auto stop = [](int64_t step, double) {
    if (step == 2) raise(SIGUSR1);
  };
  EXPECT_EQ(Trainer(sliced_recipe(tiny), tiny.options("cut")).run({.step = stop}).signal, SIGINT);
  RunOptions again = tiny.options("cut");
  again.resume = true;
  Trainer(recipe_of_run(tiny / "cut"), again).run();
  EXPECT_TRUE(outcome(tiny / "cut") == expected);
}

TEST(Slices, AreAPowerOfTwoThatDividesTheBatch) {
  const TinyRun tiny;
  Recipe r = tiny.recipe();
  r.slices = 3;
  EXPECT_ERROR(check_recipe(r), ErrorKind::kUsage, "power of two");
  r.slices = 32;
  EXPECT_ERROR(check_recipe(r), ErrorKind::kUsage, "batch_size 16");
}

}  // namespace
}  // namespace vitrum
