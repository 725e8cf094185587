#include "vitrum/train/lr_scan.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"

namespace vitrum {
namespace fs = std::filesystem;
namespace {

constexpr double kHoldout = 0.02;  // where the recipe names none
constexpr const char* kHeader = "lr,accuracy,loss\n";

std::string scan_path(const std::string& run) { return run + "/lr_scan.csv"; }
std::string candidate_dir(const std::string& run, double lr) {
  return fmt::format("{}/lr_scan-{}", run, lr);
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

void save_scan(const std::string& run, const std::vector<ScanRow>& rows) {
  std::string text = kHeader;
  for (const ScanRow& row : rows) text += fmt::format("{},{},{}\n", row.lr, row.accuracy, row.loss);
  write_file_atomic(scan_path(run), text);
}

// A run that diverges has lost; anything else that goes wrong is not the learning rate's fault.
ScanRow try_rate(const Recipe& recipe, double lr, RunOptions options, const ScanHooks& hooks,
                 int& signal) {
  const std::string run = options.out;
  options.out = candidate_dir(run, lr), options.resume = exists(config_path(options.out));
  Trainer trainer(scan_recipe(recipe, lr), options);
  if (!exists(config_path(run))) {
    Recipe whole = recipe;
    whole.precision = trainer.recipe().precision;
    write_file_atomic(config_path(run), to_toml(whole));
  }
  if (hooks.start) hooks.start(trainer);
  try {
    const TrainResult result = trainer.run(hooks.train);
    signal = result.signal;
    return {lr, result.last.test_acc, result.last.test_loss};
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kFailed) throw;
    return {lr};
  }
}

// What cannot work fails before there is a directory.
void check_possible(Recipe recipe) {
  check_recipe(recipe);
  recipe.on_bad_image = OnBadImage::kStop;  // the runs look for those
  const TrainData data(recipe), scan(scan_recipe(recipe, recipe.lr_scan[0]));
  model_for(recipe, data.train());
}

}  // namespace

Recipe scan_recipe(Recipe r, double lr) {
  const double share = static_cast<double>(r.lr_scan_epochs) / static_cast<double>(r.epochs);
  r.lr = lr, r.min_lr = std::min(r.min_lr, lr);
  r.epochs = r.lr_scan_epochs, r.lr_scan.clear(), r.patience = 0;
  // The whole schedule in short.
  r.warmup_epochs *= share;
  r.warmup_steps = std::llround(static_cast<double>(r.warmup_steps) * share);
  if (r.holdout == 0) r.holdout = kHoldout;
  return r;
}

std::vector<ScanRow> load_scan(const std::string& run) {
  std::vector<ScanRow> rows;
  if (!exists(scan_path(run))) return rows;
  const std::string text = read_file(scan_path(run));
  const auto wrong = [&] { fail_input("'{}' is not a table of a scan", scan_path(run)); };
  if (!text.starts_with(kHeader)) wrong();
  const char *at = text.data() + std::string_view(kHeader).size(), *end = text.data() + text.size();
  while (at < end) {
    ScanRow& row = rows.emplace_back();
    for (double* x : {&row.lr, &row.accuracy, &row.loss}) {
      const auto [stop, error] = std::from_chars(at, end, *x);
      if (error != std::errc() || stop == end || *stop != (x == &row.loss ? '\n' : ',')) wrong();
      at = stop + 1;
    }
  }
  return rows;
}

const ScanRow& best_of(const std::vector<ScanRow>& rows) {
  const auto best =
      std::max_element(rows.begin(), rows.end(), [](const ScanRow& a, const ScanRow& b) {
        return a.accuracy < b.accuracy || (a.accuracy == b.accuracy && a.loss > b.loss);
      });
  if (best == rows.end() || !std::isfinite(best->loss))
    fail("every run of the scan diverged; try lower rates in lr_scan");
  return *best;
}

int scan_learning_rates(Recipe& recipe, RunOptions& options, const ScanHooks& hooks) {
  check_possible(recipe);
  if (!options.resume) options.out = make_run_dir(options.out, options.name);
  options.resume = true;
  const std::string& run = options.out;
  const RunLock lock(run);
  const InterruptGuard interrupt(options.quiet ? InterruptGuard::Notice::kSilent
                                               : InterruptGuard::Notice::kSaid);
  std::vector<ScanRow> known = load_scan(run), rows;
  for (const double lr : recipe.lr_scan) {
    if (interrupt.signal() != 0) return interrupt.signal();
    const auto done = std::ranges::find(known, lr, &ScanRow::lr);
    if (done == known.end()) {
      int signal = 0;
      rows.push_back(try_rate(recipe, lr, options, hooks, signal));
      if (signal != 0) return signal;
      save_scan(run, rows);
    } else {
      rows.push_back(*done);
    }
    fs::remove_all(candidate_dir(run, lr));
    if (hooks.result) hooks.result(rows.back());
  }
  Recipe stored = recipe_of_run(run);
  stored.lr = recipe.lr = best_of(rows).lr;
  write_file_atomic(config_path(run), to_toml(stored));
  return 0;
}

}  // namespace vitrum
