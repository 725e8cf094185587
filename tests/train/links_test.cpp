// A step that is shared through a link has the bits of one that is not: also where gradients leave
// in parts while others are computed, as on cards.
#include <gmock/gmock.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <thread>

#include "tests/support/cuda.h"
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
Result train(const Recipe& recipe, Backend& backend, Link* link, DType compute = DType::kF32) {
  const TrainData data(recipe);
  const ModelSpec model = model_for(recipe, data.train());
  TrainStep step(model, recipe, compute, backend, InputStage::kPixels, link);
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
  result.weights.resize(static_cast<size_t>(all.shape.numel()));
  backend.download(result.weights.data(), all);
  return result;
}

std::unique_ptr<Backend> one_core() { return make_backend({.device = "cpu", .threads = 1}); }

template <class Body>
void on_ranks(int ranks, const Body& body) {
  Mail mail;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      ThreadRank comm(mail, rank, ranks);
      body(comm, mail);
    });
  for (std::thread& thread : threads) thread.join();
}

// 75 images in steps of 24.
Recipe recipe_for(const TinyRun& tiny, int64_t slices) {
  Recipe r = tiny.recipe();
  r.slices = slices, r.batch_size = 24, r.clip_norm = 0.5;
  return r;
}

void expect_same_on(const Recipe& recipe, int ranks) {
  SCOPED_TRACE(fmt::format("{} slices, {} ranks", recipe.slices, ranks));
  const Result alone = train(recipe, *one_core(), nullptr);
  EXPECT_EQ(alone.images, TinyRun::kTrain);
  on_ranks(ranks, [&](Communicator& comm, Mail& mail) {
    EagerLink link(comm, mail);
    const Result shared = train(recipe, *one_core(), &link);
    EXPECT_TRUE(shared.weights == alone.weights) << comm.rank();
    EXPECT_TRUE(shared == alone) << comm.rank();
    const bool in_parts = recipe.leaves() == ranks;
    EXPECT_GE(link.exchanges, kSteps * (in_parts ? 5 : 3)) << comm.rank();
  });
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
  const Result plain = train(r, *one_core(), nullptr);
  Alone comm;
  const auto backend = one_core();
  const std::shared_ptr<Link> link = make_link(*backend, comm);
  EXPECT_FALSE(link->overlaps());
  EXPECT_TRUE(train(r, *backend, link.get()).weights == plain.weights);
  Mail mail;
  EagerLink eager(comm, mail);
  EXPECT_TRUE(train(r, *backend, &eager).weights == plain.weights);
  EXPECT_GT(eager.exchanges, 3 * kSteps);
}

// Processes that share a card, as threads, with the kernels that one has chosen.
TEST(Links, MakeNoDifferenceThroughTheHost) {
  SKIP_WITHOUT_CUDA();
  const TinyRun tiny;
  const Recipe r = recipe_for(tiny, 4);
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const auto card = test::cuda(/*exact=*/false);
    card->share_choices("", /*more=*/true);
    const Result alone = train(r, *card, nullptr, compute);
    for (const int ranks : {2, 3, 4})
      on_ranks(ranks, [&](Communicator& comm, Mail&) {
        const auto own = make_backend({.device = "cuda"});
        own->share_choices(card->choices(), /*more=*/false);
        const std::shared_ptr<Link> link = make_link(*own, comm);
        EXPECT_FALSE(link->overlaps());
        EXPECT_TRUE(train(r, *own, link.get(), compute) == alone) << comm.rank();
      });
  }
}

// Inside the captured step, in parts where there is one slice.
TEST(Links, MakeNoDifferenceByNccl) {
  SKIP_WITHOUT_CUDA();
  const TinyRun tiny;
  const auto card = test::cuda(/*exact=*/false);
  Alone comm;
  setenv("VITRUM_NCCL", "1", /*overwrite=*/1);
  std::shared_ptr<Link> link;
  std::string problem;
  try {
    link = make_link(*card, comm);
  } catch (const Error& error) {
    problem = error.what();
  }
  unsetenv("VITRUM_NCCL");
  if (!link) GTEST_SKIP() << problem;
  EXPECT_TRUE(link->overlaps());
  for (const DType compute : {DType::kF32, DType::kBF16})
    for (const int64_t slices : {1, 4}) {
      Recipe r = recipe_for(tiny, slices);
      r.clip_norm = 0;  // norms are sums of blocks where there is a link
      const Result plain = train(r, *card, nullptr, compute);
      EXPECT_TRUE(train(r, *card, link.get(), compute).weights == plain.weights) << slices;
    }
}

}  // namespace
}  // namespace vitrum
