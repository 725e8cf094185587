// From images to patches: a batch taken out of a data set and augmented, mixed, and then normalised
// and cut, straight from bytes in one pass.
#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {
namespace {

constexpr int kThreads = 256, kPlanes = 3;

struct Affine {
  const float *scale, *shift;  // (C); null: pixels as they are
  __device__ __forceinline__ float operator()(float x, int64_t channel) const {
    return scale ? fmaf(x, scale[channel], shift[channel]) : x;
  }
};

__global__ void __launch_bounds__(kThreads)
    normalize(Mixed x, Mixed y, Affine affine, int64_t plane, int64_t channels, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) y.store(i, affine(x.load(i), i / plane % channels));
}

__global__ void __launch_bounds__(kThreads)
    mix_images(const uint8_t* x, const float* mix, float* y, int64_t size, int height, int width,
               int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const float* const m = mix + i / size * 6;
  const auto line = static_cast<float>(i / width % height), column = static_cast<float>(i % width);
  const bool box = line >= m[2] && line < m[3] && column >= m[4] && column < m[5];
  const float own = box ? 0.f : m[1];
  const int64_t partner = static_cast<int64_t>(m[0]) * size + i % size;
  y[i] = fmaf(static_cast<float>(x[i]), own, static_cast<float>(x[partner]) * (1.f - own));
}

// Byte `pixel` of the box that a row erases from channel c.
__device__ uint8_t erased(const ImageRow& row, const uint8_t* noise, uint32_t c, uint32_t pixel) {
  if (!noise) return static_cast<uint8_t>(row.colour >> (8 * c));
  const uint32_t words = (static_cast<uint32_t>(row.height * row.width) + 1) / 2;
  const uint32_t word = stream_word((uint64_t{row.seed_high} << 32) | row.seed_low, row.stream,
                                    (uint64_t{row.index_high} << 32) | row.index_low,
                                    row.position + c * words + pixel / 2);
  return noise[c * 4096 + (word >> (16 * (pixel % 2)) & 0xffff) / 16];
}

// A plane of one image a block.
__global__ void __launch_bounds__(kThreads)
    take_images(const uint8_t* images, const ImageRow* rows, const uint8_t* noise, uint8_t* out,
                int channels, int height, int width) {
  const int c = static_cast<int>(blockIdx.x) % channels, size = height * width;
  const ImageRow row = rows[blockIdx.x / channels];
  const uint8_t* const plane = images + (static_cast<int64_t>(row.image) * channels + c) * size;
  out += static_cast<int64_t>(blockIdx.x) * size;
  for (int i = static_cast<int>(threadIdx.x); i < size; i += kThreads) {
    const int y = i / width, x = i - y * width;
    const int from_y = y + row.down, from_x = (row.mirror ? width - 1 - x : x) + row.right;
    const int box_y = y - row.top, box_x = x - row.left;
    uint8_t byte = 0;
    if (row.image >= 0) {
      if (box_y >= 0 && box_y < row.height && box_x >= 0 && box_x < row.width)
        byte = erased(row, noise, c, static_cast<uint32_t>(box_y * row.width + box_x));
      else if (from_y >= 0 && from_y < height && from_x >= 0 && from_x < width)
        byte = plane[from_y * width + from_x];
    }
    out[i] = byte;
  }
}

// Sizes of an image and of its patches. Index is 32 bits wide wherever that is enough: the kernels
// below divide a lot.
template <class Index>
struct Grid {
  Index channels, height, width, patch_h, patch_w;
  bool channel_last;

  __device__ __forceinline__ Index across() const { return width / patch_w; }
  __device__ __forceinline__ Index down() const { return height / patch_h; }
  __device__ __forceinline__ Index patch() const { return channels * patch_h * patch_w; }
};

// One element of the result a thread.
template <class Index>
__global__ void __launch_bounds__(kThreads)
    patchify_ones(Mixed image, Mixed y, Affine affine, Grid<Index> g, int64_t count) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= count) return;
  const auto i = static_cast<Index>(thread);
  const Index patch = i / g.patch(), place = i % g.patch(), area = g.patch_h * g.patch_w;
  const Index channel = g.channel_last ? place % g.channels : place / area;
  const Index pixel = g.channel_last ? place / g.channels : place % area;
  const Index row = patch / g.across();  // of patches, all images below each other
  const Index line = row % g.down() * g.patch_h + pixel / g.patch_w;
  const Index column = patch % g.across() * g.patch_w + pixel % g.patch_w;
  const Index from = ((row / g.down() * g.channels + channel) * g.height + line) * g.width + column;
  y.store(thread, affine(image.load(from), channel));
}

