// Our own parallel loop. Tasks are fixed by shape, threads take them in turn, so a result never
// depends on the number of threads.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

namespace vitrum {

class ThreadPool {
 public:
  // Runs tasks on `threads` threads, the caller being one of them.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Calls body(task, thread) for every task in [0, tasks), thread in [0, threads()). Returns when
  // all are done. The body must not throw, and must not start another loop on the same pool.
  template <class Body>
  void run(int64_t tasks, const Body& body) {
    if (threads_ == 1 || tasks <= 1) {
      for (int64_t i = 0; i < tasks; ++i) body(i, 0);
      return;
    }
    dispatch(
        tasks,
        [](const void* b, int64_t task, int thread) {
          (*static_cast<const Body*>(b))(task, thread);
        },
        &body);
  }

 private:
  using Call = void (*)(const void* body, int64_t task, int thread);
  struct State;
  void dispatch(int64_t tasks, Call call, const void* body);

  int threads_;
  std::unique_ptr<State> state_;
};

// Cores this process may use (affinity and cgroup limits respected).
int available_cores();

}  // namespace vitrum
