#include "vitrum/report/live_report.h"

#include <algorithm>

#include "vitrum/core/files.h"
#include "vitrum/report/html.h"

namespace vitrum {

std::string report_path(const std::string& run) { return run + "/report.html"; }

void LiveReport::update() {
  constexpr int kShare = 20;
  constexpr Clock::duration kBetween = std::chrono::seconds(5);
  const Clock::time_point start = Clock::now();
  if (start < next_) return;
  write(RunState::kRunning);
  const Clock::time_point end = Clock::now();
  next_ = end + std::max(kBetween, kShare * (end - start));
}

void LiveReport::write(RunState state) {
  ReportRun run = read_run(trainer_.directory());
  run.state = state;
  add_test_images(run, trainer_.data().test());
  if (augmented_.empty()) {
    add_training_samples(run, trainer_.recipe(), trainer_.model(), trainer_.data().train());
    augmented_ = run.augmented;
  }
  run.augmented = augmented_;
  run.train_images = trainer_.data().train().size();
  write_file_atomic(report_path(trainer_.directory()), report_html({&run, 1}, {}));
}

}  // namespace vitrum
