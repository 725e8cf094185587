#include "vitrum/core/parallel.h"

#include <sched.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

namespace vitrum {
namespace {

// Says to the processor that a loop waits.
void relax() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

// A container's share of the processor, in cores; 0 where there is no limit.
double cgroup_cores() {
  std::string quota;
  double period = 0;
  // Version 2: "quota period" in microseconds, or "max period" where there is no limit.
  std::ifstream both("/sys/fs/cgroup/cpu.max");
  if (both >> quota >> period) return quota == "max" || period <= 0 ? 0 : std::stod(quota) / period;
  double old_quota = 0;  // version 1: -1 where there is no limit
  std::ifstream quota_file("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"),
      period_file("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  if (!(quota_file >> old_quota && period_file >> period) || old_quota <= 0 || period <= 0)
    return 0;
  return old_quota / period;
}

}  // namespace

// Each thread has a share of a loop's tasks, a run of them, and takes those of others when its own
// are done: what it wrote in one loop it finds in its cache in the next, if that is cut alike. A
// share is one number: the loop's epoch and how many tasks are left. Whoever lowers it has that
// task; the loop cannot end before the task is counted, so the other fields are stable for as long
// as they are read. A worker that was not running in time takes nothing, and nobody waits for it.
struct ThreadPool::State {
  struct alignas(64) Share {
    std::atomic<uint64_t> ticket{0};  // epoch in the upper half, tasks left in the lower
    int64_t end = 0;                  // behind its last task
  };
  alignas(64) std::atomic<uint32_t> epoch{0};
  std::atomic<bool> stop{false};
  alignas(64) std::atomic<int64_t> done{0};
  alignas(64) int64_t tasks = 0;
  Call call = nullptr;
  const void* body = nullptr;
  std::vector<Share> shares;
  std::vector<std::thread> workers;

  static constexpr int kSpins = 20000;  // about 1 ms: kernels follow each other within microseconds

  explicit State(int threads) : shares(static_cast<size_t>(threads)) {}

  int64_t take_share(Share& share, int thread) {
    int64_t taken = 0;
    uint64_t seen = share.ticket.load(std::memory_order_acquire);
    while (static_cast<uint32_t>(seen) != 0) {
      if (!share.ticket.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,
                                              std::memory_order_acquire))
        continue;
      call(body, share.end - static_cast<uint32_t>(seen), thread);
      ++taken;
      seen = share.ticket.load(std::memory_order_acquire);
    }
    return taken;
  }

  void take_tasks(int thread) {
    const auto count = static_cast<int>(shares.size());
    for (int i = 0; i < count; ++i) {
      const int64_t taken = take_share(shares[static_cast<size_t>((thread + i) % count)], thread);
      if (taken == 0) continue;
      const int64_t total = tasks;  // before the last count lets the next loop begin
      if (done.fetch_add(taken, std::memory_order_acq_rel) + taken == total) done.notify_one();
    }
  }

  void work(int thread) {
    for (uint32_t seen = 0;;) {
      for (int spin = 0; spin < kSpins && epoch.load(std::memory_order_acquire) == seen; ++spin)
        relax();
      epoch.wait(seen, std::memory_order_acquire);
      seen = epoch.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_acquire)) return;
      take_tasks(thread);
    }
  }
};

ThreadPool::ThreadPool(int threads)
    : threads_(std::max(1, threads)), state_(std::make_unique<State>(threads_)) {
  for (int t = 1; t < threads_; ++t)
    state_->workers.emplace_back([s = state_.get(), t] { s->work(t); });
}

ThreadPool::~ThreadPool() {
  state_->stop.store(true, std::memory_order_release);
  state_->epoch.fetch_add(1, std::memory_order_acq_rel);
  state_->epoch.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

void ThreadPool::dispatch(int64_t tasks, Call call, const void* body) {
  State& s = *state_;
  s.tasks = tasks, s.call = call, s.body = body;
  s.done.store(0, std::memory_order_relaxed);
  const uint32_t epoch = s.epoch.load(std::memory_order_relaxed) + 1;
  for (int t = 0; t < threads_; ++t) {
    State::Share& share = s.shares[static_cast<size_t>(t)];
    const int64_t first = tasks * t / threads_;
    share.end = tasks * (t + 1) / threads_;
    share.ticket.store(uint64_t{epoch} << 32 | static_cast<uint64_t>(share.end - first),
                       std::memory_order_release);
  }
  s.epoch.store(epoch, std::memory_order_release);
  s.epoch.notify_all();
  s.take_tasks(0);
  const auto left = [&] { return s.done.load(std::memory_order_acquire) != tasks; };
  for (int spin = 0; spin < State::kSpins && left(); ++spin) relax();
  for (int64_t seen = s.done.load(std::memory_order_acquire); seen != tasks;
       seen = s.done.load(std::memory_order_acquire))
    s.done.wait(seen, std::memory_order_acquire);
}

int available_cores() {
  cpu_set_t set;
  int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  if (const double share = cgroup_cores(); share > 0)
    cores = std::min(cores, std::max(1, static_cast<int>(share + 0.5)));
  return std::max(1, cores);
}

}  // namespace vitrum
