#include "vitrum/cpu/backend.h"

namespace vitrum::cpu {
namespace {

LossArgs loss_args(const TensorView& logits, const TensorView& target, const TensorView& weight,
                   const LossForm& form) {
  const bool labels = target.dtype == DType::kI32;
  return {.logits = floats(logits),
          .labels = labels ? target.i32() : nullptr,
          .target = labels ? nullptr : f32_only(target),
          .weight = f32_only(weight),
          .classes = logits.shape.numel() / logits.shape[0],
          .form = form};
}

Chunks chunk_logits(const TensorView& logits) {
  return chunk_rows(logits.shape[0], logits.shape.numel() / logits.shape[0]);
}

}  // namespace

KernelPtr lower(CpuBackend& cpu, const CrossEntropy& op, const Operands& io) {
  const auto& [form] = op;
  const LossArgs args = loss_args(io.in[CrossEntropy::kLogits], io.in[CrossEntropy::kTarget],
                                  io.in[CrossEntropy::kSampleWeight], form);
  const Chunks chunks = chunk_logits(io.in[CrossEntropy::kLogits]);
  cpu.reserve_shared(static_cast<size_t>(chunks.total) * sizeof(double));
  return make_kernel([&cpu, args, chunks, loss = f32_only(io.out[CrossEntropy::kLoss]),
                      lse = f32_only(operand(io.out, CrossEntropy::kLse))] {
    auto* each = reinterpret_cast<double*>(cpu.shared_scratch());
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      cpu.simd().loss->forward(args, first, last, each, lse);
    });
    double total = 0;
    for (int64_t b = 0; b < chunks.total; ++b) total += each[b];
    if (loss) *loss = static_cast<float>(total);
  });
}

KernelPtr lower(CpuBackend& cpu, const CrossEntropyBwd& op, const Operands& io) {
  const auto& [form] = op;
  const LossArgs args = loss_args(io.in[CrossEntropyBwd::kLogits], io.in[CrossEntropyBwd::kTarget],
                                  io.in[CrossEntropyBwd::kSampleWeight], form);
  const Chunks chunks = chunk_logits(io.in[CrossEntropyBwd::kLogits]);
  return make_kernel([&cpu, args, chunks, lse = f32_only(operand(io.in, CrossEntropyBwd::kLse)),
                      dlogits = floats(io.out[CrossEntropyBwd::kDlogits])] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      cpu.simd().loss->backward(args, lse, dlogits, first, last);
    });
  });
}

KernelPtr lower(CpuBackend& cpu, const NoAttributes<Argmax>&, const Operands& io) {
  const Chunks chunks = chunk_logits(io.in[Argmax::kX]);
  return make_kernel([&cpu, chunks, classes = io.in[Argmax::kX].shape[-1],
                      x = floats(io.in[Argmax::kX]), y = io.out[Argmax::kY].i32()] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      cpu.simd().loss->argmax(x, y, classes, first, last);
    });
  });
}

KernelPtr lower(CpuBackend& cpu, const LogSoftmax& op, const Operands& io) {
  const auto& [tau] = op;
  const Chunks chunks = chunk_logits(io.in[LogSoftmax::kX]);
  return make_kernel([&cpu, chunks, tau = tau, classes = io.in[LogSoftmax::kX].shape[-1],
                      x = floats(io.in[LogSoftmax::kX]), y = floats(io.out[LogSoftmax::kY])] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      cpu.simd().loss->log_softmax(x, tau, y, classes, first, last);
    });
  });
}

// Of what has no right answers.
static KernelPtr count_images(const Operands& io) {
  return make_kernel([images = io.in[TrainMetrics::kSampleWeight].shape.numel(),
                      weight = f32_only(io.in[TrainMetrics::kSampleWeight]),
                      loss = f32_only(io.in[TrainMetrics::kLoss]),
                      totals = io.out[TrainMetrics::kSums].f64()] {
    totals[0] += static_cast<double>(*loss);
    totals[2] +=
        static_cast<double>(std::count_if(weight, weight + images, [](float w) { return w > 0; }));
  });
}

KernelPtr lower(CpuBackend& cpu, const NoAttributes<TrainMetrics>&, const Operands& io) {
  if (!io.in[TrainMetrics::kLogits]) return count_images(io);
  const LossArgs args = loss_args(io.in[TrainMetrics::kLogits], io.in[TrainMetrics::kTarget],
                                  io.in[TrainMetrics::kSampleWeight], {});
  const Chunks chunks = chunk_logits(io.in[TrainMetrics::kLogits]);
  cpu.reserve_shared(static_cast<size_t>(chunks.count()) * 2 * sizeof(double));
  return make_kernel([&cpu, args, chunks, loss = f32_only(io.in[TrainMetrics::kLoss]),
                      totals = io.out[TrainMetrics::kSums].f64()] {
    auto* counts = reinterpret_cast<double*>(cpu.shared_scratch());
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t chunk, int) {
      cpu.simd().loss->correct(args, first, last, counts + 2 * chunk);
    });
    totals[0] += static_cast<double>(*loss);
    for (int64_t i = 0; i < chunks.count(); ++i)
      totals[1] += counts[2 * i], totals[2] += counts[2 * i + 1];
  });
}

}  // namespace vitrum::cpu
