#include "vitrum/infer/engine.h"

#include <gtest/gtest.h>

#include <limits>
#include <thread>

#include "tests/support/data_files.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace vitrum {
namespace {

TEST(CostTable, CutsImagesIntoTheCheapestBatches) {
  // A card: eight cost little more than one, so three are four with padding.
  const CostTable card({{1, 1.0}, {2, 1.1}, {4, 1.2}, {8, 1.4}});
  EXPECT_EQ(card.first_batch(3), 4);
  EXPECT_EQ(card.first_batch(9), 8);
  EXPECT_EQ(card.useful_batch(), 8);
  EXPECT_DOUBLE_EQ(card.seconds(9), 2.4);
  // A CPU: a batch costs as many as it holds, but for a little; padding would be waste.
  const CostTable cpu({{1, 1.0}, {2, 1.95}, {4, 3.8}});
  EXPECT_LT(cpu.first_batch(3), 4);
  EXPECT_EQ(cpu.first_batch(1), 1);
  EXPECT_EQ(cpu.useful_batch(), 1);
  EXPECT_DOUBLE_EQ(cpu.seconds(3), 2.95);
  EXPECT_EQ(cpu.seconds(0), 0);
}

TEST(CostTable, WhatDiffersByLessThanTimingDoesIsTakenInLargerBatches) {
  const CostTable table({{1, 1.0}, {2, 2.01}, {4, 4.05}, {8, 8.5}});
  EXPECT_EQ(table.first_batch(7), 4);
  EXPECT_EQ(table.first_batch(8), 4);  // of eight costs more than that
  EXPECT_EQ(table.first_batch(3), 2);  // and four would be padding
}

class EngineTest : public testing::Test {
 protected:
  EngineTest() {
    test::write_tiny_model(dir_ / "model", test::tiny_rgb_model());
    predictor_ = std::make_shared<Predictor>(dir_ / "model", PredictorOptions{.threads = 2});
    Preprocessor preprocessor(preprocess_of(predictor_->model()));
    for (int i = 0; i < kImages; ++i) {
      pixels_.emplace_back(preprocessor.bytes());
      preprocessor.apply(test::gradient(3, 40 + i, 90 - i), pixels_.back());
      expected_.emplace_back(7);
      predictor_->run(pixels_.back(), expected_.back(), {});
    }
  }

