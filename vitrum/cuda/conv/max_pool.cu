#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 256;

struct Windows {
  int height, width, channels, down, across, kernel, stride, padding;

  __device__ __forceinline__ int64_t pixel(int64_t image, int y, int x) const {
    return (image * height + y) * width + x;
  }
};

// The pixel with the first greatest value of window (i, j) of an image.
__device__ __forceinline__ int64_t greatest(const Windows& w, const Mixed& x, int64_t image, int i,
                                            int j, int c) {
  int64_t best = -1;
  float value = 0;
  for (int y = max(i * w.stride - w.padding, 0);
       y < min(i * w.stride - w.padding + w.kernel, w.height); ++y)
    for (int xx = max(j * w.stride - w.padding, 0);
         xx < min(j * w.stride - w.padding + w.kernel, w.width); ++xx) {
      const int64_t pixel = w.pixel(image, y, xx);
      const float v = x.load(pixel * w.channels + c);
      if (best < 0 || v > value) best = pixel, value = v;
    }
  return best;
}

__global__ void __launch_bounds__(kThreads) max_pool(Windows w, Mixed x, Mixed y, int64_t count) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k >= count) return;
  const int c = static_cast<int>(k % w.channels);
  const int64_t window = k / w.channels;
  const int j = static_cast<int>(window % w.across),
            i = static_cast<int>(window / w.across % w.down);
  const int64_t best = greatest(w, x, window / w.across / w.down, i, j, c);
  y.store(k, x.load(best * w.channels + c));
}

// A pixel asks every window over it whether it is the one.
__global__ void __launch_bounds__(kThreads)
    max_pool_back(Windows w, Mixed dy, Mixed x, Mixed dx, int64_t count) {
  const int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (k >= count) return;
  const int c = static_cast<int>(k % w.channels);
  const int64_t pixel = k / w.channels, image = pixel / w.width / w.height;
  const int column = static_cast<int>(pixel % w.width) + w.padding,
            line = static_cast<int>(pixel / w.width % w.height) + w.padding;
  float sum = 0;
  for (int i = max(line - w.kernel + w.stride, 0) / w.stride; i < w.down && i * w.stride <= line;
       ++i)
    for (int j = max(column - w.kernel + w.stride, 0) / w.stride;
         j < w.across && j * w.stride <= column; ++j)
      if (greatest(w, x, image, i, j, c) == pixel)
        sum += dy.load(((image * w.down + i) * w.across + j) * w.channels + c);
  dx.store(k, sum);
}

Windows windows_of(const Shape& x, const Shape& y, int64_t kernel, int64_t stride,
                   int64_t padding) {
  const auto narrow = [](int64_t n) { return static_cast<int>(n); };
  return {narrow(x[1]), narrow(x[2]),   narrow(x[3]),   narrow(y[1]),
          narrow(y[2]), narrow(kernel), narrow(stride), narrow(padding)};
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const MaxPool& op, const Operands& io) {
  const auto& [kernel, stride, padding] = op;
  const TensorView x = io.in[MaxPool::kX], y = io.out[MaxPool::kY];
  const Windows windows = windows_of(x.shape, y.shape, kernel, stride, padding);
  const int64_t count = y.shape.numel();
  return launch_kernel(cuda, max_pool, blocks_for(count, kThreads), kThreads, 0, windows, mixed(x),
                       mixed(y), count);
}

KernelPtr lower(CudaBackend& cuda, const MaxPoolBwd& op, const Operands& io) {
  const auto& [kernel, stride, padding] = op;
  const TensorView dy = io.in[MaxPoolBwd::kDy], x = io.in[MaxPoolBwd::kX],
                   dx = io.out[MaxPoolBwd::kDx];
  const Windows windows = windows_of(x.shape, dy.shape, kernel, stride, padding);
  const int64_t count = x.shape.numel();
  return launch_kernel(cuda, max_pool_back, blocks_for(count, kThreads), kThreads, 0, windows,
                       mixed(dy), mixed(x), mixed(dx), count);
}

}  // namespace vitrum::cuda
