// Launch of the convolutions of tile.cuh, forward and for the gradient of the image.
#include "vitrum/cuda/conv/tile.h"
#include "vitrum/cuda/host/tensor_map.h"
#include "vitrum/cuda/norm/batch_norm.h"
#include "vitrum/cuda/primitives/device.cuh"
#include "vitrum/cuda/primitives/tma.cuh"
#include "vitrum/cuda/primitives/wgmma.cuh"
// Written in what is above.
#include "vitrum/cuda/conv/tile.cuh"

namespace vitrum::cuda {
namespace {

using namespace conv_tile;

constexpr int kLayThreads = 256, kSide = 32, kLines = 8;

template <int kColumns, int kTaps, Ends kEnds>
__global__ void __launch_bounds__(kThreads, conv_tile::Shape<kColumns, kTaps>::kBlocks)
    convolve_boxes([[maybe_unused]] const __grid_constant__ Args g) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ __align__(1024) std::byte memory[];
  work<kColumns, kTaps, kEnds>(g, *reinterpret_cast<Shared<kColumns, kTaps>*>(memory));
#endif
}

// (out, channels, taps) -> (out, taps, channels)
__global__ void __launch_bounds__(kLayThreads)
    lay_taps(const bf16* w, bf16* to, int channels, int taps, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kLayThreads + threadIdx.x;
  if (i >= count) return;
  const int64_t row = i / channels, out = row / taps;
  to[i] = w[(out * channels + i % channels) * taps + row % taps];
}
// (rows, columns) -> (columns, rows), by squares
__global__ void __launch_bounds__(kSide* kLines)
    turn_round(const bf16* w, bf16* to, int rows, int columns) {
  __shared__ bf16 square[kSide][kSide + 2];
  const int left = static_cast<int>(blockIdx.x) * kSide, top = static_cast<int>(blockIdx.y) * kSide;
  const int x = static_cast<int>(threadIdx.x);
  for (int y = static_cast<int>(threadIdx.y); y < kSide; y += kLines)
    if (top + y < rows && left + x < columns)
      square[y][x] = w[static_cast<int64_t>(top + y) * columns + left + x];
  __syncthreads();
  for (int y = static_cast<int>(threadIdx.y); y < kSide; y += kLines)
    if (left + y < columns && top + x < rows)
      to[static_cast<int64_t>(left + y) * rows + top + x] = square[x][y];
}

// ---- lowering ----

// Calls body(kernel, bytes of shared memory, blocks an SM holds).
template <class Body>
void with_kernel(const Product& p, const Body& body) {
  const auto call = [&](auto columns, auto of_stage) {
    constexpr int kColumns = decltype(columns)::value, kTaps = decltype(of_stage)::value;
    const auto kernel = p.args.scale     ? convolve_boxes<kColumns, kTaps, Ends::kFollowed>
                        : p.args.moments ? convolve_boxes<kColumns, kTaps, Ends::kMoments>
                                         : convolve_boxes<kColumns, kTaps, Ends::kPlain>;
    body(kernel, sizeof(Shared<kColumns, kTaps>), conv_tile::Shape<kColumns, kTaps>::kBlocks);
  };
  constexpr std::integral_constant<int, 1> kSingle{};
  constexpr std::integral_constant<int, kStackedTaps> kStack{};
  if (p.stacked) return call(std::integral_constant<int, kStackedColumns>{}, kStack);
  if (p.wide == 64) return call(std::integral_constant<int, 64>{}, kSingle);
  if (p.wide == 128) return call(std::integral_constant<int, 128>{}, kSingle);
  call(std::integral_constant<int, 256>{}, kSingle);
}

}  // namespace

void conv_tile::allow(const Product& p) {
  with_kernel(p, [](auto* kernel, size_t bytes, int) { allow_shared_memory(kernel, bytes); });
}
void conv_tile::launch(const Product& p, int processors, cudaStream_t stream) {
  with_kernel(p, [&](auto* kernel, size_t bytes, int blocks) {
    const int clusters = clusters_of(p, processors, blocks);
    launch_cluster(kernel, clusters * kCluster, kCluster, kThreads, bytes, stream,
                   /*early=*/false, p.args);
  });
}

// Two tables of columns, and the weights as they are laid.
static int64_t table_room(int64_t out) { return (out + 7) / 8 * 8; }
static size_t scratch_bytes(const TensorView& w) {
  return static_cast<size_t>(2 * table_room(w.shape[0])) * sizeof(float) + w.bytes();
}

