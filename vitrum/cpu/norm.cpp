#include "vitrum/cpu/backend.h"

namespace vitrum::cpu {
namespace {

KernelPtr forward(CpuBackend& cpu, const LayerNormArgs& args, int64_t rows) {
  cpu.reserve_per_thread(static_cast<size_t>(args.width + 15) / 16 * 16 * sizeof(float));
  // Of one image, chunks small enough that threads finish together.
  constexpr int64_t kChunks = 16, kLeast = 2048;
  const Chunks chunks{rows, std::max((rows + kChunks - 1) / kChunks, kLeast / args.width + 1)};
  return make_kernel([&cpu, args, chunks] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int thread) {
      cpu.simd().norm->forward(args, first, last,
                               reinterpret_cast<float*>(cpu.thread_scratch(thread)));
    });
  });
}

}  // namespace

KernelPtr lower(CpuBackend& cpu, const LayerNorm& op, const Operands& io) {
  const TensorView mean = operand(io.out, 1), rstd = operand(io.out, 2);
  const LayerNormArgs args{.a = floats(io.in[0]),
                           .b = {},
                           .sum = {},
                           .y = floats(io.out[0]),
                           .w = f32_only(io.in[1]),
                           .bias = f32_only(operand(io.in, 2)),
                           .mean = f32_only(mean),
                           .rstd = f32_only(rstd),
                           .width = io.in[0].shape[-1],
                           .eps = op.eps};
  return forward(cpu, args, io.in[0].shape.rows());
}

KernelPtr lower(CpuBackend& cpu, const AddLayerNorm& op, const Operands& io) {
  const TensorView mean = operand(io.out, 2), rstd = operand(io.out, 3);
  const LayerNormArgs args{.a = floats(io.in[0]),
                           .b = floats(io.in[1]),
                           .sum = floats(io.out[0]),
                           .y = floats(operand(io.out, 1)),
                           .w = f32_only(io.in[2]),
                           .bias = f32_only(operand(io.in, 3)),
                           .mean = f32_only(mean),
                           .rstd = f32_only(rstd),
                           .width = io.in[0].shape[-1],
                           .eps = op.eps};
  return forward(cpu, args, io.in[0].shape.rows());
}

// Each chunk of rows sums its own dw and dbias, one after the other in shared scratch.
KernelPtr lower(CpuBackend& cpu, const LayerNormBwd&, const Operands& io) {
  const LayerNormBwdArgs args{.dy = floats(io.in[0]),
                              .x = floats(io.in[1]),
                              .dskip = floats(operand(io.in, 5)),
                              .dx = floats(io.out[0]),
                              .w = f32_only(io.in[2]),
                              .mean = f32_only(io.in[3]),
                              .rstd = f32_only(io.in[4]),
                              .width = io.in[0].shape[-1]};
  float *dw = f32_only(operand(io.out, 1)), *dbias = f32_only(operand(io.out, 2));
  const Chunks chunks = chunk_rows(io.in[0].shape.rows(), args.width, /*most=*/32);
  if (dw || dbias)
    cpu.reserve_shared(static_cast<size_t>(chunks.count() * 2 * args.width) * sizeof(float));
  return make_kernel([&cpu, args, dw, dbias, chunks] {
    const int64_t width = args.width;
    auto* sums = dw || dbias ? reinterpret_cast<float*>(cpu.shared_scratch()) : nullptr;
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t chunk, int) {
      float* mine = sums ? sums + chunk * 2 * width : nullptr;
      cpu.simd().norm->backward(args, first, last, mine, mine ? mine + width : nullptr);
    });
    const auto accumulate = cpu.simd().elementwise->accumulate;
    if (dw) accumulate(dw, sums, chunks.count(), 2 * width, width);
    if (dbias) accumulate(dbias, sums + width, chunks.count(), 2 * width, width);
  });
}

}  // namespace vitrum::cpu
