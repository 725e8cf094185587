#pragma once
#include <cstddef>
#include <utility>

namespace vitrum {

// The only owner of tensor memory, on whichever device `release` belongs to. Movable; frees in the
// destructor.
class Buffer {
 public:
  using Release = void (*)(void*, size_t);

  Buffer() = default;
  Buffer(void* data, size_t bytes, Release release)
      : data_(data), bytes_(bytes), release_(release) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer() {
    if (data_) release_(data_, bytes_);
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  size_t size() const { return bytes_; }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_), std::swap(bytes_, other.bytes_),
        std::swap(release_, other.release_);
  }

  void* data_ = nullptr;
  size_t bytes_ = 0;
  Release release_ = nullptr;
};

// Zeroed host memory, aligned to a cache line; large buffers ask for huge pages.
Buffer allocate_host(size_t bytes);
// What it holds is not wanted any more: gives its pages back, but keeps the address, where zeros
// are now.
void give_back_pages(const Buffer& host);

}  // namespace vitrum
