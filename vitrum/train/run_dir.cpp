#include "vitrum/train/run_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/train/draw.h"
#include "vitrum/train/predictions.h"

namespace vitrum {
namespace fs = std::filesystem;
namespace {

struct EpochTag {
  std::string_view tag;
  double EpochMetrics::*member;
};
// Tags whose step is the epoch; the first three are what document-style tooling looks for.
constexpr std::array kEpochTags = {EpochTag{"train loss", &EpochMetrics::train_loss_sum},
                                   EpochTag{"train acc", &EpochMetrics::train_acc},
                                   EpochTag{"test acc", &EpochMetrics::test_acc},
                                   EpochTag{"train loss mean", &EpochMetrics::train_loss},
                                   EpochTag{"test loss", &EpochMetrics::test_loss},
                                   EpochTag{"test acc top5", &EpochMetrics::test_top5},
                                   EpochTag{"images per second", &EpochMetrics::images_per_second}};

bool is_epoch_tag(std::string_view tag) {
  return std::any_of(kEpochTags.begin(), kEpochTags.end(),
                     [&](const EpochTag& t) { return t.tag == tag; });
}

void drop_events_after(const std::string& run, const TrainPosition& at) {
  filter_events(run, [&](std::string_view tag, int64_t step) {
    return step <= (is_epoch_tag(tag) ? at.epochs : at.step);
  });
}

MetricsLog open_metrics(const std::string& run, const TrainPosition& at) {
  for (const char* part : {"", "/state", "/best", "/last"}) remove_stale_temporaries(run + part);
  drop_events_after(run, at);
  return MetricsLog(run, static_cast<int>(at.epochs));
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

}  // namespace

std::string config_path(const std::string& run) { return run + "/config.toml"; }

std::string make_run_dir(const std::string& out, const std::string& name) {
  if (!out.empty()) {
    if (exists(config_path(out)))
      fail_usage("'{}' holds a run already; continue it with --resume {}, or choose another --out",
                 out, out);
    ensure_directory(out);
    return out;
  }
  ensure_directory("runs");
  for (int n = 1;; ++n) {
    const std::string run = fmt::format("runs/{}-{}", name, n);
    std::error_code error;
    if (fs::create_directory(run, error)) return run;
    if (error && error != std::errc::file_exists)
      fail_input("cannot make the directory '{}': {}", run, error.message());
  }
}

Recipe recipe_of_run(const std::string& run) {
  if (!exists(run)) fail_input("'{}': no such run directory", run);
  if (!exists(config_path(run)))
    fail_input("'{}' is not a run directory: it has no config.toml", run);
  Recipe recipe;
  load_recipe(recipe, config_path(run));
  return recipe;
}

bool is_training(const std::string& run) {
  const int fd = open(run.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return false;
  const bool held = flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(fd);
  return held;
}

RunLock::RunLock(const std::string& run)
    : fd_(open(run.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_ < 0) fail_input("cannot open the directory '{}': {}", run, std::strerror(errno));
  if (flock(fd_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return;
  close(fd_);
  fail_input("another process is training in '{}'", run);
}

RunLock::~RunLock() { close(fd_); }

RunLog::RunLog(const std::string& run, const TrainPosition& position)
    : run_(run), metrics_(open_metrics(run, position)), events_(run) {}

void RunLog::append(std::span<const StepMetrics> steps, std::span<const EpochMetrics> rows) {
  for (const StepMetrics& s : steps) {
    events_.scalar("loss/step", s.step, s.loss, s.wall_time);
    events_.scalar("lr", s.step, s.lr, s.wall_time);
    events_.scalar("gradient norm", s.step, s.gradient_norm, s.wall_time);
  }
  for (const EpochMetrics& row : rows)
    for (const EpochTag& t : kEpochTags)
      if (!std::isnan(row.*t.member)) events_.scalar(t.tag, row.epoch, row.*t.member);
  events_.flush();
  metrics_.append(rows);
}

void RunLog::draw(const Evaluation* evaluation, const std::vector<std::string>& classes) const {
  write_file_atomic(run_ + "/curves.svg", to_svg(draw_curves(rows())));
  if (!evaluation) return;
  write_file_atomic(
      run_ + "/confusion.svg",
      to_svg(draw_confusion(evaluation->confusion, evaluation->per_class.size(), classes)));
  save_predictions(run_, evaluation->samples);
}

}  // namespace vitrum
