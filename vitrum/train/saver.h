// What a run puts on disk, written by a thread of its own while training goes on. One save is under
// way at a time; what falls due in the meantime becomes one next save, in which a newer state takes
// the place of an older one and no row of the metrics is lost. So training never waits for the
// disk, and a kill costs what was trained since the last complete save began.
#pragma once
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vitrum/train/checkpoint.h"
#include "vitrum/train/model_card.h"
#include "vitrum/train/run_dir.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

struct ClosedEpoch {
  EpochMetrics row;
  bool best = false;
};

class Saver {
 public:
  // `which` holds the weights of best/ and last/.
  Saver(const std::string& run, const ModelCard& card, Arena which, const TrainPosition& at);
  Saver(const Saver&) = delete;
  Saver& operator=(const Saver&) = delete;

  std::function<void()> saved;  // on the thread that writes, after each save but the last one

  // Noted; on disk with the next save. `evaluation` is null where none was due.
  void step(const StepMetrics& step) { next_.steps.push_back(step); }
  void epoch(const ClosedEpoch& closed, std::shared_ptr<const Evaluation> evaluation);
  // State and last/, and best/ where an epoch noted since the last call was the best one. `last`:
  // none will follow.
  void save(std::shared_ptr<Snapshot> snapshot, const TrainPosition& at, bool last);
  // What was noted goes to disk without a state: a run that is resumed makes it again.
  void log() { next_.due = true; }

  // Both return the epochs that have come to disk since the last call, and throw what went wrong
  // while writing; nothing more is written then.
  std::vector<ClosedEpoch> poll();
  std::vector<ClosedEpoch> finish();  // until everything is on disk

  bool idle() const { return !under_way_.valid() && !next_.due; }
  bool was_given_a_state() const { return was_given_a_state_; }
  const std::vector<EpochMetrics>& rows() const { return log_.rows(); }  // of disk; while idle

 private:
  struct Save {
    std::vector<StepMetrics> steps;
    std::vector<ClosedEpoch> epochs;
    std::shared_ptr<const Evaluation> evaluation;  // the last one
    std::shared_ptr<Snapshot> best, state;         // or null
    TrainPosition at;
    bool last = false, due = false;
  };

  void start();
  std::vector<ClosedEpoch> end();
  void write(const Save& save);
  void draw(bool now);
  // `row` is the evaluation that the model card speaks of, or null.
  void write_model(const std::string& name, Snapshot& snapshot, const EpochMetrics* row) const;

  using Clock = std::chrono::steady_clock;

  std::string run_;
  ModelCard card_;
  Arena which_;
  // Of the thread that trains.
  Save next_;
  bool best_closed_ = false, was_given_a_state_ = false;
  // Of the thread that writes, while there is one.
  RunLog log_;
  std::shared_ptr<const Evaluation> evaluation_;  // not drawn yet
  Clock::time_point next_drawing_ = Clock::time_point::min();
  std::future<std::vector<ClosedEpoch>> under_way_;  // last: its destructor waits
};

}  // namespace vitrum
