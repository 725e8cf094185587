#include "vitrum/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "vitrum/core/ceil_div.h"
#include "vitrum/core/error.h"
#include "vitrum/core/progress.h"

namespace vitrum {
namespace {

constexpr int64_t kPointsPerEpoch = 100;  // of the step-wise curves in the event files
constexpr int64_t kMeasuredSteps = 3;     // at least, and for so long, before the time is told
constexpr double kMeasuredSeconds = 2;
constexpr double kForwardShare = 1.0 / 3;  // of a training step: backward costs twice as much

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double wall_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

// Where a signal stops it, so does the run. It is a part of the first epoch's time.
void Trainer::fill_features(const InterruptGuard& interrupt, const TrainHooks& hooks) {
  const auto start = Clock::now();
  const int64_t train = data_.train().size(), test = data_.test().size();
  const int64_t batch = eval_batch(recipe_, std::max(train, test));
  const int64_t all = ceil_div(train, batch) + ceil_div(test, batch);
  ModelProgram program(model_, step_.store(), batch, {.compute = compute_for(recipe_)});
  Progress progress("features", all, options_.quiet);
  int64_t before = 0;
  for (FeatureDataset* part : {&features_->train, &features_->test}) {
    const Dataset& images = part == &features_->train ? data_.train() : data_.test();
    const LoaderConfig config = test_config(
        loader_config(recipe_, model_, images, options_.device.threads), recipe_, batch);
    const bool complete = part->fill(*options_.features, config, program, [&](int64_t done) {
      progress.update(before + done);
      const double seconds = seconds_since(start);
      if (done >= kMeasuredSteps && seconds >= kMeasuredSeconds && hooks.estimate && !estimated_) {
        progress.clear(), estimated_ = true;
        hooks.estimate(seconds * static_cast<double>(all) / static_cast<double>(before + done));
      }
      return interrupt.signal() == 0;
    });
    before += ceil_div(images.size(), batch);
    if (!complete) break;
  }
  progress.clear();
  at_.seconds += seconds_since(start);
  laps_.end("features");
}

// Evaluated epochs only: the last one is then among them.
bool Trainer::finished() const {
  const bool patient = recipe_.patience == 0 || at_.best_epoch == 0 ||
                       at_.epochs % recipe_.eval_every != 0 ||
                       at_.epochs - at_.best_epoch < recipe_.patience;
  return at_.epochs >= total_epochs() || !patient;
}

int64_t Trainer::total_epochs() const { return ceil_div(schedule_.total_steps, steps_per_epoch()); }
int64_t Trainer::epoch_end() const {
  return std::min((at_.epochs + 1) * steps_per_epoch(), schedule_.total_steps);
}

TrainResult Trainer::run(const TrainHooks& hooks) {
  const InterruptGuard interrupt(options_.quiet ? InterruptGuard::Notice::kSilent
                                                : InterruptGuard::Notice::kSaid);
  if (saver_) saver_->saved = hooks.saved;
  laps_.end("run directory");
  try {
    if (features_ && !finished()) fill_features(interrupt, hooks);
    agree(interrupt);
    while (!finished() && signal(interrupt) == 0) {
      const bool whole = train_epoch(interrupt, hooks);
      laps_.end("training");
      if (!whole || !close_epoch(interrupt, hooks)) save(at_, /*last=*/true);
    }
    if (saver_) report(saver_->finish(), hooks);
    laps_.end("saving");
  } catch (...) {
    keep_what_is_done(hooks);
    throw;
  }
  const std::vector<EpochMetrics> rows = saver_ ? saver_->rows() : std::vector<EpochMetrics>();
  return {.signal = finished() ? 0 : signal(interrupt),
          .last = rows.empty() ? EpochMetrics{} : rows.back(),
          .best_accuracy = at_.best_accuracy,
          .best_epoch = at_.best_epoch};
}

// Whatever ends the run, epochs that were finished before it are saved. The first error is the one
// to tell.
void Trainer::keep_what_is_done(const TrainHooks& hooks) {
  try {
    if (saver_) report(saver_->finish(), hooks);
  } catch (...) {
  }
}

void Trainer::report(const std::vector<ClosedEpoch>& epochs, const TrainHooks& hooks) {
  if (hooks.epoch)
    for (const ClosedEpoch& closed : epochs) hooks.epoch(closed.row, closed.best);
}

void Trainer::agree(const InterruptGuard& interrupt) {
  if (comm()) agreed_ = std::max(agreed_, largest_of(*comm(), interrupt.signal()));
}

void Trainer::save(const TrainPosition& at, bool last) {
  const std::shared_ptr<Snapshot> snapshot = checked_snapshot();
  if (saver_) saver_->save(snapshot, at, last);
}

bool Trainer::train_epoch(const InterruptGuard& interrupt, const TrainHooks& hooks) {
  const int64_t first = at_.epochs * steps_per_epoch(), end = epoch_end();
  if (at_.step >= end) return true;
  step_.set_patch_drop(patch_drop(at_.epochs));
  Progress progress(fmt::format("epoch {}/{}", at_.epochs + 1, total_epochs()), end - first,
                    options_.quiet, at_.step - first);
  train_loader_.start(at_.epochs, (at_.step - first) * recipe_.leaves());
  // Reading a result makes a device wait for the host; memory we see needs no such care.
  const size_t patience = backend_->host_visible() ? 1 : 32;
  while (at_.step < end) {
    const auto start = Clock::now();
    const bool saves = recipe_.checkpoint_every > 0 && at_.step + 1 < end &&
                       (at_.step + 1) % recipe_.checkpoint_every == 0;
    const bool first_of_run = !began_;
    if (first_of_run) began_ = start;
    if (!train_step(interrupt, progress)) return take_results(hooks), false;
    if (first_of_run) laps_.end("first step");
    if (saves || signal(interrupt) != 0 || at_.step == end || given_.size() >= patience)
      take_results(hooks);
    at_.seconds += seconds_since(start);
    if (saves) save(at_, /*last=*/false);
    if (const auto on_disk = saver_ ? saver_->poll() : std::vector<ClosedEpoch>(); !on_disk.empty())
      progress.clear(), report(on_disk, hooks);
    progress.update(at_.step - first, progress.due() ? fmt::format("loss={:.4f}", last_loss_) : "");
    if (signal(interrupt) != 0) return take_results(hooks), false;
    estimate(hooks, progress);
  }
  progress.clear();
  return true;
}

// The time of the whole run, as soon as it can be told: the first step is slower than the others.
void Trainer::estimate(const TrainHooks& hooks, Progress& progress) {
  if (estimated_ || !hooks.estimate) return;
  const bool first = !measured_from_;
  const double seconds = seconds_since(measured_from_.value_or(*began_));
  if (first)
    measured_from_ = Clock::now();
  else
    ++measured_steps_;
  const bool enough = measured_steps_ >= kMeasuredSteps && seconds >= kMeasuredSeconds;
  if (!enough && at_.step < epoch_end()) return;
  estimated_ = true;
  const double step = seconds / static_cast<double>(std::max<int64_t>(measured_steps_, 1));
  const int64_t evaluations = ceil_div(total_epochs() - at_.epochs, recipe_.eval_every);
  const double images = static_cast<double>(recipe_.accumulate * batch_size()) *
                        (recipe_.sam > 0 ? 2 : 1) / kForwardShare;
  const double evaluation = step * static_cast<double>(data_.test().size()) / images;
  progress.clear();
  hooks.estimate(seconds_since(*began_) + step * static_cast<double>(total_steps() - at_.step) +
                 evaluation * static_cast<double>(evaluations));
}

bool Trainer::train_step(const InterruptGuard& interrupt, Progress& progress) {
  const int64_t per_step = recipe_.leaves() * slice_size();
  const int64_t seen = (at_.step - at_.epochs * steps_per_epoch()) * per_step;
  const int64_t images = std::min(per_step, data_.train().size() - seen);
  const double lr = lr_at(schedule_, at_.step);
  batches_.resize(recipe_.sam > 0 ? static_cast<size_t>(recipe_.leaves()) : 1);
  if (recipe_.leaves() == 1 && recipe_.sam == 0) {
    train_loader_.next(batches_[0]);
    step_.run(batches_[0], lr, at_.step);
  } else {
    if (!add_gradients(images, interrupt, progress)) return step_.abandon(), false;
    step_.update(lr, at_.step);
  }
  if (comm()) comm()->note_step(at_.step + 1);
  given_.push_back({++at_.step, images, lr});
  return true;
}

// An unfinished step is given up where a signal comes: the run that is resumed begins it anew, with
// the same batches and draws. Several processes finish it, since all stop after the same step.
bool Trainer::add_gradients(int64_t images, const InterruptGuard& interrupt, Progress& progress) {
  const int64_t first = at_.epochs * steps_per_epoch();
  const bool twice = recipe_.sam > 0;  // then the batches are kept
  const auto batch = [&](int64_t k) -> Batch& {
    return batches_[static_cast<size_t>(twice ? k : 0)];
  };
  const int64_t count = ceil_div(images, slice_size());  // leaves with images
  const auto backward = [&](int64_t k) {
    if (!comm() && interrupt.signal() != 0) return false;
    if (k < count) step_.backward(batch(k), images, at_.step * recipe_.leaves() + k);
    step_.fold(k);
    progress.update(at_.step - first);
    return true;
  };
  if (!comm()) step_.begin();
  const Stretch own = step_.share().leaves();
  for (int64_t k = own.first; k < own.last; ++k) {
    if (k < count) train_loader_.next(batch(k));
    if (!backward(k)) return false;
  }
  agreed_ = step_.sum(interrupt.signal());
  if (!twice) return true;
  step_.perturb();
  for (int64_t k = own.first; k < own.last; ++k)
    if (!backward(k)) return false;
  agreed_ = std::max(agreed_, step_.sum(interrupt.signal()));
  return true;
}

void Trainer::take_results(const TrainHooks& hooks) {
  const int64_t every = std::max<int64_t>(1, steps_per_epoch() / kPointsPerEpoch);
  const std::vector<StepResult> results = step_.results();
  for (size_t i = 0; i < results.size(); ++i) {
    const auto [step, images, lr] = given_[i];
    const auto [loss, norm] = results[i];
    check_finite("loss", loss, step);
    check_finite("gradient norm", norm, step);
    at_.loss_images += loss * static_cast<double>(images);
    last_loss_ = loss;
    if (step % every == 0 && saver_) saver_->step({step, loss, lr, norm, wall_time()});
    if (hooks.step) hooks.step(step, loss);
  }
  given_.clear();
}

void Trainer::check_finite(const char* what, double x, int64_t step) const {
  if (std::isfinite(x)) return;
  const std::string kept = saver_ && (saver_->was_given_a_state() || has_checkpoint(run_))
                               ? fmt::format("; '{}' keeps the last good state", run_)
                               : "";
  fail("the {} is {} at step {} (epoch {}){}; try a lower lr, a warm-up or clip_norm = 1", what,
       std::isnan(x) ? "NaN" : "infinite", step, at_.epochs + 1, kept);
}

bool Trainer::close_epoch(const InterruptGuard& interrupt, const TrainHooks& hooks) {
  const bool last = at_.epochs + 1 == total_epochs();
  const bool due = last || (at_.epochs + 1) % recipe_.eval_every == 0;
  std::shared_ptr<const Evaluation> evaluation;
  if (due && has_test()) {
    evaluation = evaluate(interrupt);
    if (signal(interrupt) != 0) return false;
    if (writes()) check_finite("test loss", evaluation->loss, at_.step);
  }
  laps_.end("evaluation");
  ClosedEpoch closed{.row = metrics(evaluation.get())};
  if (writes() && due) {
    const double reached = score(evaluation.get(), closed.row);
    closed.best = at_.best_epoch == 0 || reached > at_.best_accuracy;
    if (closed.best) at_.best_accuracy = reached, at_.best_epoch = closed.row.epoch;
  }
  ++at_.epochs;
  at_.loss_images = at_.seconds = 0;
  if (comm()) broadcast(*comm(), std::as_writable_bytes(std::span(&at_, 1)));
  step_.clear_totals();
  if (pretrains()) evaluation.reset();  // it has nothing to draw
  if (saver_) saver_->epoch(closed, std::move(evaluation));
  // Asked of what all processes know.
  const bool best = at_.best_epoch == at_.epochs;
  if (finished() || best || at_.epochs % recipe_.save_every == 0)
    save(at_, finished());
  else if (saver_)
    saver_->log();
  if (saver_) report(saver_->poll(), hooks);
  laps_.end("saving");
  return true;
}

double Trainer::score(const Evaluation* evaluation, const EpochMetrics& row) const {
  if (pretrains()) return -(evaluation ? evaluation->loss : row.train_loss);
  return evaluation->top1;
}

std::shared_ptr<const Evaluation> Trainer::evaluate(const InterruptGuard& interrupt) {
  Progress progress("evaluate", test_loader_.batches(), options_.quiet);
  const auto keep_going = [&](int64_t done) {
    progress.update(done);
    agree(interrupt);
    return signal(interrupt) == 0;
  };
  step_.share_averages();
  const auto classes = static_cast<int64_t>(data_.test().classes().size());
  auto evaluation = std::make_shared<const Evaluation>(
      masked_ ? masked_->run(test_loader_, keep_going, comm())
              : evaluator_->run(test_loader_, classes, keep_going, comm()));
  progress.clear();
  return evaluation;
}

EpochMetrics Trainer::metrics(const Evaluation* evaluation) {
  const TrainTotals totals = step_.totals();
  const auto images = static_cast<double>(totals.images);
  EpochMetrics row{.epoch = static_cast<int>(at_.epochs + 1),
                   .step = at_.step,
                   .train_loss = at_.loss_images / images,
                   .train_loss_sum = totals.loss,
                   .train_acc = static_cast<double>(totals.correct) / images,
                   .lr = lr_at(schedule_, at_.step - 1),
                   .images_per_second = images / at_.seconds,
                   .seconds = at_.seconds};
  if (evaluation) row.test_loss = evaluation->loss;
  if (pretrains())
    row.train_acc = EpochMetrics::kNone;
  else if (evaluation)
    row.test_acc = evaluation->top1, row.test_top5 = evaluation->top5;
  return row;
}

std::shared_ptr<Snapshot> Trainer::checked_snapshot() {
  if (!writes()) return contribute(step_.store(), step_.share()), nullptr;
  auto free = std::find_if(snapshots_.begin(), snapshots_.end(),
                           [](const auto& s) { return s.use_count() == 1; });
  if (free == snapshots_.end())
    free = snapshots_.insert(free, std::make_shared<Snapshot>(step_.store(), step_.share()));
  else
    (*free)->take(step_.store(), step_.share());
  const std::shared_ptr<Snapshot> snapshot = *free;
  if (!snapshot->finite())
    check_finite("largest weight", std::numeric_limits<double>::infinity(), at_.step);
  return snapshot;
}

}  // namespace vitrum
