// Launch of the kernels of max_pool.cuh; and one channel a thread, of any width, type and address.
#include "vitrum/cuda/primitives/device.cuh"
// Written in what is above.
#include "vitrum/cuda/conv/max_pool.cuh"

namespace vitrum::cuda {
namespace {

using max_pool::kThreads, max_pool::Windows;

template <class T>
__global__ void __launch_bounds__(kThreads)
    pool_eights(Windows w, const T* x, T* y, uint32_t items) {
  const uint32_t item = blockIdx.x * kThreads + threadIdx.x;
  if (item < items) max_pool::pool(w, x, y, item);
}
template <class T, int kKernel, int kStride>
__global__ void __launch_bounds__(kThreads)
    pool_eights_back(Windows w, const T* dy, const T* x, T* dx, uint32_t items) {
  const uint32_t item = blockIdx.x * kThreads + threadIdx.x;
  if (item < items) max_pool::pool_back<kKernel, kStride>(w, dy, x, dx, item);
}

__device__ __forceinline__ int64_t pixel_of(const Windows& w, int64_t image, int y, int x) {
  return (image * w.height + y) * w.width + x;
}

// The pixel with the first greatest value of window (i, j) of an image.
__device__ __forceinline__ int64_t greatest(const Windows& w, const Mixed& x, int64_t image, int i,
                                            int j, int c) {
  int64_t best = -1;
  float value = 0;
  for (int y = max(i * w.stride - w.padding, 0);
       y < min(i * w.stride - w.padding + w.kernel, w.height); ++y)
    for (int xx = max(j * w.stride - w.padding, 0);
         xx < min(j * w.stride - w.padding + w.kernel, w.width); ++xx) {
      const int64_t pixel = pixel_of(w, image, y, xx);
      const float v = x.load(pixel * w.channels + c);
      if (best < 0 || v > value) best = pixel, value = v;
    }
  return best;
}

__global__ void __launch_bounds__(kThreads) pool_ones(Windows w, Mixed x, Mixed y, int64_t count) {
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
    pool_ones_back(Windows w, Mixed dy, Mixed x, Mixed dx, int64_t count) {
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

// Of so many eights, or 0 where a thread must take one channel.
uint32_t eights_of(int64_t pixels, int64_t channels, std::initializer_list<TensorView> views) {
  const DType dtype = views.begin()->dtype;
  const int64_t items = pixels * channels / 8;
  bool fits = channels % 8 == 0 && items < UINT32_MAX - kThreads;
  for (const TensorView& view : views) fits = fits && aligned16(view) && view.dtype == dtype;
  return fits ? static_cast<uint32_t>(items) : 0;
}

template <int kKernel, int kStride>
KernelPtr lower_back(CudaBackend& cuda, const Windows& windows, const TensorView& dy,
                     const TensorView& x, const TensorView& dx) {
  const int64_t strips = x.shape[0] * strips_down(windows) * blocks_across(windows);
  const uint32_t items = eights_of(strips, x.shape[3], {x, dy, dx});
  if (items == 0) return nullptr;
  return with_type(x.dtype, [&](auto type) {
    using T = decltype(type);
    return launch_kernel(cuda, pool_eights_back<T, kKernel, kStride>, blocks_for(items, kThreads),
                         kThreads, 0, windows, static_cast<const T*>(dy.data),
                         static_cast<const T*>(x.data), static_cast<T*>(dx.data), items);
  });
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const MaxPool& op, const Operands& io) {
  const auto& [kernel, stride, padding] = op;
  const TensorView x = io.in[MaxPool::kX], y = io.out[MaxPool::kY];
  const Windows windows = windows_of(x.shape, y.shape, kernel, stride, padding);
  const int64_t count = y.shape.numel();
  if (const uint32_t items = eights_of(count / y.shape[3], y.shape[3], {x, y}))
    return with_type(x.dtype, [&](auto type) {
      using T = decltype(type);
      return launch_kernel(cuda, pool_eights<T>, blocks_for(items, kThreads), kThreads, 0, windows,
                           static_cast<const T*>(x.data), static_cast<T*>(y.data), items);
    });
  return launch_kernel(cuda, pool_ones, blocks_for(count, kThreads), kThreads, 0, windows, mixed(x),
                       mixed(y), count);
}

KernelPtr lower(CudaBackend& cuda, const MaxPoolBwd& op, const Operands& io) {
  const auto& [kernel, stride, padding] = op;
  const TensorView dy = io.in[MaxPoolBwd::kDy], x = io.in[MaxPoolBwd::kX],
                   dx = io.out[MaxPoolBwd::kDx];
  const Windows windows = windows_of(x.shape, dy.shape, kernel, stride, padding);
  KernelPtr fast;
  if (kernel == 3 && stride == 2) fast = lower_back<3, 2>(cuda, windows, dy, x, dx);
  if (kernel == 2 && stride == 2) fast = lower_back<2, 2>(cuda, windows, dy, x, dx);
  if (fast) return fast;
  const int64_t count = x.shape.numel();
  return launch_kernel(cuda, pool_ones_back, blocks_for(count, kThreads), kThreads, 0, windows,
                       mixed(dy), mixed(x), mixed(dx), count);
}

}  // namespace vitrum::cuda
