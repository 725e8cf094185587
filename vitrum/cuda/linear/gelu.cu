// A linear layer with bias and GELU in one pass (sm_90): what the product leaves in registers is
// activated there, instead of being written, read and written again.
#include "vitrum/cuda/linear/gelu.h"
#include "vitrum/cuda/linear/tile_launch.cuh"
#include "vitrum/cuda/primitives/activation.cuh"

// For other cards the kernels are empty, and nothing uses what is here.
#pragma nv_diag_suppress 177

namespace vitrum::cuda {
namespace {

using namespace tile;

struct Activated {
  static constexpr int kRegisters = 232, kOthers = 40;
  struct Table {};
  using Held = Raw8<bf16>[kParts];

  const bf16* bias;  // may be null
  bf16 *pre, *y;     // pre: what GELU sees; may be null
  int rows, columns;

  __device__ void fill(Table&, int, int) const {}
  __device__ __forceinline__ void hold(Held& held, int, int column) const {
#pragma unroll
    for (int part = 0; part < kParts; ++part)
      held[part] = bias ? load_raw(bias + column + 32 * part) : Raw8<bf16>{};
  }
  __device__ __forceinline__ void finish(const Sums& d, const Held& held, const Table&, int row,
                                         int column) const {
    const int64_t to = int64_t{row} * columns + column, below = int64_t{8} * columns;
    bf16 *const to_y[2] = {y + to, y + to + below}, *const to_pre[2] = {pre + to, pre + to + below};
    const bool inside[2] = {row < rows, row + 8 < rows};
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const Eight b = unpack(held[part]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        Eight v;
#pragma unroll
        for (int i = 0; i < 8; ++i) v.v[i] = d[shuffled_sum(part, half, i)] + b.v[i];
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

bool for_own_product(const CudaBackend& cuda, const Linear& op, const Operands& io) {
  const TensorView &x = io.in[0], &w = io.in[1], &y = io.out[0], pre = operand(io.out, 1);
  if (!has_copy_engine(cuda) || op.drop != 0 || !y) return false;
  if (x.dtype != DType::kBF16 || w.dtype != DType::kBF16 || y.dtype != DType::kBF16) return false;
  return x.shape.rows() < INT32_MAX / 2 &&
         common_alignment({x, w, y, pre, operand(io.in, 2)}) == 16;
}

bool has_linear_act(const CudaBackend& cuda, const Linear& op, const Operands& io) {
  constexpr int64_t kLeastDepth = 384;  // with less, memory is what takes the time
  const TensorView &x = io.in[0], &w = io.in[1];
  return op.act == Act::kGelu && w.shape[0] % kColumns == 0 && w.shape[1] >= kLeastDepth &&
         enough(cuda, x.shape.rows(), w.shape[0]) && for_own_product(cuda, op, io);
}

KernelPtr lower_linear_act(CudaBackend& cuda, const Operands& io) {
  const TensorView &x = io.in[0], &w = io.in[1];
  return tile::launch(cuda, x, w,
                      Activated{.bias = static_cast<const bf16*>(operand(io.in, 2).data),
                                .pre = static_cast<bf16*>(operand(io.out, 1).data),
                                .y = static_cast<bf16*>(io.out[0].data),
                                .rows = static_cast<int>(x.shape.rows()),
                                .columns = static_cast<int>(w.shape[0])});
}

}  // namespace vitrum::cuda
