// Linear layer with bias and GELU in one kernel (sm_90a): the GEMM of linear/tile.cuh with a GELU
// epilogue, instead of a pass of its own over the result.
#include "vitrum/cuda/linear/gelu.h"
#include "vitrum/cuda/linear/tile_launch.cuh"
#include "vitrum/cuda/primitives/activation.cuh"

// For other cards the kernels are empty, and nothing uses what is here.
#pragma nv_diag_suppress 177

namespace vitrum::cuda {
namespace {

using namespace tile;

struct GeluEpilogue {
  static constexpr int kConsumerRegisters = 232, kProducerRegisters = 40;
  struct Table {};
  using Prefetched = Raw8<bf16>[kParts];

  const bf16* bias;  // may be null
  bf16 *pre, *y;     // pre: the pre-activations; may be null
  int rows, columns;

  __device__ void fill(Table&, int, int) const {}
  __device__ __forceinline__ void prefetch(Prefetched& prefetched, int, int column) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      prefetched[part] = bias ? load_raw(bias + column + 32 * part) : Raw8<bf16>{};
  }
  __device__ __forceinline__ void finish(const Accumulators& d, const Prefetched& prefetched,
                                         const Table&, int row, int column) const {
    const int64_t to = int64_t{row} * columns + column, below = int64_t{8} * columns;
    bf16 *const to_y[2] = {y + to, y + to + below}, *const to_pre[2] = {pre + to, pre + to + below};
    const bool inside[2] = {row < rows, row + 8 < rows};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const Eight b = unpack(prefetched[part]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Eight v;
#pragma unroll
        for (int i = 0; i < 8; ++i) v.v[i] = d[permuted_accumulator(part, half, i)] + b.v[i];
        const Raw8<bf16> raw = pack<bf16>(v);
        store_if(inside[half] && pre, to_pre[half] + 32 * part, raw);
        v = unpack(raw);
#pragma unroll
        for (int i = 0; i < 8; ++i) v.v[i] = activate<Act::kGelu, bf16>(v.v[i]);
        store_if(inside[half], to_y[half] + 32 * part, pack<bf16>(v));
      }
    }
  }
};

}  // namespace

KernelPtr lower_gelu_tile(CudaBackend& cuda, const Operands& io) {
  const TensorView &x = io.in[Linear::kX], &w = io.in[Linear::kWeight];
  return tile::launch(
      cuda, x, w,
      GeluEpilogue{.bias = static_cast<const bf16*>(operand(io.in, Linear::kBias).data),
                   .pre = static_cast<bf16*>(operand(io.out, Linear::kSaved).data),
                   .y = static_cast<bf16*>(io.out[Linear::kY].data),
                   .rows = static_cast<int>(x.shape.rows()),
                   .columns = static_cast<int>(w.shape[0])});
}

}  // namespace vitrum::cuda
