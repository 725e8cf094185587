// Gated activations.
#include "vitrum/cpu/backend.h"

namespace vitrum::cpu {

KernelPtr lower(CpuBackend& cpu, const Gate& op, const Operands& io) {
  const auto& [act] = op;
  const TensorView &x = io.in[Gate::kX], &y = io.out[Gate::kY];
  return make_kernel([&cpu, act = act, x = floats(x), y = floats(y), width = y.shape[-1],
                      chunks = chunk_rows(y.shape.rows(), y.shape[-1])] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      cpu.simd().gate->forward(act, x, y, width, first, last);
    });
  });
}

KernelPtr lower(CpuBackend& cpu, const GateBwd& op, const Operands& io) {
  const auto& [act] = op;
  const TensorView &dy = io.in[GateBwd::kDy], &x = io.in[GateBwd::kX], &dx = io.out[GateBwd::kDx];
  return make_kernel([&cpu, act = act, dy = floats(dy), x = floats(x), dx = floats(dx),
                      width = dy.shape[-1], chunks = chunk_rows(dy.shape.rows(), dy.shape[-1])] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      cpu.simd().gate->backward(act, dy, x, dx, width, first, last);
    });
  });
}

}  // namespace vitrum::cpu
