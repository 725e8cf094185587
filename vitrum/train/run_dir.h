// The directory of a run: making and locking it, and what is written to it while training.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "vitrum/infer/evaluator.h"
#include "vitrum/train/checkpoint.h"
#include "vitrum/train/event_file.h"
#include "vitrum/train/metrics_log.h"
#include "vitrum/train/recipe.h"

namespace vitrum {

// `out`, or where it is empty the first free runs/<name>-N; made, and refused where it holds a run
// already.
std::string make_run_dir(const std::string& out, const std::string& name);

std::string config_path(const std::string& run);
Recipe recipe_of_run(const std::string& run);  // fails where `run` is not a run directory

// Whether a process holds the run's lock.
bool is_training(const std::string& run);

// Keeps a second process out of a run while one works on it. The system drops the lock with the
// process.
class RunLock {
 public:
  explicit RunLock(const std::string& run);
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

 private:
  int fd_;
};

// Of one optimiser step, for the event files.
struct StepMetrics {
  int64_t step = 0;
  double loss = 0, lr = 0, gradient_norm = 0;
  double wall_time = 0;  // seconds since 1970
};

// Metrics, event files and pictures. A run that resumes at `position` first drops whatever was
// written after it.
class RunLog {
 public:
  RunLog(const std::string& run, const TrainPosition& position);

  void append(std::span<const StepMetrics> steps, std::span<const EpochMetrics> rows);
  // The pictures, and of the last evaluation the predictions, where there was one.
  void draw(const Evaluation* evaluation, const std::vector<std::string>& classes) const;
  const std::vector<EpochMetrics>& rows() const { return metrics_.rows(); }

 private:
  std::string run_;
  MetricsLog metrics_;
  EventWriter events_;
};

}  // namespace vitrum
