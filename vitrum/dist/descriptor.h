#pragma once
#include <unistd.h>

#include <utility>

namespace vitrum {

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    if (this != &other) close_now(), fd_ = std::exchange(other.fd_, -1);
    return *this;
  }
  ~Descriptor() { close_now(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  void close_now() {
    if (fd_ >= 0) close(fd_);
  }
  int fd_ = -1;
};

}  // namespace vitrum
