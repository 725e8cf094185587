#include "vitrum/train/saver.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "vitrum/core/files.h"
#include "vitrum/train/lora.h"
#include "vitrum/weights/mae_decoder.h"

namespace vitrum {
namespace {

constexpr std::chrono::seconds kBetweenDrawings{5};

std::vector<EpochMetrics> rows_of(const std::vector<ClosedEpoch>& epochs) {
  std::vector<EpochMetrics> rows;
  for (const ClosedEpoch& epoch : epochs) rows.push_back(epoch.row);
  return rows;
}

}  // namespace

Saver::Saver(const std::string& run, const ModelCard& card, Arena which, const TrainPosition& at)
    : run_(run), card_(card), which_(which), log_(run, at) {}

void Saver::epoch(const ClosedEpoch& closed, std::shared_ptr<const Evaluation> evaluation) {
  next_.epochs.push_back(closed);
  if (evaluation) next_.evaluation = std::move(evaluation);
  best_closed_ = best_closed_ || closed.best;
}

void Saver::save(std::shared_ptr<Snapshot> snapshot, const TrainPosition& at, bool last) {
  if (std::exchange(best_closed_, false)) next_.best = snapshot;
  next_.state = std::move(snapshot), next_.at = at, next_.last = last;
  next_.due = was_given_a_state_ = true;
}

std::vector<ClosedEpoch> Saver::poll() {
  std::vector<ClosedEpoch> done;
  if (under_way_.valid() &&
      under_way_.wait_for(Clock::duration::zero()) == std::future_status::ready)
    done = end();
  if (!under_way_.valid() && next_.due) start();
  return done;
}

std::vector<ClosedEpoch> Saver::finish() {
  std::vector<ClosedEpoch> done;
  while (!idle()) {
    if (!under_way_.valid()) start();
    const std::vector<ClosedEpoch> more = end();
    done.insert(done.end(), more.begin(), more.end());
  }
  return done;
}

void Saver::start() {
  under_way_ = std::async(std::launch::async, [this, save = std::exchange(next_, {})] {
    write(save);
    return save.epochs;
  });
}

std::vector<ClosedEpoch> Saver::end() {
  try {
    return under_way_.get();
  } catch (...) {
    next_ = {};
    throw;
  }
}

// The state comes last: everything else is written again, with the same result, if the run dies
// before that.
void Saver::write(const Save& save) {
  log_.append(save.steps, rows_of(save.epochs));
  if (save.evaluation) evaluation_ = save.evaluation;
  draw(save.last);
  if (!save.state) return;
  const auto& rows = log_.rows();
  const auto best = std::ranges::find(rows, save.at.best_epoch, &EpochMetrics::epoch);
  const auto last = std::find_if(rows.rbegin(), rows.rend(),
                                 [](const EpochMetrics& r) { return !std::isnan(r.test_loss); });
  if (save.best) write_model("best", *save.best, best == rows.end() ? nullptr : &*best);
  write_model("last", *save.state, last == rows.rend() ? nullptr : &*last);
  save_checkpoint(run_, *save.state, save.at);
  if (saved && !save.last) saved();
}

void Saver::draw(bool now) {
  if (log_.rows().empty() || (!now && Clock::now() < next_drawing_)) return;
  log_.draw(std::exchange(evaluation_, {}).get(), card_.classes);
  next_drawing_ = Clock::now() + kBetweenDrawings;
}

void Saver::write_model(const std::string& name, Snapshot& snapshot,
                        const EpochMetrics* row) const {
  const std::string dir = run_ + "/" + name;
  if (card_.decoder) save_decoder(dir, *card_.decoder, snapshot.store(), which_);
  if (card_.model.lora.rank > 0)
    save_adapted_model(dir, card_.model, snapshot.store(), which_);
  else
    save_model_dir(dir, card_.model, snapshot.store(), which_);
  write_file_atomic(dir + "/README.md", to_markdown(card_, row));
}

}  // namespace vitrum
