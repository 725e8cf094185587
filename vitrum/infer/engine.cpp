#include "vitrum/infer/engine.h"

#include <algorithm>
#include <exception>

namespace vitrum {
namespace {

std::vector<Predictor*> pointers(const std::vector<std::shared_ptr<Predictor>>& owned) {
  std::vector<Predictor*> out;
  for (const auto& predictor : owned) out.push_back(predictor.get());
  return out;
}

// Replicas are alike, so one table serves all; but each has programs to compile.
CostTable warm_up(const std::vector<Predictor*>& replicas) {
  for (size_t i = 1; i < replicas.size(); ++i) replicas[i]->warm_up();
  return replicas.front()->warm_up();
}

}  // namespace

Engine::Engine(std::vector<std::shared_ptr<Predictor>> replicas, const EngineOptions& options)
    : owned_(std::move(replicas)),
      replicas_(pointers(owned_)),
      costs_(warm_up(replicas_)),
      most_(options.max_batch > 0 ? std::min(options.max_batch, costs_.entries().back().batch)
                                  : costs_.useful_batch()),
      max_delay_(std::chrono::duration_cast<Job::Clock::duration>(
          std::chrono::duration<double>(options.max_delay))),
      idle_(replicas_) {}

Engine::Engine(Predictor& predictor)
    : replicas_{&predictor},
      costs_(CostTable::untimed(predictor.images_at_once())),
      most_(predictor.images_at_once()),
      idle_(replicas_) {}

void Engine::enqueue(std::shared_ptr<Job> job) {
  const auto before = [](uint64_t priority, const std::shared_ptr<Job>& other) {
    return priority < other->priority;
  };
  const auto rows = static_cast<int64_t>(job->rows.size());
  waiting_ += rows, ready_rows_ += rows;
  const auto place = std::upper_bound(ready_.begin(), ready_.end(), job->priority, before);
  ready_.insert(place, std::move(job));
  if (max_delay_ > Job::Clock::duration::zero()) changed_.notify_all();
}

Predictor* Engine::claim() {
  if (idle_.empty() || ready_.empty()) return nullptr;
  Predictor* model = idle_.back();
  idle_.pop_back();
  return model;
}

void Engine::submit(std::shared_ptr<Job> job) {
  job->queued = Job::Clock::now();
  job->left_ = job->rows.size();
  if (job->rows.empty()) return job->done(*job);
  Predictor* model = nullptr;
  {
    const std::lock_guard lock(mutex_);
    enqueue(std::move(job));
    model = claim();
  }
  if (model) lead(*model, [] { return false; });
}

void Engine::run(const std::shared_ptr<Job>& job) {
  if (job->rows.empty()) return job->done ? job->done(*job) : void();
  bool over = false;
  auto then = std::move(job->done);
  job->done = [&](Job& j) {
    if (then) then(j);
    const std::lock_guard lock(mutex_);
    over = true, --callers_;
    changed_.notify_all();
  };
  job->queued = Job::Clock::now();
  job->left_ = job->rows.size();
  std::unique_lock lock(mutex_);
  enqueue(job);
  ++callers_;
  while (!over) {
    if (Predictor* model = claim()) {
      lock.unlock();
      lead(*model, [&] { return over && callers_ > 0; });
      lock.lock();
    } else {
      changed_.wait(lock);
    }
  }
}

// Jobs nobody waits for any more, of those that would be in the next batch.
std::vector<std::shared_ptr<Job>> Engine::remove_unwanted() {
  std::vector<std::shared_ptr<Job>> dropped;
  int64_t seen = 0;
  for (auto at = ready_.begin(); at != ready_.end() && seen < most_;) {
    const std::shared_ptr<Job>& job = *at;
    const auto rows = static_cast<int64_t>(job->rows.size() - job->next_);
    if (job->next_ > 0 || !job->wanted || job->wanted()) {
      seen += rows, ++at;
      continue;
    }
    waiting_ -= rows, ready_rows_ -= rows;
    dropped.push_back(job);
    at = ready_.erase(at);
  }
  return dropped;
}

// The rows of the next batch. Where there are none, or it is enough, the caller no longer leads.
Engine::Batch Engine::take(Predictor& model, const std::function<bool()>& enough) {
  Batch batch;
  std::vector<std::shared_ptr<Job>> dropped;
  {
    std::unique_lock lock(mutex_);
    if (max_delay_ > Job::Clock::duration::zero() && !ready_.empty())
      changed_.wait_until(lock, ready_.front()->queued + max_delay_,
                          [&] { return ready_rows_ >= most_; });
    dropped = remove_unwanted();
    const bool leave = enough();
    const int64_t most = leave ? 0 : std::min(ready_rows_, most_);
    if (most > 0) batch.size = costs_.first_batch(most);
    const int64_t rows = std::min(most, batch.size);
    for (ready_rows_ -= rows; static_cast<int64_t>(batch.taken.size()) < rows;) {
      const std::shared_ptr<Job>& job = ready_.front();
      batch.taken.push_back({job, job->next_++});
      if (job->next_ == job->rows.size()) ready_.pop_front();
    }
    if (rows == 0) {
      idle_.push_back(&model);
      if (leave) changed_.notify_all();  // somebody who waits goes on
    }
  }
  for (const std::shared_ptr<Job>& job : dropped) {
    job->dropped = true;
    job->started = job->finished = Job::Clock::now();
    job->done(*job);
  }
  return batch;
}

void Engine::lead(Predictor& model, const std::function<bool()>& enough) {
  for (Batch batch; !(batch = take(model, enough)).taken.empty();) run_batch(model, batch);
}

void Engine::run_batch(Predictor& model, Batch& batch) {
  batch.started = Job::Clock::now();
  for (const Taken& t : batch.taken) {
    batch.rows.push_back(t.job->rows[t.row]);
    if (t.row == 0) t.job->started = batch.started;
  }
  try {
    model.run_rows(batch.rows, batch.size);
  } catch (...) {
    batch.error = std::current_exception();
  }
  const auto end = Job::Clock::now();
  const auto images = static_cast<int64_t>(batch.rows.size());
  if (on_batch) on_batch(images, std::chrono::duration<double>(end - batch.started).count());
  waiting_ -= images;
  for (size_t i = 0; i < batch.taken.size(); ++i) {
    Job& job = *batch.taken[i].job;
    job.rows[batch.taken[i].row].finite = batch.rows[i].finite;
    if (batch.error) {
      const std::lock_guard lock(mutex_);  // another replica may have had other rows of it
      job.error = batch.error;
    }
    if (--job.left_ > 0) continue;
    job.finished = end;
    job.done(job);
  }
}

}  // namespace vitrum
