// Backward through two linear layers with GELU between them: the gradient of what lies between is
// never stored.
#include <algorithm>

#include "vitrum/cuda/device.cuh"
#include "vitrum/cuda/linear_act.h"

namespace vitrum::cuda {
namespace {

// to (columns, rows) = from (rows, columns)^T
constexpr int kPatch = 32;
__global__ void __launch_bounds__(kPatch * 8)
    transpose(const bf16* from, bf16* to, int rows, int columns) {
  __shared__ bf16 patch[kPatch][kPatch + 2];
  const int top = blockIdx.y * kPatch, left = blockIdx.x * kPatch, x = threadIdx.x;
  for (int y = threadIdx.y; y < kPatch && top + y < rows; y += 8)
    if (left + x < columns) patch[y][x] = from[int64_t{top + y} * columns + left + x];
  __syncthreads();
  for (int y = threadIdx.y; y < kPatch && left + y < columns; y += 8)
    if (top + x < rows) to[int64_t{left + y} * rows + top + x] = patch[x][y];
}

KernelPtr lower_transpose(CudaBackend& cuda, const TensorView& from, const TensorView& to) {
  const auto rows = static_cast<int>(from.shape[0]), columns = static_cast<int>(from.shape[1]);
  return launch_kernel(cuda, transpose, dim3(blocks_for(columns, kPatch), blocks_for(rows, kPatch)),
                       dim3(kPatch, 8), 0, static_cast<const bf16*>(from.data),
                       static_cast<bf16*>(to.data), rows, columns);
}

TensorView rows_of(const TensorView& view, int64_t first, int64_t count) {
  const int64_t columns = view.shape[-1];
  auto* const data = static_cast<std::byte*>(view.data);
  return {data + static_cast<size_t>(first * columns) * size_of(view.dtype),
          {count, columns},
          view.dtype};
}

size_t turned_bytes(const TensorView& w) { return (w.bytes() + 255) / 256 * 256; }

}  // namespace

bool has_gradient_through(const CudaBackend& cuda, const LinearBwd& behind, const Operands& io,
                          const LinearBwd& before, const Operands& before_io) {
  const TensorView &dy = io.in[0], &w = io.in[2], saved = operand(before_io.in, 3);
  if (behind.act != Act::kNone || behind.drop != 0) return false;
  if (before.act != Act::kGelu || before.drop != 0) return false;
  for (const TensorView& view : {dy, w, io.out[0], saved, before_io.in[2]})
    if (view.dtype != DType::kBF16) return false;
  return has_shallow_gradient(cuda, dy, w);
}

LinearParts gradient_through(CudaBackend& cuda, const Operands& behind, const Operands& before) {
  const TensorView dy = behind.in[0], w = behind.in[2], pre = before.in[3];
  const auto to_d = [=, &cuda, dbias = operand(before.out, 2).f32()](
                        const TensorView& d, int64_t first, std::byte* scratch) {
    const int64_t rows = d.shape[0];
    const GradientThrough work{.dy = rows_of(dy, first, rows),
                               .turned = {scratch, {w.shape[1], w.shape[0]}, w.dtype},
                               .pre = rows_of(pre, first, rows),
                               .d = d,
                               .dbias = dbias,
                               .partials = reinterpret_cast<float*>(scratch + turned_bytes(w))};
    std::shared_ptr<Kernel> turn = lower_transpose(cuda, w, work.turned);
    std::shared_ptr<Kernel> multiply = lower_shallow_gradient(cuda, work);
    return make_kernel([turn, multiply] { turn->launch(), multiply->launch(); });
  };
  return {.to_d = to_d,
          .scratch = turned_bytes(w) + static_cast<size_t>(shallow_partials(cuda)) * sizeof(float)};
}

}  // namespace vitrum::cuda
