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
};

}  // namespace vitrum