  static constexpr int kImages = 11;
  test::TempDir dir_;
  std::shared_ptr<Predictor> predictor_;
  std::vector<std::vector<uint8_t>> pixels_;
  std::vector<std::vector<float>> expected_;
};

TEST_F(EngineTest, AnswersAreTheSameBitsAtAnyConcurrency) {
  Engine engine({predictor_}, {});
  std::vector<std::thread> callers;
  std::atomic<int> wrong{0}, answered{0};
  for (int c = 0; c < 6; ++c)
    callers.emplace_back([&, c] {
      for (int k = 0; k < 40; ++k) {
        std::vector<std::vector<float>> logits(static_cast<size_t>(1 + (c + k) % 3));
        auto job = std::make_shared<Job>();
        for (size_t i = 0; i < logits.size(); ++i) {
          logits[i].resize(7);
          job->rows.push_back({.pixels = pixels_[(static_cast<size_t>(c + k) + i) % kImages].data(),
                               .logits = logits[i].data()});
        }
        engine.run(job);
        ++answered;
        for (size_t i = 0; i < logits.size(); ++i)
          wrong += logits[i] != expected_[(static_cast<size_t>(c + k) + i) % kImages];
      }
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(answered, 240);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(engine.waiting(), 0);
}

TEST_F(EngineTest, JobsThatNobodyWaitsForAreDropped) {
  Engine engine({predictor_}, {});
  std::vector<float> logits(7, -1.f);
  auto job = std::make_shared<Job>();
  job->rows.push_back({.pixels = pixels_[0].data(), .logits = logits.data()});
  job->wanted = [] { return false; };
  engine.run(job);
  EXPECT_TRUE(job->dropped);
  EXPECT_EQ(logits[0], -1.f);
  EXPECT_EQ(engine.waiting(), 0);
}

TEST_F(EngineTest, TwoModelsTakeTurnsOnOneDevice) {
  const auto device = std::make_shared<SharedDevice>(DeviceOptions{.device = "cpu", .threads = 2});
  const auto make = [&] {
    const PredictorOptions options{.shared_device = device};
    return std::make_shared<Engine>(
        std::vector{std::make_shared<Predictor>(dir_ / "model", options)}, EngineOptions{});
  };
  const auto a = make(), b = make();
  std::atomic<int> wrong{0};
  const auto work = [&](Engine& engine) {
    for (int k = 0; k < 50; ++k) {
      std::vector<float> logits(7);
      auto job = std::make_shared<Job>();
      job->rows.push_back(
          {.pixels = pixels_[static_cast<size_t>(k % kImages)].data(), .logits = logits.data()});
      engine.run(job);
      wrong += logits != expected_[static_cast<size_t>(k % kImages)];
    }
  };
  std::thread other([&] { work(*a); });
  work(*b);
  other.join();
  EXPECT_EQ(wrong, 0);
}

TEST(CostTable, UntimedTakesTheLargestFirstAndPadsNothing) {
  const CostTable table = CostTable::untimed(20);
  std::vector<int64_t> cut;
  for (int64_t left = 33; left > 0; left -= cut.back()) cut.push_back(table.first_batch(left));
  EXPECT_EQ(cut, (std::vector<int64_t>{20, 8, 4, 1}));
  EXPECT_EQ(CostTable::untimed(1).first_batch(5), 1);
}

TEST(CostTable, UntimedMayHaveWhatIsBetweenPowersOfTwo) {
  std::vector<int64_t> sizes;
  const CostTable table = CostTable::untimed(16, true);
  for (const CostTable::Entry& e : table.entries()) sizes.push_back(e.batch);
  EXPECT_EQ(sizes, (std::vector<int64_t>{1, 2, 3, 4, 6, 8, 12, 16}));
  EXPECT_EQ(table.first_batch(7), 6);
  EXPECT_EQ(CostTable::untimed(3, true).entries().size(), 3u);  // 1, 2, 3: the largest once
}

// Whoever waits for the model is woken when it is free, and nobody is left behind: callers that
// lead in turn, with jobs that others run meanwhile.
TEST_F(EngineTest, LeadershipIsHandedOnToWhoWaits) {
  for (const int replicas : {1, 2}) {
    std::vector<std::shared_ptr<Predictor>> models;
    for (int i = 0; i < replicas; ++i)
      models.push_back(std::make_shared<Predictor>(dir_ / "model", PredictorOptions{.threads = 1}));
    Engine engine(std::move(models), {.max_batch = 1});  // so that a leader always leaves others
    std::atomic<int> answered{0};
    std::vector<std::thread> callers;
    for (int c = 0; c < 8; ++c)
      callers.emplace_back([&] {
        for (int k = 0; k < 100; ++k) {
          std::vector<float> logits(7);
          auto job = std::make_shared<Job>();
          job->rows.push_back({.pixels = pixels_[0].data(), .logits = logits.data()});
          engine.run(job);
          answered += logits == expected_[0];
        }
      });
    for (std::thread& caller : callers) caller.join();
    EXPECT_EQ(answered, 800) << replicas;
  }
}

TEST_F(EngineTest, ReplicasAnswerAlike) {
  std::vector<std::shared_ptr<Predictor>> replicas;
  for (int i = 0; i < 3; ++i)
    replicas.push_back(std::make_shared<Predictor>(dir_ / "model", PredictorOptions{.threads = 1}));
  Engine engine(std::move(replicas), {});
  EXPECT_LT(engine.seconds_for(64), engine.costs().seconds(64));
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < 6; ++c)
    callers.emplace_back([&] {
      for (int k = 0; k < 20; ++k) {
        std::vector<std::vector<float>> logits(kImages, std::vector<float>(7));
        auto job = std::make_shared<Job>();
        for (size_t i = 0; i < kImages; ++i)
          job->rows.push_back({.pixels = pixels_[i].data(), .logits = logits[i].data()});
        engine.run(job);
        wrong += logits != expected_;
      }
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(wrong, 0);
}

// The model runs the first job; the others wait, and are taken by their priority.
TEST_F(EngineTest, PriorityGoesFirst) {
  Engine engine({predictor_}, {.max_batch = 1});
  std::vector<int> order;
  std::vector<float> logits(7);
  const auto job = [&](int number, uint64_t priority) {
    auto j = std::make_shared<Job>();
    j->rows.push_back({.pixels = pixels_[0].data(), .logits = logits.data()});
    j->priority = priority;
    j->done = [&order, number](Job&) { order.push_back(number); };
    return j;
  };
  auto first = job(0, 0);
  first->done = [&](Job&) {  // still leading, so these wait in line
    engine.submit(job(1, Job::kLast));
    engine.submit(job(2, 5));
    engine.submit(job(3, 1));
    engine.submit(job(4, 5));
  };
  engine.submit(first);
  EXPECT_EQ(order, (std::vector<int>{3, 2, 4, 1}));
}

TEST_F(EngineTest, ABatchMayWaitToFill) {
  Engine engine({predictor_}, {.max_batch = 4, .max_delay = 600});
  std::vector<int64_t> batches;
  engine.on_batch = [&](int64_t images, double) { batches.push_back(images); };
  std::vector<float> logits(7);
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)  // none of them comes back before the fourth is there
    callers.emplace_back([&, to = std::vector<float>(7)]() mutable {
      auto job = std::make_shared<Job>();
      job->rows.push_back({.pixels = pixels_[0].data(), .logits = to.data()});
      engine.run(job);
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(batches, (std::vector<int64_t>{4}));
}

// Where every core has a caller of its own, images run one by one, each on the thread that leads.
TEST_F(EngineTest, ImagesRunAloneWhereAllCoresHaveCallers) {
  if (predictor_->lanes() == 0) GTEST_SKIP() << "the CPU backend was not built";
  Engine& engine = predictor_->engine();
  std::vector<int64_t> batches;
  engine.on_batch = [&](int64_t images, double) { batches.push_back(images); };
  const auto run_all = [&] {
    batches.clear();
    std::vector<std::vector<float>> logits(kImages, std::vector<float>(7));
    auto job = std::make_shared<Job>();
    for (size_t i = 0; i < kImages; ++i)
      job->rows.push_back({.pixels = pixels_[i].data(), .logits = logits[i].data()});
    engine.run(job);
    EXPECT_EQ(logits, expected_);
  };
  const SharedDevice::Caller one(predictor_->device());
  run_all();
  EXPECT_LT(batches.size(), 5u);  // together, on all threads
  {
    const SharedDevice::Caller another(predictor_->device());
    run_all();
    EXPECT_EQ(batches, std::vector<int64_t>(kImages, 1));
    predictor_->drop_lanes();
    run_all();
    EXPECT_EQ(batches, std::vector<int64_t>(kImages, 1));
  }
  run_all();
  EXPECT_LT(batches.size(), 5u);
}

TEST_F(EngineTest, OneThreadHasNoLanes) {
  const Predictor predictor(dir_ / "model", {.threads = 1});
  EXPECT_EQ(predictor.lanes(), 0u);
}

// Callers come and go, so that lanes and batches take turns, and others use the device beside them:
// a second engine, and programs of their own.
TEST_F(EngineTest, LanesAndBatchesAnswerAlikeUnderLoad) {
  Engine second({predictor_}, {});
  std::atomic<int> wrong{0}, answered{0};
  const auto call = [&](Engine& engine, size_t first, size_t count) {
    std::vector<std::vector<float>> logits(count, std::vector<float>(7));
    auto job = std::make_shared<Job>();
    for (size_t i = 0; i < count; ++i)
      job->rows.push_back(
          {.pixels = pixels_[(first + i) % kImages].data(), .logits = logits[i].data()});
    engine.run(job);
    ++answered;
    for (size_t i = 0; i < count; ++i) wrong += logits[i] != expected_[(first + i) % kImages];
  };
  std::vector<std::thread> callers;
  for (size_t c = 0; c < 8; ++c)
    callers.emplace_back([&, c] {
      for (size_t k = 0; k < 40; ++k) {
        const SharedDevice::Caller caller(predictor_->device());
        if (c == 6) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        call(c == 7 ? second : predictor_->engine(), c + k, 1 + (c + k) % 3);
      }
    });
  for (size_t k = 0; k < 40; ++k) {
    const auto fill = [&](ModelProgram& program, size_t) {
      program.upload_image(0, pixels_[k % kImages].data());
    };
    const auto read = [&](ModelProgram& program, size_t) {
      std::vector<float> logits(7);
      program.read_logits(logits.data());
      wrong += logits != expected_[k % kImages];
    };
    predictor_->run_batches(InputStage::kPixels, 1, fill, read);
  }
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(answered, 320);
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(predictor_->device().callers(), 0);
  EXPECT_EQ(predictor_->engine().waiting(), 0);
}

// Jobs that are handed in, as a server's, by threads that wait for none of them.
TEST_F(EngineTest, JobsHandedInRunInLanesToo) {
  Engine& engine = predictor_->engine();
  constexpr int kCallers = 4, kEach = 60;
  std::vector<std::vector<float>> logits(kCallers * kEach, std::vector<float>(7));
  std::atomic<int> done{0};
  std::vector<std::thread> callers;
  for (int c = 0; c < kCallers; ++c)
    callers.emplace_back([&, c] {
      for (int k = 0; k < kEach; ++k) {
        const SharedDevice::Caller caller(predictor_->device());
        auto job = std::make_shared<Job>();
        job->rows.push_back({.pixels = pixels_[static_cast<size_t>(k % kImages)].data(),
                             .logits = logits[static_cast<size_t>(c * kEach + k)].data()});
        job->done = [&](Job&) { ++done; };
        engine.submit(std::move(job));
      }
    });
  for (std::thread& caller : callers) caller.join();
  EXPECT_EQ(done, kCallers * kEach);  // nobody leaves while what he could run is ready
  for (int i = 0; i < kCallers * kEach; ++i)
    EXPECT_EQ(logits[static_cast<size_t>(i)], expected_[static_cast<size_t>(i % kEach % kImages)]);
}

// Calls from several threads are computed together; see AnswersAreTheSameBitsAtAnyConcurrency for
// the bits.
TEST_F(EngineTest, ThePredictorsOwnCallsGoThroughIt) {
  int64_t images = 0;
  predictor_->engine().on_batch = [&](int64_t n, double) { images += n; };
  std::vector<float> logits(7);
  predictor_->run(pixels_[3], logits, {});
  EXPECT_EQ(logits, expected_[3]);
  EXPECT_EQ(predictor_->classify(test::gradient(3, 43, 87), 7).size(), 7u);
  EXPECT_EQ(images, 2);
}

}  // namespace
}  // namespace vitrum
