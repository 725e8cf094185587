// A step that is shared through a link has the bits of one that is not: also where gradients leave
// in parts while others are computed, as on cards.
#include <gmock/gmock.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "tests/support/tiny_run.h"
#include "vitrum/runtime/link.h"
#include "vitrum/train/step.h"

namespace vitrum {
namespace {

using test::TinyRun;

// Ranks that are threads of this process.
class Mail {
 public:
  void send(int from, int to, std::span<const std::byte> bytes) {
    const std::lock_guard lock(mutex_);
    waiting_[{from, to}].emplace_back(bytes.begin(), bytes.end());
    changed_.notify_all();
  }
  void receive(int from, int to, std::span<std::byte> bytes) {
    std::unique_lock lock(mutex_);
    auto& waiting = waiting_[{from, to}];
    changed_.wait(lock, [&] { return !waiting.empty(); });
    ASSERT_EQ(waiting.front().size(), bytes.size());
    std::copy(waiting.front().begin(), waiting.front().end(), bytes.begin());
    waiting.pop_front();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<int, int>, std::deque<std::vector<std::byte>>> waiting_;
};

class ThreadRank final : public Communicator {
 public:
  ThreadRank(Mail& mail, int rank, int size) : mail_(mail), rank_(rank), size_(size) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_rank() const override { return rank_; }
  int local_size() const override { return size_; }
  void exchange(std::span<const Send> sends, std::span<const Receive> receives) override {
    for (const auto& [to, bytes] : sends)
      if (to != rank_) mail_.send(rank_, to, bytes);
    for (const auto& [from, bytes] : receives)
      if (from != rank_) mail_.receive(from, rank_, bytes);
  }
  std::string name_of(int rank) const override { return std::to_string(rank); }
  void note_step(int64_t) override {}
  void check() override {}
  void abort(ErrorKind, const std::string&) override {}
  void finish() override {}

 private:
  Mail& mail_;
  int rank_, size_;
};

// What is sent leaves at once, as it is then; what is received comes as late as it may.
class EagerLink final : public Link {
 public:
  EagerLink(Communicator& comm, Mail& mail) : Link(comm), mail_(mail) {}
  std::shared_ptr<Kernel> exchange(RankViews views) override {
    return make_kernel([this, views = std::move(views)] {
      ++exchanges;
      for (const auto& [rank, view] : views.sends)
        mail_.send(comm().rank(), rank, {static_cast<std::byte*>(view.data), view.bytes()});
      expected_.insert(expected_.end(), views.receives.begin(), views.receives.end());
    });
  }
  std::shared_ptr<Kernel> arrived() override {
    return make_kernel([this] {
      for (const auto& [rank, view] : std::exchange(expected_, {}))
        mail_.receive(rank, comm().rank(), {static_cast<std::byte*>(view.data), view.bytes()});
    });
  }
  bool overlaps() const override { return true; }
  std::string name() const override { return "threads"; }

  int exchanges = 0;

 private:
  Mail& mail_;
  std::vector<RankView> expected_;
};

struct Result {
  std::vector<float> weights;
  std::vector<double> losses, norms;
  double loss = 0;
  int64_t correct = 0, images = 0;
  bool operator==(const Result&) const = default;
};

constexpr int kSteps = 4;

// Some steps of one rank, whose data end in the middle of the last.
Result train(const Recipe& recipe, Link* link) {
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  const TrainData data(recipe);
  const ModelSpec model = model_for(recipe, data.train());
  TrainStep step(model, recipe, DType::kF32, *backend, InputStage::kPixels, link);
  Loader loader(data.train(), loader_config(recipe, model, data.train(), 1));
  loader.start(0);
  const Stretch own = step.share().leaves();
  Batch batch;
  for (int i = 0; i < kSteps; ++i) {
    const int64_t size = recipe.slice_size(), per_step = recipe.leaves() * size,
                  images = std::min(per_step, TinyRun::kTrain - i * per_step);
    for (int64_t k = 0; k < recipe.leaves(); ++k) {
      const bool some = k * size < images;
      if (some) loader.next(batch);
      if (k < own.first || k >= own.last) continue;
      if (some) step.backward(batch, images, i * recipe.leaves() + k);
      step.fold(k);
    }
    step.sum();
    step.update(1e-3, i);
  }
  step.share_averages();
  Result result;
  for (const auto& [loss, norm] : step.results())
    result.losses.push_back(loss), result.norms.push_back(norm);
  const TrainTotals totals = step.totals();
  result.loss = totals.loss, result.correct = totals.correct, result.images = totals.images;
  const TensorView all = step.store().arena(Arena::kMaster);
  result.weights.assign(all.f32(), all.f32() + all.shape.numel());
  return result;
}

// 75 images in steps of 24.
Recipe recipe_for(const TinyRun& tiny, int64_t slices) {
  Recipe r = tiny.recipe();
  r.slices = slices, r.batch_size = 24, r.clip_norm = 0.5;
  return r;
}

void expect_same_on(const Recipe& recipe, int ranks) {
  SCOPED_TRACE(fmt::format("{} slices, {} ranks", recipe.slices, ranks));
  const Result alone = train(recipe, nullptr);
  EXPECT_EQ(alone.images, TinyRun::kTrain);
  Mail mail;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      ThreadRank comm(mail, rank, ranks);
      EagerLink link(comm, mail);
      const Result shared = train(recipe, &link);
      EXPECT_TRUE(shared.weights == alone.weights) << rank;
      EXPECT_TRUE(shared == alone) << rank;
      const bool in_parts = recipe.leaves() == ranks;
      EXPECT_GE(link.exchanges, kSteps * (in_parts ? 5 : 3)) << rank;
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Links, MakeNoDifference) {
  const TinyRun tiny;
  for (const int ranks : {1, 2, 3, 4}) expect_same_on(recipe_for(tiny, 4), ranks);
  expect_same_on(recipe_for(tiny, 2), 2);
}

TEST(Links, MakeNoDifferenceToRunningAverages) {
  const TinyRun tiny;
  Recipe r = recipe_for(tiny, 4);
  tiny.use_batch_norm(r);
  r.batch_size = 24;
  for (const int ranks : {2, 4}) expect_same_on(r, ranks);
}

// As a measurement does it: what leaves comes back.
TEST(Links, MayLeadBackToTheSameProcess) {
  const TinyRun tiny;
  Recipe r = recipe_for(tiny, 1);
  r.clip_norm = 0;
  const Result plain = train(r, nullptr);
  Alone comm;
  const auto backend = make_backend({.device = "cpu", .threads = 1});
  const std::shared_ptr<Link> link = make_link(*backend, comm);
  EXPECT_FALSE(link->overlaps());
  EXPECT_TRUE(train(r, link.get()).weights == plain.weights);
  Mail mail;
  EagerLink eager(comm, mail);
  EXPECT_TRUE(train(r, &eager).weights == plain.weights);
  EXPECT_GT(eager.exchanges, 3 * kSteps);
}

}  // namespace
}  // namespace vitrum
