// A device that several models share. Programs of one backend never run at the same time, so
// whoever runs one takes a turn; turns are first come, first served, so no model waits for ever.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>

#include "vitrum/runtime/backends.h"

namespace vitrum {

class SharedDevice {
 public:
  explicit SharedDevice(const DeviceOptions& options) : SharedDevice(make_backend(options)) {}
  explicit SharedDevice(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}
  SharedDevice(const SharedDevice&) = delete;
  SharedDevice& operator=(const SharedDevice&) = delete;

  Backend& backend() const { return *backend_; }

  // A thread with images for one of the models, for as long as it lives: from before they are
  // decoded until they are answered, or handed to others. Where there are as many of these as
  // cores, none of the cores would be idle if each thread computed its own images by itself.
  class Caller {
   public:
    explicit Caller(SharedDevice& device) : device_(device) {
      device.callers_.fetch_add(1, std::memory_order_relaxed);
    }
    ~Caller() { device_.callers_.fetch_sub(1, std::memory_order_relaxed); }
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;

   private:
    SharedDevice& device_;
  };
  int callers() const { return callers_.load(std::memory_order_relaxed); }

  // Holds the device for as long as it lives.
  class Turn {
   public:
    explicit Turn(SharedDevice& device) : device_(device) {
      device.backend_->bind_thread();  // may fail: before there is a turn that would never end
      const uint64_t ticket = device.next_.fetch_add(1, std::memory_order_relaxed);
      for (uint64_t now; (now = device.serving_.load(std::memory_order_acquire)) != ticket;)
        device.serving_.wait(now, std::memory_order_acquire);
    }
    ~Turn() {
      device_.serving_.fetch_add(1, std::memory_order_release);
      device_.serving_.notify_all();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    SharedDevice& device_;
  };

 private:
  std::unique_ptr<Backend> backend_;
  std::atomic<uint64_t> next_{0}, serving_{0};
  std::atomic<int> callers_{0};
};

}  // namespace vitrum
