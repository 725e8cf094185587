// Requests between their last byte and their answer, and how long the next one would wait: as many
// answers have to come first, and they come as fast as the last ones did. That holds wherever the
// time goes (a line of tasks, decoders, the model, other programs on the machine).
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <utility>

namespace vitrum::serve {

class Backlog {
 public:
  using Clock = std::chrono::steady_clock;

  // Of one request, until it is answered.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept : backlog_(std::exchange(other.backlog_, nullptr)) {}
    Place& operator=(Place&& other) noexcept {
      std::swap(backlog_, other.backlog_);
      return *this;
    }
    ~Place() { give_up(); }
    void answered() {
      if (Backlog* b = std::exchange(backlog_, nullptr)) b->leave(true, Clock::now());
    }
    // It goes on elsewhere, or nobody waits for it any more.
    void give_up() {
      if (Backlog* b = std::exchange(backlog_, nullptr)) b->leave(false, Clock::now());
    }

   private:
    friend class Backlog;
    explicit Place(Backlog& backlog) : backlog_(&backlog) {}
    Backlog* backlog_ = nullptr;
  };

  Place enter(Clock::time_point now = Clock::now()) {
    const std::lock_guard lock(mutex_);
    if (waiting_++ == 0) last_ = now;  // idle time says nothing about how long answers take
    return Place(*this);
  }

  double seconds_to_wait() const {
    const std::lock_guard lock(mutex_);
    return answers_ > 0 ? static_cast<double>(waiting_) * seconds_ / answers_ : 0;
  }

 private:
  void leave(bool answered, Clock::time_point now) {
    const std::lock_guard lock(mutex_);
    --waiting_;
    if (!answered) return;
    // Sums that forget: answers come in batches, so the time between two of them says little.
    constexpr double kKept = 1 - 1.0 / 64;
    seconds_ = kKept * seconds_ + std::chrono::duration<double>(now - last_).count();
    answers_ = kKept * answers_ + 1;
    last_ = std::max(last_, now);
  }

  mutable std::mutex mutex_;
  int64_t waiting_ = 0;
  Clock::time_point last_ = {};  // answer, or beginning of being busy
  double seconds_ = 0, answers_ = 0;
};

}  // namespace vitrum::serve
