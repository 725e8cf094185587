#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace vitrum {

// Leaves new elements as they are. A header may claim a huge image: memory that nothing has written
// to costs nothing.
template <class T>
struct UninitializedAllocator : std::allocator<T> {
  template <class U>
  struct rebind {
    using other = UninitializedAllocator<U>;
  };
  template <class U>
  void construct(U* at) {
    ::new (static_cast<void*>(at)) U;
  }
  template <class U, class... Args>
  void construct(U* at, Args&&... args) {
    ::new (static_cast<void*>(at)) U(std::forward<Args>(args)...);
  }
};
using PixelVector = std::vector<uint8_t, UninitializedAllocator<uint8_t>>;

// A part of an image, in pixels.
struct Window {
  int top = 0, left = 0, height = 0, width = 0;
};
// Which part of an image of this size is wanted.
using ChooseWindow = std::function<Window(int height, int width)>;

// 8-bit pixels, planar: (channels, height, width), as models want them. One channel is grey, three
// are RGB.
struct Image {
  int channels = 0, height = 0, width = 0;
  PixelVector pixels;

  size_t plane_size() const { return static_cast<size_t>(height) * static_cast<size_t>(width); }
  uint8_t* plane(int channel) {
    return pixels.data() + static_cast<size_t>(channel) * plane_size();
  }
  const uint8_t* plane(int channel) const {
    return pixels.data() + static_cast<size_t>(channel) * plane_size();
  }
  // Keeps the memory it already has; the pixels are whatever they were.
  void reshape(int new_channels, int new_height, int new_width) {
    channels = new_channels, height = new_height, width = new_width;
    pixels.resize(static_cast<size_t>(channels) * plane_size());
  }
};

// Keeps only the window, in place.
inline void crop(const Window& window, Image& image) {
  if (window.height == image.height && window.width == image.width) return;
  const auto width = static_cast<size_t>(window.width), stride = static_cast<size_t>(image.width);
  uint8_t* to = image.pixels.data();
  for (int c = 0; c < image.channels; ++c) {
    const uint8_t* from = image.plane(c) + static_cast<size_t>(window.top) * stride + window.left;
    for (int y = 0; y < window.height; ++y, from += stride, to += width)
      std::copy_n(from, width, to);
  }
  image.reshape(image.channels, window.height, window.width);
}

}  // namespace vitrum
