#include "vitrum/core/parallel.h"

#include <immintrin.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

namespace vitrum {

// A loop is published as one number: its epoch and how many tasks are left. Whoever lowers it has
// that task; the loop cannot end before the task is done, so the other fields are stable for as
// long as they are read. A worker that was not running in time takes nothing, and nobody waits for
// it.
struct ThreadPool::State {
  alignas(64) std::atomic<uint64_t> ticket{0};  // epoch in the upper half, tasks left in the lower
  alignas(64) std::atomic<int64_t> done{0};
  alignas(64) int64_t tasks = 0;
  Call call = nullptr;
  const void* body = nullptr;
  std::atomic<bool> stop{false};
  std::vector<std::thread> workers;

  static constexpr int kSpins =
      20000;  // about 0.3 ms: kernels follow each other within microseconds
  static bool empty(uint64_t ticket) { return static_cast<uint32_t>(ticket) == 0; }

  void take_tasks(int thread) {
    for (uint64_t seen = ticket.load(std::memory_order_acquire); !empty(seen);) {
      if (!ticket.compare_exchange_weak(seen, seen - 1, std::memory_order_acq_rel,
                                        std::memory_order_acquire))
        continue;
      const int64_t total = tasks;
      call(body, total - static_cast<uint32_t>(seen), thread);
      if (done.fetch_add(1, std::memory_order_acq_rel) + 1 == total) done.notify_one();
      seen = ticket.load(std::memory_order_acquire);
    }
  }

  void work(int thread) {
    for (;;) {
      for (int spin = 0; spin < kSpins && empty(ticket.load(std::memory_order_acquire)); ++spin)
        _mm_pause();
      const uint64_t seen = ticket.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_acquire)) return;
      if (empty(seen)) ticket.wait(seen, std::memory_order_acquire);
      take_tasks(thread);
    }
  }
};

ThreadPool::ThreadPool(int threads)
    : threads_(std::max(1, threads)), state_(std::make_unique<State>()) {
  for (int t = 1; t < threads_; ++t)
    state_->workers.emplace_back([s = state_.get(), t] { s->work(t); });
}

ThreadPool::~ThreadPool() {
  state_->stop.store(true, std::memory_order_release);
  state_->ticket.fetch_add(uint64_t{1} << 32, std::memory_order_acq_rel);
  state_->ticket.notify_all();
  for (std::thread& worker : state_->workers) worker.join();
}

void ThreadPool::dispatch(int64_t tasks, Call call, const void* body) {
  State& s = *state_;
  s.tasks = tasks, s.call = call, s.body = body;
  s.done.store(0, std::memory_order_relaxed);
  const uint64_t epoch = (s.ticket.load(std::memory_order_relaxed) >> 32) + 1;
  s.ticket.store(epoch << 32 | static_cast<uint64_t>(tasks), std::memory_order_release);
  s.ticket.notify_all();
  s.take_tasks(0);
  const auto left = [&] { return s.done.load(std::memory_order_acquire) != tasks; };
  for (int spin = 0; spin < State::kSpins && left(); ++spin) _mm_pause();
  for (int64_t seen = s.done.load(std::memory_order_acquire); seen != tasks;
       seen = s.done.load(std::memory_order_acquire))
    s.done.wait(seen, std::memory_order_acquire);
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
