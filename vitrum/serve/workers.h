// Threads that parse, decode, and run models.
#pragma once
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace vitrum::serve {

class Workers {
 public:
  explicit Workers(int threads) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~Workers() { finish(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int threads() const { return static_cast<int>(threads_.size()); }
  // Until a task that is posted now begins: those before it, at what tasks took of late.
  double seconds_to_wait() const {
    const std::lock_guard lock(mutex_);
    return static_cast<double>(tasks_.size()) * seconds_ / static_cast<double>(threads_.size());
  }
  // Does what was posted, and ends; more than once does nothing.
  void finish() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    ready_.notify_all();
    for (std::thread& thread : threads_)
      if (thread.joinable()) thread.join();
  }
  // Must not throw. What is rare and long, such as loading a model, is not `usual`.
  void post(std::function<void()> task, bool usual = true) {
    {
      const std::lock_guard lock(mutex_);
      tasks_.push_back({std::move(task), usual});
    }
    ready_.notify_one();
  }

 private:
  struct Task {
    std::function<void()> run;
    bool usual;
  };
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ready_.wait(lock, [&] { return stop_ || !tasks_.empty(); });
      if (tasks_.empty()) return;  // what was posted before the end is done
      const Task task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      const auto start = std::chrono::steady_clock::now();
      task.run();
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      lock.lock();
      if (task.usual)
        seconds_ = seconds_ == 0 ? took.count() : 0.95 * seconds_ + 0.05 * took.count();
    }
  }

  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Task> tasks_;
  double seconds_ = 0;  // of a usual task, averaged over the last ones
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace vitrum::serve
