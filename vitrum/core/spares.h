// Things that are costly to make, kept from one use to the next.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

namespace vitrum {

template <class T>
class Spares {
 public:
  std::unique_ptr<T> take() {  // null where there is none
    const std::lock_guard lock(mutex_);
    if (spares_.empty()) return nullptr;
    std::unique_ptr<T> spare = std::move(spares_.back());
    spares_.pop_back();
    return spare;
  }
  void give(std::unique_ptr<T> spare) {
    constexpr size_t kMost = 256;  // a burst's worth; more would be memory that nobody uses
    const std::lock_guard lock(mutex_);
    if (spares_.size() < kMost) spares_.push_back(std::move(spare));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> spares_;
};

}  // namespace vitrum
