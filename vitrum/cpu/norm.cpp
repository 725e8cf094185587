#include "vitrum/core/ceil_div.h"
#include "vitrum/cpu/backend.h"

namespace vitrum::cpu {
namespace {

KernelPtr forward(CpuBackend& cpu, const LayerNormArgs& args, int64_t rows) {
  cpu.reserve_per_thread(static_cast<size_t>(args.width + 15) / 16 * 16 * sizeof(float));
  // Of one image, chunks small enough that threads finish together.
  constexpr int64_t kChunks = 16, kLeast = 2048;
  const Chunks chunks{rows, std::max(ceil_div(rows, kChunks), kLeast / args.width + 1)};
  return make_kernel([&cpu, args, chunks] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int thread) {
      cpu.simd().norm->forward(args, first, last,
                               reinterpret_cast<float*>(cpu.thread_scratch(thread)));
    });
  });
}

}  // namespace

KernelPtr lower(CpuBackend& cpu, const LayerNorm& op, const Operands& io) {
  const auto& [eps] = op;
  const TensorView mean = operand(io.out, LayerNorm::kMean),
                   rstd = operand(io.out, LayerNorm::kRstd);
  const LayerNormArgs args{.a = floats(io.in[LayerNorm::kX]),
                           .b = {},
                           .sum = {},
                           .y = floats(io.out[LayerNorm::kY]),
                           .w = f32_only(io.in[LayerNorm::kWeight]),
                           .bias = f32_only(operand(io.in, LayerNorm::kBias)),
                           .mean = f32_only(mean),
                           .rstd = f32_only(rstd),
                           .width = io.in[LayerNorm::kX].shape[-1],
                           .eps = eps};
  return forward(cpu, args, io.in[LayerNorm::kX].shape.rows());
}

KernelPtr lower(CpuBackend& cpu, const AddLayerNorm& op, const Operands& io) {
  const auto& [eps] = op;
  const TensorView mean = operand(io.out, AddLayerNorm::kMean),
                   rstd = operand(io.out, AddLayerNorm::kRstd);
  const LayerNormArgs args{.a = floats(io.in[AddLayerNorm::kA]),
                           .b = floats(io.in[AddLayerNorm::kB]),
                           .sum = floats(io.out[AddLayerNorm::kSum]),
                           .y = floats(operand(io.out, AddLayerNorm::kY)),
                           .w = f32_only(io.in[AddLayerNorm::kWeight]),
                           .bias = f32_only(operand(io.in, AddLayerNorm::kBias)),
                           .mean = f32_only(mean),
                           .rstd = f32_only(rstd),
                           .width = io.in[AddLayerNorm::kA].shape[-1],
                           .eps = eps};
  return forward(cpu, args, io.in[AddLayerNorm::kA].shape.rows());
}

// Each chunk of rows sums its own dw and dbias, one after the other in shared scratch.
KernelPtr lower(CpuBackend& cpu, const NoAttributes<LayerNormBwd>&, const Operands& io) {
  const LayerNormBwdArgs args{.dy = floats(io.in[LayerNormBwd::kDy]),
                              .x = floats(io.in[LayerNormBwd::kX]),
                              .dskip = floats(operand(io.in, LayerNormBwd::kDskip)),
                              .dx = floats(io.out[LayerNormBwd::kDx]),
                              .w = f32_only(io.in[LayerNormBwd::kWeight]),
                              .mean = f32_only(io.in[LayerNormBwd::kMean]),
                              .rstd = f32_only(io.in[LayerNormBwd::kRstd]),
                              .width = io.in[LayerNormBwd::kDy].shape[-1]};
  float *dw = f32_only(operand(io.out, LayerNormBwd::kDweight)),
        *dbias = f32_only(operand(io.out, LayerNormBwd::kDbias));
  const Chunks chunks = chunk_rows(io.in[LayerNormBwd::kDy].shape.rows(), args.width, /*most=*/32);
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
