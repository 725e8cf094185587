#include <cmath>

#include "vitrum/cpu/backend.h"

namespace vitrum::cpu {
namespace {

constexpr int64_t kRange = 16 * 1024;  // elements updated at a time

struct Range {
  int64_t first, last;
  float lr_scale, decay;
};

std::vector<Range> cut(const std::vector<Segment>& segments) {
  std::vector<Range> ranges;
  for (const Segment& s : segments)
    for (int64_t at = s.offset; at < s.offset + s.size; at += kRange)
      ranges.push_back({at, std::min(at + kRange, s.offset + s.size), s.lr_scale, s.decay});
  return ranges;
}

// Where each task's ranges begin: biases and other small ones share a task.
std::vector<size_t> group(const std::vector<Range>& ranges) {
  std::vector<size_t> starts = {0};
  int64_t size = 0;
  for (size_t i = 0; i < ranges.size(); ++i) {
    size += ranges[i].last - ranges[i].first;
    if (size >= kRange || i + 1 == ranges.size()) starts.push_back(i + 1), size = 0;
  }
  return starts;
}

OptimizerArgs arguments(const OptimizerStep& op, const Operands& io) {
  const auto rest = [](auto beta) { return static_cast<float>(1.0 - static_cast<double>(beta)); };
  OptimizerArgs args{};
  args.kind = op.kind;
  args.beta1 = static_cast<float>(op.beta1), args.rest1 = rest(op.beta1);
  args.beta2 = static_cast<float>(op.beta2), args.rest2 = rest(op.beta2);
  args.eps = op.eps;
  args.gradient = f32_only(io.out[0]), args.param = f32_only(io.out[1]);
  args.first = f32_only(operand(io.out, 2)), args.second = f32_only(operand(io.out, 3));
  args.ema = f32_only(operand(io.out, 4)), args.compute = operand(io.out, 5).bf16();
  return args;
}

}  // namespace

KernelPtr lower(CpuBackend& cpu, const ClipScale& op, const Operands& io) {
  const Chunks chunks = chunk_rows(io.in[0].shape.numel(), 1, /*most=*/512);
  cpu.reserve_shared(static_cast<size_t>(chunks.count()) * sizeof(double));
  return make_kernel([&cpu, chunks, max_norm = static_cast<double>(op.max_norm),
                      x = f32_only(io.in[0]), y = f32_only(io.out[0])] {
    auto* squares = reinterpret_cast<double*>(cpu.shared_scratch());
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t chunk, int) {
      squares[chunk] = cpu.simd().optimizer->sum_squares(x + first, last - first);
    });
    double total = 0;
    for (int64_t i = 0; i < chunks.count(); ++i) total += squares[i];
    const double norm = std::sqrt(total);
    y[0] = static_cast<float>(norm);
    y[1] = max_norm > 0 ? static_cast<float>(std::min(1.0, max_norm / (norm + 1e-6))) : 1.0f;
  });
}

KernelPtr lower(CpuBackend& cpu, const OptimizerStep& op, const Operands& io) {
  const std::vector<Range> ranges = cut(op.segments);
  return make_kernel([&cpu, ranges, starts = group(ranges), fixed = arguments(op, io),
                      hyper = f32_only(io.in[0]), clip = f32_only(operand(io.in, 1))] {
    OptimizerArgs args = fixed;
    args.lr = hyper[0], args.correction1 = hyper[1], args.correction2 = hyper[2],
    args.ema_decay = hyper[3];
    args.clip = clip ? clip[1] : 1.0f;
    cpu.pool().run(static_cast<int64_t>(starts.size()) - 1, [&](int64_t task, int) {
      for (size_t i = starts[static_cast<size_t>(task)]; i < starts[static_cast<size_t>(task) + 1];
           ++i)
        cpu.simd().optimizer->step(args, ranges[i].lr_scale, ranges[i].decay, ranges[i].first,
                                   ranges[i].last);
    });
  });
}

}  // namespace vitrum::cpu
