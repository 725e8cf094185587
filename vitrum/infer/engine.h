// Images of many callers through one model, in batches that form by themselves. Whoever hands in
// images while nobody runs the model runs it: what is ready is the next batch, and what arrives
// meanwhile is the one after. There is no timer, so a lone image waits for nothing, and no thread
// of the model's own, so it changes hands as seldom as can be.
#pragma once
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
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
  static constexpr uint64_t kLast = std::numeric_limits<uint64_t>::max();
  uint64_t priority = kLast;  // lower ones first; of equal ones, who came first
  // Asked before the model runs: whether anybody still waits for it. Empty: yes.
  std::function<bool()> wanted = {};
  // Called once, by whoever ran the last row, or dropped the job. Must not throw.
  std::function<void(Job&)> done = {};

  // What became of it.
  bool dropped = false;
  std::exception_ptr error = {};  // the model could not run at all; a row has its own `finite`
  Clock::time_point queued = {}, started = {}, finished = {};

 private:
  friend class Engine;
  size_t next_ = 0;              // rows that were given to the model
  std::atomic<size_t> left_{0};  // rows that are not done
};

struct EngineOptions {
  int64_t max_batch = 0;  // images in one run of the model; 0: as many as make it faster
  double max_delay = 0;   // seconds that the first image of a batch may wait for others
};

class Engine {
 public:
  // Times every batch size first. Replicas of a model answer alike, each on a device of its own.
  Engine(std::vector<std::shared_ptr<Predictor>> replicas, const EngineOptions& options);
  // For a predictor's own: batches as large as the predictor takes, without timing them.
  explicit Engine(Predictor& predictor);

  Predictor& predictor() { return *replicas_.front().model; }
  const Predictor& predictor() const { return *replicas_.front().model; }
  const CostTable& costs() const { return costs_; }
  int64_t most() const { return most_; }  // images in one run of the model

  // Hands in a job. The calling thread may run the model, for this job and others, until nothing is
  // ready. `done` may be called before this returns.
  void submit(std::shared_ptr<Job> job);
  // The same, and waits for it. The calling thread runs the model no longer than for its own job if
  // somebody else waits for theirs.
  void run(const std::shared_ptr<Job>& job);

  int64_t waiting() const { return waiting_.load(std::memory_order_relaxed); }  // images
  double seconds_for(int64_t images) const {
    return costs_.seconds(images) / static_cast<double>(replicas_.size());
  }

  // Told of every run of the model: images and seconds. Set before the first job.
  std::function<void(int64_t images, double seconds)> on_batch = {};

 private:
  // A caller of run() who waits, for its answer or for its turn to lead.
  struct Waiter {
    std::condition_variable changed = {};
    bool over = false;  // its job is done
  };
  struct Taken {
    std::shared_ptr<Job> job;
    size_t row = 0;
  };
  // A model, or a lane of one, and the rows of several jobs for its next run. They have their
  // memory from the start: a leader that found none would leave its model without one for ever.
  struct Replica {
    Predictor* model = nullptr;
    std::optional<size_t> lane = {};  // none: all threads
    int64_t batch = 0;                // of the program; with fewer rows the rest is padding
    std::vector<Taken> taken = {};
    std::vector<PredictorRow> rows = {};
  };
  void start(std::span<Predictor* const> models, bool lanes);
  void enqueue(std::shared_ptr<Job> job);
  void wake_leader();  // somebody who waits, where there is work and nobody runs it; under the lock
  std::vector<Replica*>& suitable();  // of those that nobody runs; under the lock
  Replica* claim();  // one that nobody runs, where there is work for it; under the lock
  void lead(Replica* replica, const std::function<bool()>& enough);
  Replica* take(Replica& replica, const std::function<bool()>& enough);
  std::shared_ptr<Job> remove_unwanted();  // under the lock
  int64_t alike(int64_t most) const;       // under the lock
  void run_batch(Replica& replica);

  std::vector<std::shared_ptr<Predictor>> owned_;
  CostTable costs_;
  int64_t most_;
  Job::Clock::duration max_delay_{};
  std::vector<Replica> replicas_, lanes_;
  std::atomic<int64_t> waiting_{0};
  std::mutex mutex_;                // guards what follows
  std::condition_variable filled_;  // for who leads and waits for more rows
  std::deque<Waiter*> waiters_;
  std::deque<std::shared_ptr<Job>> ready_;
  int64_t ready_rows_ = 0;
  std::vector<Replica*> idle_, idle_lanes_;
  int callers_ = 0;  // in run(), whose jobs are not done
};

}  // namespace vitrum
