// Images of many callers through one model, in batches that form by themselves. Whoever hands in
// images while nobody runs the model runs it: what is ready is the next batch, and what arrives
// meanwhile is the one after. There is no timer, so a lone image waits for nothing, and no thread
// of the model's own, so it changes hands as seldom as can be.
#pragma once
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "vitrum/infer/cost_table.h"
#include "vitrum/infer/predictor.h"

namespace vitrum {

// The images of one caller.
struct Job {
  using Clock = std::chrono::steady_clock;

  std::vector<PredictorRow> rows;  // what they point to lives until `done`
  // Asked before the model runs: whether anybody still waits for it. Empty: yes.
  std::function<bool()> wanted = {};
  // Called once, by whoever ran the last row, or dropped the job. Must not throw.
  std::function<void(Job&)> done = {};

  // What became of it.
  bool dropped = false;
  std::string error = {};  // the model could not run at all; a row has its own `finite`
  Clock::time_point queued = {}, started = {}, finished = {};

 private:
  friend class Engine;
  size_t next_ = 0, left_ = 0;  // rows that were given to the model; rows not yet done
};

struct EngineOptions {
  int64_t max_batch = 0;  // images in one run of the model; 0: as many as make it faster
};

class Engine {
 public:
  explicit Engine(std::shared_ptr<Predictor> predictor, const EngineOptions& options = {});

  Predictor& predictor() { return *predictor_; }
  const Predictor& predictor() const { return *predictor_; }
  const CostTable& costs() const { return costs_; }
  int64_t most() const { return most_; }  // images in one run of the model

  // Hands in a job. The calling thread may run the model, for this job and others, until nothing is
  // ready. `done` may be called before this returns.
  void submit(std::shared_ptr<Job> job);
  // The same, and waits for it.
  void run(std::shared_ptr<Job> job);

  int64_t waiting() const { return waiting_.load(std::memory_order_relaxed); }  // images
  double seconds_to_wait() const { return costs_.seconds(waiting()); }  // for one more image

  // Told of every run of the model: images and seconds. Set before the first job.
  std::function<void(int64_t images, double seconds)> on_batch = {};

 private:
  struct Taken {
    std::shared_ptr<Job> job;
    size_t row = 0;
  };
  std::vector<Taken> take();
  void lead();
  void run_batch(std::span<const Taken> batch);

  std::shared_ptr<Predictor> predictor_;
  CostTable costs_;
  int64_t most_;
  std::atomic<int64_t> waiting_{0};
  std::mutex mutex_;  // guards what follows
  std::deque<std::shared_ptr<Job>> ready_;
  bool led_ = false;
};

}  // namespace vitrum
