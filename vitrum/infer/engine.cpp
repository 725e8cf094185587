#include "vitrum/infer/engine.h"

#include <algorithm>
#include <condition_variable>
#include <exception>

namespace vitrum {

Engine::Engine(std::shared_ptr<Predictor> predictor, const EngineOptions& options)
    : predictor_(std::move(predictor)),
      costs_(predictor_->warm_up()),
      most_(options.max_batch > 0 ? std::min(options.max_batch, costs_.entries().back().batch)
                                  : costs_.useful_batch()) {}

void Engine::submit(std::shared_ptr<Job> job) {
  job->queued = Job::Clock::now();
  job->left_ = job->rows.size();
  if (job->rows.empty()) return job->done(*job);
  {
    const std::lock_guard lock(mutex_);
    waiting_ += static_cast<int64_t>(job->rows.size());
    ready_.push_back(std::move(job));
    if (led_) return;
    led_ = true;
  }
  lead();
}

void Engine::run(std::shared_ptr<Job> job) {
  std::mutex mutex;
  std::condition_variable ended;
  bool over = false;
  auto then = std::move(job->done);
  job->done = [&](Job& j) {
    if (then) then(j);
    // Notified under the lock: the waiting thread may destroy both as soon as it can see `over`.
    const std::lock_guard lock(mutex);
    over = true;
    ended.notify_one();
  };
  submit(std::move(job));
  std::unique_lock lock(mutex);
  ended.wait(lock, [&] { return over; });
}

// The rows of the next batch; jobs nobody waits for any more are dropped whole on the way.
std::vector<Engine::Taken> Engine::take() {
  std::vector<Taken> batch;
  std::vector<std::shared_ptr<Job>> dropped;
  {
    const std::lock_guard lock(mutex_);
    while (!ready_.empty() && static_cast<int64_t>(batch.size()) < most_) {
      const std::shared_ptr<Job>& job = ready_.front();
      if (job->next_ == 0 && job->wanted && !job->wanted()) {
        waiting_ -= static_cast<int64_t>(job->rows.size());
        dropped.push_back(job);
        ready_.pop_front();
        continue;
      }
      batch.push_back({job, job->next_++});
      if (job->next_ == job->rows.size()) ready_.pop_front();
    }
    if (batch.empty()) led_ = false;
  }
  for (const std::shared_ptr<Job>& job : dropped) {
    job->dropped = true;
    job->started = job->finished = Job::Clock::now();
    job->done(*job);
  }
  return batch;
}

void Engine::lead() {
  for (std::vector<Taken> batch; !(batch = take()).empty();) run_batch(batch);
}

void Engine::run_batch(std::span<const Taken> batch) {
  std::vector<PredictorRow> rows;
  const auto start = Job::Clock::now();
  for (const Taken& t : batch) {
    rows.push_back(t.job->rows[t.row]);
    if (t.row == 0) t.job->started = start;
  }
  std::string error;
  try {
    predictor_->run_rows(rows, costs_);
  } catch (const std::exception& e) {
    error = e.what();
  }
  const auto end = Job::Clock::now();
  if (on_batch)
    on_batch(static_cast<int64_t>(batch.size()),
             std::chrono::duration<double>(end - start).count());
  waiting_ -= static_cast<int64_t>(batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    Job& job = *batch[i].job;
    job.rows[batch[i].row].finite = rows[i].finite;
    if (!error.empty()) job.error = error;
    if (--job.left_ > 0) continue;
    job.finished = end;
    job.done(job);
  }
}

}  // namespace vitrum
