// Rotary positions.
#include "vitrum/cpu/backend.h"

namespace vitrum::cpu {

KernelPtr lower(CpuBackend& cpu, const Rotate& op, const Operands& io) {
  const auto& [heads, prefix, halves, inverse] = op;
  const Shape& shape = io.in[Rotate::kQkv].shape;
  const RotateArgs args{.x = floats(io.in[Rotate::kQkv]),
                        .y = floats(io.out[Rotate::kY]),
                        .table = f32_only(io.in[Rotate::kTable]),
                        .tokens = shape[1],
                        .prefix = prefix,
                        .heads = heads,
                        .head = shape[2] / 3 / heads,
                        .halves = halves,
                        .inverse = inverse};
  return make_kernel([&cpu, args, chunks = chunk_rows(shape[0] * shape[1], shape[2])] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      cpu.simd().rotate->rows(args, first, last);
    });
  });
}

}  // namespace vitrum::cpu
