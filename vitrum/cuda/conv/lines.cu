// Launch of the convolutions of lines.cuh: some images at a time, whose lines stay in the cache.
#include <optional>
#include <vector>

#include "vitrum/cuda/conv/tile.h"
#include "vitrum/cuda/host/tensor_map.h"
#include "vitrum/cuda/norm/batch_norm.h"
#include "vitrum/cuda/primitives/device.cuh"
#include "vitrum/cuda/primitives/tma.cuh"
#include "vitrum/cuda/primitives/wgmma.cuh"
// Written in what is above.
#include "vitrum/cuda/conv/lines.cuh"

namespace vitrum::cuda {
namespace {

using namespace conv_lines;

__global__ void __launch_bounds__(kThreads)
    lay_lines(Lines lines, const bf16* x, bf16* to, int items) {
  const int item = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (item < items) lay(lines, x, to, item);
}
__global__ void __launch_bounds__(kThreads)
    lay_weights(Lines lines, const bf16* w, bf16* to, int64_t items) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (item < items) lay_weight(lines, w, to, item);
}
__global__ void __launch_bounds__(kThreads)
    add_weights(Lines lines, const float* partials, int splits, int64_t items, float* dw) {
  const int64_t item = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (item < items) add_weight(lines, partials, splits, items, dw, item);
}

// A batch by chunks of images, and the rest of it.
struct Chunks {
  ConvTask full, rest;  // rest: may have no images
  Lines lines;
  int64_t images, weights;  // in all; numbers laid out

  explicit Chunks(const ConvTask& task)
      : full(task), rest(task), lines(lines_of(task)), images(task.images) {
    constexpr int64_t kBytes = int64_t{32} << 20;
    weights = task.out * lines.taps() * kPixel;
    full.images = std::clamp<int64_t>(kBytes / (numbers(1) * 2), 1, images);
    rest.images = images % full.images;
  }
  int64_t numbers(int64_t of) const { return of * lines.pairs * lines.across * kPixel; }
  size_t laid_bytes() const { return static_cast<size_t>(numbers(full.images)) * sizeof(bf16); }

  // body(first image, whether it is the rest) once their lines are laid out.
  template <class Body>
  void for_each(const bf16* x, bf16* laid, cudaStream_t stream, const Body& body) const {
    for (int64_t first = 0; first < images; first += full.images) {
      const bool last = images - first < full.images;
      const int64_t items = numbers((last ? rest : full).images) / 8;
      lay_lines<<<blocks_for(items, kThreads), kThreads, 0, stream>>>(
          lines, x + first * full.height * full.width * full.channels, laid,
          static_cast<int>(items));
      body(first, last);
    }
  }
};

}  // namespace

KernelPtr lower_lines(CudaBackend& cuda, const Conv2d& op, const ConvTask& task,
                      const Operands& io) {
  const auto& [stride, padding, eps, act] = op;
  const Chunks chunks(task);
  const int64_t room = (task.out + 7) / 8 * 8;
  const size_t tables_bytes = static_cast<size_t>(2 * room) * sizeof(float),
               weights_bytes = static_cast<size_t>(chunks.weights) * sizeof(bf16);
  auto* const tables =
      static_cast<float*>(cuda.scratch(tables_bytes + weights_bytes + chunks.laid_bytes()));
  auto* const weights = reinterpret_cast<bf16*>(tables + 2 * room);
  bf16* const laid = weights + chunks.weights;
  FrozenAffine affine;
  if (operand(io.in, Conv2d::kNormWeight))
    affine = {io.in[Conv2d::kNormWeight],
              io.in[Conv2d::kNormBias],
              io.in[Conv2d::kMean],
              io.in[Conv2d::kVar],
              eps,
              tables,
              tables + room};
  const auto product_of = [&](const ConvTask& some) {
    conv_tile::Product p = forward_product(cuda.card(), some, laid, weights,
                                           static_cast<bf16*>(io.out[Conv2d::kY].data));
    p.args.scale = affine.scale, p.args.shift = affine.shift;
    p.args.skip = static_cast<const bf16*>(operand(io.in, Conv2d::kSkip).data);
    p.args.relu = affine.scale && act == Act::kRelu;
    conv_tile::allow(p);
    return p;
  };
  const conv_tile::Product full = product_of(chunks.full);
  const auto rest = chunks.rest.images ? std::optional(product_of(chunks.rest)) : std::nullopt;
  return named("lines", make_kernel([=, x = static_cast<const bf16*>(io.in[Conv2d::kX].data),
                                     w = static_cast<const bf16*>(io.in[Conv2d::kWeight].data),
                                     processors = cuda.processors(), stream = cuda.stream()] {
                 lay_weights<<<blocks_for(chunks.weights, kThreads), kThreads, 0, stream>>>(
                     chunks.lines, w, weights, chunks.weights);
                 if (affine.scale) launch_affine(affine, stream);
                 chunks.for_each(x, laid, stream, [&](int64_t first, bool last) {
                   conv_tile::Product p = last ? *rest : full;
                   p.args.y += first * p.args.image_apart;
                   if (p.args.skip) p.args.skip += first * p.args.image_apart;
                   conv_tile::launch(p, processors, stream);
                 });
               }));
}

KernelPtr lower_lines_weight_gradient(CudaBackend& cuda, const ConvTask& task, const Operands& io) {
  const Chunks chunks(task);
  const auto plan_of = [&](const ConvTask& some) { return gradient_plan(cuda.card(), some); };
  const conv_tile_dw::Plan full = plan_of(chunks.full),
                           rest = chunks.rest.images ? plan_of(chunks.rest) : full;
  const int64_t floats = divide_up(std::max(full.floats, rest.floats), 8) * 8;
  auto* const partials = static_cast<float*>(
      cuda.scratch(static_cast<size_t>(floats) * sizeof(float) + chunks.laid_bytes()));
  auto* const laid = reinterpret_cast<bf16*>(partials + floats);
  const auto* const dy = static_cast<const bf16*>(io.in[Conv2dBwd::kDy].data);
  std::vector<conv_tile_dw::Args> sums;  // of every chunk
  for (int64_t first = 0; first < chunks.images; first += chunks.full.images) {
    const bool last = chunks.images - first < chunks.full.images;
    const bf16* const from = dy + first * task.down() * task.across() * task.out;
    sums.push_back(
        gradient_args(last ? chunks.rest : chunks.full, last ? rest : full, from, laid, partials));
  }
  conv_tile_dw::allow();
  return named("lines", make_kernel([=, x = static_cast<const bf16*>(io.in[Conv2dBwd::kX].data),
                                     dw = io.out[Conv2dBwd::kDweight].f32(),
                                     processors = cuda.processors(), stream = cuda.stream()] {
                 chunks.for_each(x, laid, stream, [&](int64_t first, bool last) {
                   const auto chunk = static_cast<size_t>(first / chunks.full.images);
                   const auto splits = static_cast<int>((last ? rest : full).split.splits);
                   conv_tile_dw::launch(sums[chunk], processors, stream);
                   add_weights<<<blocks_for(chunks.weights, kThreads), kThreads, 0, stream>>>(
                       chunks.lines, partials, splits, chunks.weights, dw);
                 });
               }));
}

}  // namespace vitrum::cuda
