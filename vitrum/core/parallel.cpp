#include "vitrum/core/parallel.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

namespace vitrum {

// Workers wait for `epoch` to change: spinning for a while (kernels follow each other within microseconds),
// then asleep. A loop is done when every worker has left it, so the next may reuse the fields.
struct ThreadPool::State {
  alignas(64) std::atomic<uint64_t> epoch{0};
  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::atomic<int> busy{0};
  int64_t tasks = 0;
  Call call = nullptr;
  const void* body = nullptr;
  bool stop = false;
  std::vector<std::thread> workers;

  void take_tasks(int thread) {
    for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < tasks;
         i = next.fetch_add(1, std::memory_order_relaxed))
      call(body, i, thread);
  }

  void work(int thread) {
    constexpr int kSpins = 20000;  // about 0.3 ms
    uint64_t seen = 0;
    for (;;) {
      for (int spin = 0; spin < kSpins && epoch.load(std::memory_order_acquire) == seen; ++spin) _mm_pause();
      epoch.wait(seen, std::memory_order_acquire);
      seen = epoch.load(std::memory_order_acquire);
      if (stop) return;
      take_tasks(thread);
      if (busy.fetch_sub(1, std::memory_order_acq_rel) == 1) busy.notify_one();
    }
  }
};

ThreadPool::ThreadPool(int threads) : threads_(std::max(1, threads)), state_(std::make_unique<State>()) {
  for (int t = 1; t < threads_; ++t) state_->workers.emplace_back([s = state_.get(), t] { s->work(t); });
}

ThreadPool::~ThreadPool() {
  state_->stop = true;
  state_->epoch.fetch_add(1, std::memory_order_release);
  state_->epoch.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

void ThreadPool::dispatch(int64_t tasks, Call call, const void* body) {
  State& s = *state_;
  s.tasks = tasks, s.call = call, s.body = body;
  s.next.store(0, std::memory_order_relaxed);
  s.busy.store(threads_ - 1, std::memory_order_relaxed);
  s.epoch.fetch_add(1, std::memory_order_release);
  s.epoch.notify_all();
  s.take_tasks(0);
  constexpr int kSpins = 20000;
  for (int spin = 0; spin < kSpins && s.busy.load(std::memory_order_acquire) != 0; ++spin) _mm_pause();
  for (int left = s.busy.load(std::memory_order_acquire); left != 0; left = s.busy.load(std::memory_order_acquire))
    s.busy.wait(left, std::memory_order_acquire);
}

int available_cores() {
  cpu_set_t set;
  int cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  // A container's share: "quota period" in microseconds, or "max period" where there is no limit.
  std::ifstream limit("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (limit >> quota >> period && quota != "max" && period > 0)
    cores = std::min(cores, std::max(1, static_cast<int>(std::stod(quota) / period + 0.5)));
  return std::max(1, cores);
}

}  // namespace vitrum