__device__ __forceinline__ Eight load8(const uint8_t* p) {
  const uint2 raw = *reinterpret_cast<const uint2*>(p);
  Eight out;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    out.v[k] = static_cast<float>(raw.x >> (8 * k) & 0xffu);
    out.v[k + 4] = static_cast<float>(raw.y >> (8 * k) & 0xffu);
  }
  return out;
}
using cuda::load8;

template <class T>
__device__ __forceinline__ void store4(T* p, const float* x) {
#pragma unroll
  for (int k = 0; k < 4; ++k) p[k] = from_float<T>(x[k]);
}
template <>
__device__ __forceinline__ void store4(bf16* p, const float* x) {
  *reinterpret_cast<uint2*>(p) = make_uint2(pack2(x[0], x[1]), pack2(x[2], x[3]));
}

// Eight neighbouring pixels of one line a thread. Channels first they stay neighbours, four or all
// of them, in their patch.
template <class X, class Y>
__global__ void __launch_bounds__(kThreads)
    patchify_eights(const X* image, Y* y, Affine affine, Grid<uint32_t> g, int64_t eights) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= eights) return;
  const auto i = static_cast<uint32_t>(thread);
  const uint32_t per_line = g.width / 8, column = i % per_line * 8, line = i / per_line;
  const uint32_t v = line % g.height, plane = line / g.height;
  const uint32_t channel = plane % g.channels, b = plane / g.channels;
  Eight x = load8(image + thread * 8);
#pragma unroll
  for (int k = 0; k < 8; ++k) x.v[k] = affine(x.v[k], channel);
  const uint32_t patch = (b * g.down() + v / g.patch_h) * g.across() + column / g.patch_w;
  const uint32_t place = (channel * g.patch_h + v % g.patch_h) * g.patch_w + column % g.patch_w;
  Y* const to = y + static_cast<int64_t>(patch) * g.patch() + place;
  if (g.patch_w != 4)
    store8(to, x);
  else
    store4(to, x.v), store4(to + g.patch(), x.v + 4);
}

// Eight neighbouring pixels a thread, three planes to channels last: `plane` of them, in eights.
template <class X, class Y>
__global__ void __launch_bounds__(kThreads)
    interleave(const X* image, Y* y, Affine affine, uint32_t plane, int64_t eights) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= eights) return;
  const int64_t b = thread / plane;
  const X* const from = image + (b * 2 * plane + thread) * 8;
  Eight of[kPlanes], to[kPlanes];
#pragma unroll
  for (int c = 0; c < kPlanes; ++c) of[c] = load8(from + int64_t{c} * plane * 8);
#pragma unroll
  for (int i = 0; i < 8 * kPlanes; ++i)
    to[i / 8].v[i % 8] = affine(of[i % kPlanes].v[i / kPlanes], i % kPlanes);
#pragma unroll
  for (int c = 0; c < kPlanes; ++c) store8(y + (thread * kPlanes + c) * 8, to[c]);
}

template <class Index>
Grid<Index> grid_of(const Patchify& op, const Shape& s) {
  const auto& [patch_h, patch_w, order] = op;
  return {static_cast<Index>(s[1]),    static_cast<Index>(s[2]),
          static_cast<Index>(s[3]),    static_cast<Index>(patch_h),
          static_cast<Index>(patch_w), order == PatchOrder::kChannelLast};
}

// Patches of one pixel, in which channels are last either way.
bool is_pixel(const Patchify& op) {
  const auto& [patch_h, patch_w, order] = op;
  return patch_h == 1 && patch_w == 1;
}