MomentsPlan plan_moments(CudaBackend& cuda, const Conv2d& op, const Operands& io) {
  const ConvTask task = conv_task(op, io);
  if (!leaves_moments(cuda.card(), task)) return {};
  if (task.pixel_by_pixel()) return {small_k_moments_chunks(cuda, task), 0};
  const Product p =
      forward_product(cuda.card(), task, io.in[Conv2d::kX].data, io.in[Conv2d::kWeight].data,
                      static_cast<bf16*>(io.out[Conv2d::kY].data));
  return {moments_chunks(p, cuda.processors()), scratch_bytes(io.in[Conv2d::kWeight])};
}

KernelPtr lower_with_moments(CudaBackend& cuda, const Conv2d& op, const Operands& io,
                             const ConvMoments& moments) {
  const ConvTask task = conv_task(op, io);
  return task.pixel_by_pixel() ? lower_small_k(cuda, op, task, io, moments)
                               : lower_tile(cuda, op, task, io, moments);
}

KernelPtr lower_tile(CudaBackend& cuda, const Conv2d& op, const ConvTask& given, const Operands& io,
                     const ConvMoments& moments) {
  const auto& [stride, padding, eps, act] = op;
  const ConvTask task = given.flattened();
  const TensorView w = io.in[Conv2d::kWeight], y = io.out[Conv2d::kY];
  const int64_t taps = task.kernel * task.kernel, count = w.shape.numel(),
                room = table_room(task.out);
  auto* const tables = static_cast<float*>(cuda.scratch(scratch_bytes(w)));
  bf16* const laid =
      taps == 1 ? static_cast<bf16*>(w.data) : reinterpret_cast<bf16*>(tables + 2 * room);
  Product p =
      forward_product(cuda.card(), task, io.in[Conv2d::kX].data, laid, static_cast<bf16*>(y.data));
  p.args.moments = moments.partials, p.args.weight = moments.weight;
  FrozenAffine affine;
  if (operand(io.in, Conv2d::kNormWeight)) {
    affine = {io.in[Conv2d::kNormWeight],
              io.in[Conv2d::kNormBias],
              io.in[Conv2d::kMean],
              io.in[Conv2d::kVar],
              eps,
              tables,
              tables + room};
    p.args.scale = affine.scale, p.args.shift = affine.shift;
    p.args.skip = static_cast<const bf16*>(operand(io.in, Conv2d::kSkip).data);
    p.args.relu = act == Act::kRelu;
  }
  allow(p);
  return named("tile", make_kernel([=, from = static_cast<const bf16*>(w.data),
                                    processors = cuda.processors(), stream = cuda.stream()] {
                 if (laid != from)
                   lay_taps<<<blocks_for(count, kLayThreads), kLayThreads, 0, stream>>>(
                       from, laid, static_cast<int>(task.channels), static_cast<int>(taps), count);
                 if (affine.scale) launch_affine(affine, stream);
                 launch(p, processors, stream);
               }));
}

KernelPtr lower_tile_input_gradient(CudaBackend& cuda, const ConvTask& task, const Operands& io) {
  const TensorView w = io.in[Conv2dBwd::kWeight], dx = io.out[Conv2dBwd::kDx];
  auto* const laid = static_cast<bf16*>(cuda.scratch(w.bytes()));
  const std::vector<Product> products = input_gradient_products(
      cuda.card(), task, io.in[Conv2dBwd::kDy].data, laid, static_cast<bf16*>(dx.data));
  for (const Product& p : products) allow(p);
  const bool gaps = static_cast<int64_t>(products.size()) < task.stride * task.stride;
  const int rows = static_cast<int>(task.out),
            columns = static_cast<int>(task.channels * task.kernel * task.kernel);
  const dim3 squares(blocks_for(columns, kSide), blocks_for(rows, kSide)), block(kSide, kLines);
  return named("tile", make_kernel([=, from = static_cast<const bf16*>(w.data),
                                    processors = cuda.processors(), stream = cuda.stream()] {
                 turn_round<<<squares, block, 0, stream>>>(from, laid, rows, columns);
                 if (gaps)
                   check(cudaMemsetAsync(dx.data, 0, dx.bytes(), stream), "clearing a gradient");
                 for (const Product& p : products) launch(p, processors, stream);
               }));
}

}  // namespace vitrum::cuda
