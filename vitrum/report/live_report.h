// report.html of a run while it trains.
#pragma once
#include <chrono>
#include <string>

#include "vitrum/report/run.h"
#include "vitrum/train/trainer.h"

namespace vitrum {

std::string report_path(const std::string& run);

class LiveReport {
 public:
  explicit LiveReport(const Trainer& trainer) : trainer_(trainer) {}

  // After a save: writes the page, every few seconds and for no more than a twentieth of the time.
  void update();
  // At the end, or when the run was stopped.
  void finish(RunState state) { write(state); }

 private:
  using Clock = std::chrono::steady_clock;
  void write(RunState state);

  const Trainer& trainer_;
  std::vector<ReportTile> augmented_;  // the same in every epoch
  Clock::time_point next_ = Clock::time_point::min();
};

}  // namespace vitrum