template <class X>
KernelPtr patchify_wide(CudaBackend& cuda, const Patchify& op, const TensorView& image,
                        const TensorView& y, const Affine& affine) {
  const int64_t eights = image.shape.numel() / 8;
  return with_type(y.dtype, [&](auto type) {
    using Y = decltype(type);
    if (is_pixel(op)) {
      const int64_t plane = image.shape[2] * image.shape[3] / 8;
      return launch_kernel(cuda, interleave<X, Y>, blocks_for(eights / kPlanes, kThreads), kThreads,
                           0, static_cast<const X*>(image.data), static_cast<Y*>(y.data), affine,
                           static_cast<uint32_t>(plane), eights / kPlanes);
    }
    return launch_kernel(cuda, patchify_eights<X, Y>, blocks_for(eights, kThreads), kThreads, 0,
                         static_cast<const X*>(image.data), static_cast<Y*>(y.data), affine,
                         grid_of<uint32_t>(op, image.shape), eights);
  });
}

}  // namespace

KernelPtr lower(CudaBackend& cuda, const NoAttributes<Normalize>&, const Operands& io) {
  const Shape& s = io.in[Normalize::kPixels].shape;  // (B, C, H, W)
  return launch_kernel(cuda, normalize, blocks_for(s.numel(), kThreads), kThreads, 0,
                       mixed(io.in[Normalize::kPixels]), mixed(io.out[Normalize::kY]),
                       Affine{io.in[Normalize::kScale].f32(), io.in[Normalize::kShift].f32()},
                       s[2] * s[3], s[1], s.numel());
}

KernelPtr lower(CudaBackend& cuda, const NoAttributes<Mix>&, const Operands& io) {
  const Shape& s = io.in[Mix::kPixels].shape;  // (B, C, H, W)
  return launch_kernel(cuda, mix_images, blocks_for(s.numel(), kThreads), kThreads, 0,
                       static_cast<const uint8_t*>(io.in[Mix::kPixels].data),
                       io.in[Mix::kMix].f32(), io.out[Mix::kY].f32(), s[1] * s[2] * s[3],
                       static_cast<int>(s[2]), static_cast<int>(s[3]), s.numel());
}

KernelPtr lower(CudaBackend& cuda, const NoAttributes<TakeImages>&, const Operands& io) {
  const Shape& s = io.out[TakeImages::kY].shape;  // (B, C, H, W)
  return launch_kernel(cuda, take_images, static_cast<unsigned>(s[0] * s[1]), kThreads, 0,
                       static_cast<const uint8_t*>(io.in[TakeImages::kImages].u8()),
                       static_cast<const ImageRow*>(io.in[TakeImages::kRows].data),
                       static_cast<const uint8_t*>(operand(io.in, TakeImages::kNoise).u8()),
                       io.out[TakeImages::kY].u8(), static_cast<int>(s[1]), static_cast<int>(s[2]),
                       static_cast<int>(s[3]));
}

KernelPtr lower(CudaBackend& cuda, const Patchify& op, const Operands& io) {
  const auto& [patch_h, patch_w, order] = op;
  const TensorView image = io.in[Patchify::kImage], y = io.out[Patchify::kY];
  const Affine affine{operand(io.in, Patchify::kScale).f32(),
                      operand(io.in, Patchify::kShift).f32()};
  const int64_t count = image.shape.numel();
  const bool small = count <= UINT32_MAX;
  const bool eights = order == PatchOrder::kChannelFirst &&
                      (patch_w % 8 == 0 || (patch_w == 4 && image.shape[3] % 8 == 0));
  const bool pixels =
      is_pixel(op) && image.shape[1] == kPlanes && image.shape[2] * image.shape[3] % 8 == 0;
  if (small && (eights || pixels) && aligned16(image) && aligned16(y)) {
    if (image.dtype == DType::kU8) return patchify_wide<uint8_t>(cuda, op, image, y, affine);
    if (image.dtype == DType::kBF16) return patchify_wide<bf16>(cuda, op, image, y, affine);
    return patchify_wide<float>(cuda, op, image, y, affine);
  }
  const unsigned blocks = blocks_for(count, kThreads);
  if (small)
    return launch_kernel(cuda, patchify_ones<uint32_t>, blocks, kThreads, 0, mixed(image), mixed(y),
                         affine, grid_of<uint32_t>(op, image.shape), count);
  return launch_kernel(cuda, patchify_ones<int64_t>, blocks, kThreads, 0, mixed(image), mixed(y),
                       affine, grid_of<int64_t>(op, image.shape), count);
}

}  // namespace vitrum::cuda
