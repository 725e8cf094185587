#include "vitrum/infer/engine.h"

#include <algorithm>
#include <exception>

namespace vitrum {
namespace {

// Replicas are alike, so one table serves all; but each has programs to compile.
CostTable warm_up(const std::vector<std::shared_ptr<Predictor>>& replicas) {
  for (size_t i = 1; i < replicas.size(); ++i) replicas[i]->warm_up();
  return replicas.front()->warm_up();
}

// Whether an image on each thread is about as fast as batches on all of them while nobody decodes;
// under load batches lose more than that. Who wants batches to fill wants no lanes.
bool lanes_pay(Predictor& model, const CostTable& costs, int64_t batch,
               const EngineOptions& options) {
  constexpr double kAboutAsFast = 0.9;
  const double rate = static_cast<double>(batch) / costs.seconds(batch);
  const bool pay =
      options.max_delay == 0 && model.lanes() > 0 && model.warm_up_lanes() >= kAboutAsFast * rate;
  if (!pay) model.drop_lanes();
  return pay;
}

}  // namespace

Engine::Engine(std::vector<std::shared_ptr<Predictor>> replicas, const EngineOptions& options)
    : owned_(std::move(replicas)),
      costs_(warm_up(owned_)),
      most_(options.max_batch > 0 ? std::min(options.max_batch, costs_.entries().back().batch)
                                  : costs_.useful_batch()),
      max_delay_(std::chrono::duration_cast<Job::Clock::duration>(
          std::chrono::duration<double>(options.max_delay))) {
  std::vector<Predictor*> models;
  for (const auto& predictor : owned_) models.push_back(predictor.get());
  start(models, owned_.size() == 1 && lanes_pay(*owned_.front(), costs_, most_, options));
}

// A program costs a card the recording of its kernels, and a processor next to nothing: there more
// sizes are worth having, since callers on several threads make batches of any.
Engine::Engine(Predictor& predictor)
    : costs_(CostTable::untimed(predictor.images_at_once(), predictor.backend().host_visible())),
      most_(predictor.images_at_once()) {
  start({{&predictor}}, true);
}

void Engine::start(std::span<Predictor* const> models, bool lanes) {
  const auto most = static_cast<size_t>(most_);
  for (Predictor* model : models) {
    Replica& replica = replicas_.emplace_back(Replica{.model = model});
    replica.taken.reserve(most), replica.rows.reserve(most);
  }
  for (size_t i = 0; lanes && i < models.front()->lanes(); ++i) {
    Replica& lane = lanes_.emplace_back(Replica{.model = models.front(), .lane = i});
    lane.taken.reserve(1), lane.rows.reserve(1);
  }
  for (Replica& replica : replicas_) idle_.push_back(&replica);
  for (Replica& lane : lanes_) idle_lanes_.push_back(&lane);
}

void Engine::enqueue(std::shared_ptr<Job> job) {
  const auto before = [](uint64_t priority, const std::shared_ptr<Job>& other) {
    return priority < other->priority;
  };
  const auto rows = static_cast<int64_t>(job->rows.size());
  const auto place = std::upper_bound(ready_.begin(), ready_.end(), job->priority, before);
  ready_.insert(place, std::move(job));
  waiting_ += rows, ready_rows_ += rows;
  if (max_delay_ > Job::Clock::duration::zero()) filled_.notify_all();
}

// All threads for a batch, or, where each core has a caller's images to decode or to compute, a
// lane: then no thread waits for one that others keep from its part. A batch that has begun ends
// first.
std::vector<Engine::Replica*>& Engine::suitable() {
  const auto callers = static_cast<size_t>(predictor().device().callers());
  const bool all_have_work = !lanes_.empty() && callers >= lanes_.size();
  return all_have_work && idle_.size() == replicas_.size() ? idle_lanes_ : idle_;
}

Engine::Replica* Engine::claim() {
  std::vector<Replica*>& idle = suitable();
  if (idle.empty() || ready_.empty()) return nullptr;
  Replica* replica = idle.back();
  idle.pop_back();
  return replica;
}

void Engine::submit(std::shared_ptr<Job> job) {
  job->queued = Job::Clock::now();
  job->left_ = job->rows.size();
  if (job->rows.empty()) return job->done(*job);
  Replica* replica = nullptr;
  {
    const std::lock_guard lock(mutex_);
    enqueue(std::move(job));
    replica = claim();
  }
  if (replica) lead(replica, [] { return false; });
}

void Engine::run(const std::shared_ptr<Job>& job) {
  if (job->rows.empty()) return job->done ? job->done(*job) : void();
  Waiter self;
  auto then = std::move(job->done);
  job->done = [&](Job& j) {
    if (then) then(j);
    const std::lock_guard lock(mutex_);
    self.over = true, --callers_;
    self.changed.notify_one();
  };
  job->queued = Job::Clock::now();
  job->left_ = job->rows.size();
  std::unique_lock lock(mutex_);
  enqueue(job);
  ++callers_;
  while (!self.over) {
    if (Replica* replica = claim()) {
      lock.unlock();
      lead(replica, [&] { return self.over && callers_ > 0; });
      lock.lock();
    } else {
      waiters_.push_back(&self);
      self.changed.wait(lock);
      std::erase(waiters_, &self);
    }
  }
  wake_leader();  // in place of this one, if it was woken to lead when its job was done
}

void Engine::wake_leader() {
  if (suitable().empty() || ready_.empty() || waiters_.empty()) return;
  waiters_.front()->changed.notify_one();
  waiters_.pop_front();
}

// A job nobody waits for any more, of those that would be in the next batch; none if all are
// wanted.
std::shared_ptr<Job> Engine::remove_unwanted() {
  int64_t seen = 0;
  for (auto at = ready_.begin(); at != ready_.end() && seen < most_; ++at) {
    std::shared_ptr<Job> job = *at;
    const auto rows = static_cast<int64_t>(job->rows.size() - job->next_);
    seen += rows;
    if (job->next_ > 0 || !job->wanted || job->wanted()) continue;
    waiting_ -= rows, ready_rows_ -= rows;
    ready_.erase(at);
    return job;
  }
  return nullptr;
}

// Of the rows that are ready, those at the front that one program can take: all of one size.
int64_t Engine::alike(int64_t most) const {
  if (most == 0) return 0;
  const Job& first = *ready_.front();
  const InputSize size = first.rows[first.next_].size;
  int64_t count = 0;
  for (const std::shared_ptr<Job>& job : ready_)
    for (size_t i = job->next_; i < job->rows.size(); ++i)
      if (count == most || job->rows[i].size != size)
        return count;
      else
        ++count;
  return count;
}

// Whoever ran `last` takes the rows of the next batch, to run there or elsewhere. Where there are
// none, or it is enough, the caller no longer leads.
Engine::Replica* Engine::take(Replica& last, const std::function<bool()>& enough) {
  std::unique_lock lock(mutex_);
  if (max_delay_ > Job::Clock::duration::zero() && !ready_.empty())
    filled_.wait_until(lock, ready_.front()->queued + max_delay_,
                       [&] { return ready_rows_ >= most_; });
  while (const std::shared_ptr<Job> job = remove_unwanted()) {
    lock.unlock();
    job->dropped = true;
    job->started = job->finished = Job::Clock::now();
    job->done(*job);
    lock.lock();
  }
  (last.lane ? idle_lanes_ : idle_).push_back(&last);
  Replica* const next = enough() ? nullptr : claim();
  if (next) {
    const int64_t most = next->lane ? 1 : alike(std::min(ready_rows_, most_));
    next->batch = next->lane ? 1 : costs_.first_batch(most);
    const auto rows = static_cast<size_t>(std::min(most, next->batch));
    ready_rows_ -= static_cast<int64_t>(rows);
    while (next->taken.size() < rows) {
      const std::shared_ptr<Job>& job = ready_.front();
      next->taken.push_back({job, job->next_++});
      if (job->next_ == job->rows.size()) ready_.pop_front();
    }
  }
  wake_leader();
  return next;
}

void Engine::lead(Replica* replica, const std::function<bool()>& enough) {
  while ((replica = take(*replica, enough))) run_batch(*replica);
}

void Engine::run_batch(Replica& replica) {
  auto& [model, lane, batch, taken, rows] = replica;
  const auto start = Job::Clock::now();
  for (const Taken& t : taken) {
    rows.push_back(t.job->rows[t.row]);
    if (t.row == 0) t.job->started = start;
  }
  std::exception_ptr error;
  try {
    lane ? model->run_alone(rows.front(), *lane) : model->run_rows(rows, batch);
  } catch (...) {
    error = std::current_exception();
  }
  const auto end = Job::Clock::now();
  const auto images = static_cast<int64_t>(rows.size());
  if (on_batch) on_batch(images, std::chrono::duration<double>(end - start).count());
  waiting_ -= images;
  for (size_t i = 0; i < taken.size(); ++i) {
    Job& job = *taken[i].job;
    job.rows[taken[i].row].finite = rows[i].finite;
    if (error) {
      const std::lock_guard lock(mutex_);  // another replica may have had other rows of it
      job.error = error;
    }
    if (--job.left_ > 0) continue;
    job.finished = end;
    job.done(job);
  }
  taken.clear(), rows.clear();
}

}  // namespace vitrum
