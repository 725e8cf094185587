#include <cmath>
#include <cstring>
#include <numeric>

#include "vitrum/cpu/backend.h"

namespace vitrum::cpu {
namespace {

constexpr int64_t kRange = BlockSquares::kBlock;  // elements updated at a time

struct Range {
  int64_t first, last;
  float lr_scale, decay;
  size_t segment;
};

std::vector<Range> cut(const std::vector<Segment>& segments) {
  std::vector<Range> ranges;
  for (size_t i = 0; i < segments.size(); ++i) {
    const Segment& s = segments[i];
    for (int64_t at = s.offset; at < s.offset + s.size; at += kRange)
      ranges.push_back({at, std::min(at + kRange, s.offset + s.size), s.lr_scale, s.decay, i});
  }
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

// All segments of an op, cut into tasks.
class Ranges {
 public:
  explicit Ranges(const std::vector<Segment>& segments)
      : ranges_(cut(segments)), starts_(group(ranges_)) {}
  size_t size() const { return ranges_.size(); }
  const Range& operator[](size_t i) const { return ranges_[i]; }

  // body(i) for each range, on all threads.
  template <class Body>
  void run(CpuBackend& cpu, const Body& body) const {
    cpu.pool().run(static_cast<int64_t>(starts_.size()) - 1, [&](int64_t task, int) {
      const auto at = static_cast<size_t>(task);
      for (size_t i = starts_[at]; i < starts_[at + 1]; ++i) body(i);
    });
  }

 private:
  std::vector<Range> ranges_;
  std::vector<size_t> starts_;
};

OptimizerArgs arguments(const OptimizerStep& op, const Operands& io) {
  const auto rest = [](auto beta) { return static_cast<float>(1.0 - static_cast<double>(beta)); };
  OptimizerArgs args{};
  args.kind = op.kind, args.nesterov = op.nesterov;
  args.beta1 = static_cast<float>(op.beta1), args.rest1 = rest(op.beta1);
  args.beta2 = static_cast<float>(op.beta2), args.rest2 = rest(op.beta2);
  args.eps = op.eps;
  args.gradient = f32_only(io.out[OptimizerStep::kGradients]),
  args.param = f32_only(io.out[OptimizerStep::kParameters]);
  args.first = f32_only(operand(io.out, OptimizerStep::kMoment1)),
  args.second = f32_only(operand(io.out, OptimizerStep::kMoment2));
  args.ema = f32_only(operand(io.out, OptimizerStep::kEma)),
  args.compute = operand(io.out, OptimizerStep::kCopy).bf16();
  return args;
}

// LAMB's step length for each segment: |weights| / |update|, and 1 where the tensor does not decay,
// as in timm. `sums` holds the squares of both for each range, in its order.
void trust_ratios(const std::vector<Segment>& segments, const Ranges& ranges, const double* sums,
                  float* ratios) {
  for (size_t s = 0, i = 0; s < segments.size(); ++s) {
    double weights = 0, updates = 0;
    for (; i < ranges.size() && ranges[i].segment == s; ++i)
      weights += sums[2 * i], updates += sums[2 * i + 1];
    const bool adapts = segments[s].decay != 0 && weights > 0 && updates > 0;
    ratios[s] = adapts ? static_cast<float>(std::sqrt(weights / updates)) : 1.0f;
  }
}

class StepKernel final : public Kernel {
 public:
  StepKernel(CpuBackend& cpu, const OptimizerStep& op, const Operands& io)
      : cpu_(cpu),
        segments_(op.segments),
        ranges_(op.segments),
        args_(arguments(op, io)),
        hyper_(f32_only(io.in[OptimizerStep::kHyper])),
        clip_(f32_only(operand(io.in, OptimizerStep::kClip))) {
    if (op.kind == OptimizerKind::kLamb)
      cpu.reserve_shared(ranges_.size() * 2 * sizeof(double) + segments_.size() * sizeof(float));
  }

  void launch() override {
    args_.lr = hyper_[0], args_.correction1 = hyper_[1], args_.correction2 = hyper_[2],
    args_.ema_decay = hyper_[3];
    args_.clip = clip_ ? clip_[1] : 1.0f;
    const float* ratios = args_.kind == OptimizerKind::kLamb ? lamb() : nullptr;
    ranges_.run(cpu_, [&](size_t i) {
      const Range& r = ranges_[i];
      const float scale = ratios ? r.lr_scale * ratios[r.segment] : r.lr_scale;
      cpu_.simd().optimizer->step(args_, scale, r.decay, r.first, r.last);
    });
  }

 private:
  const float* lamb() {
    const OptimizerKernels& simd = *cpu_.simd().optimizer;
    auto* sums = reinterpret_cast<double*>(cpu_.shared_scratch());
    auto* ratios = reinterpret_cast<float*>(sums + 2 * ranges_.size());
    ranges_.run(cpu_, [&](size_t i) {
      const Range& r = ranges_[i];
      sums[2 * i] = simd.sum_squares(args_.param + r.first, r.last - r.first);
      sums[2 * i + 1] = simd.lamb_moments(args_, r.decay, r.first, r.last);
    });
    trust_ratios(segments_, ranges_, sums, ratios);
    return ratios;
  }

  CpuBackend& cpu_;
  std::vector<Segment> segments_;
  Ranges ranges_;
  OptimizerArgs args_;
  const float *hyper_, *clip_;
};

}  // namespace

KernelPtr lower(CpuBackend& cpu, const ClipScale& op, const Operands& io) {
  const auto& [max_norm, of_sums] = op;
  const auto scale = [max_norm = static_cast<double>(max_norm),
                      y = f32_only(io.out[ClipScale::kNorms])](double squares) {
    const double norm = std::sqrt(squares);
    y[0] = static_cast<float>(norm);
    y[1] = max_norm > 0 ? static_cast<float>(std::min(1.0, max_norm / (norm + 1e-6))) : 1.0f;
  };
  if (of_sums)
    return make_kernel([scale, sums = io.in[ClipScale::kGradients].f64(),
                        count = io.in[ClipScale::kGradients].shape.numel()] {
      scale(std::accumulate(sums, sums + count, 0.0));
    });
  const Chunks chunks = chunk_rows(io.in[ClipScale::kGradients].shape.numel(), 1, /*most=*/512);
  cpu.reserve_shared(static_cast<size_t>(chunks.count()) * sizeof(double));
  return make_kernel([&cpu, chunks, scale, x = f32_only(io.in[ClipScale::kGradients])] {
    auto* squares = reinterpret_cast<double*>(cpu.shared_scratch());
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t chunk, int) {
      squares[chunk] = cpu.simd().optimizer->sum_squares(x + first, last - first);
    });
    double total = 0;
    for (int64_t i = 0; i < chunks.count(); ++i) total += squares[i];
    scale(total);
  });
}

KernelPtr lower(CpuBackend& cpu, const BlockSquares& op, const Operands& io) {
  const auto& [segments] = op;
  return make_kernel([&cpu, ranges = Ranges(segments),
                      x = f32_only(io.in[BlockSquares::kGradients]),
                      sums = io.out[BlockSquares::kSums].f64()] {
    ranges.run(cpu, [&](size_t i) {
      const Range& r = ranges[i];
      sums[i] = cpu.simd().optimizer->sum_squares(x + r.first, r.last - r.first);
    });
  });
}

KernelPtr lower(CpuBackend& cpu, const NoAttributes<Fold>&, const Operands& io) {
  std::vector<const float*> lefts;
  for (const TensorView& left : io.in) lefts.push_back(f32_only(left));
  const TensorView& gradients = io.out[Fold::kGradients];
  return make_kernel([&cpu, lefts, chunks = chunk_rows(gradients.shape.numel(), 1, /*most=*/512),
                      x = f32_only(gradients), sum = f32_only(operand(io.out, Fold::kSum))] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      cpu.simd().optimizer->fold(lefts.data(), lefts.size(), x, sum, first, last);
    });
  });
}

KernelPtr lower(CpuBackend& cpu, const OptimizerStep& op, const Operands& io) {
  [[maybe_unused]] const auto& [kind, beta1, beta2, eps, nesterov, segments] = op;
  return std::make_unique<StepKernel>(cpu, op, io);
}

KernelPtr lower(CpuBackend& cpu, const Perturb& op, const Operands& io) {
  const auto& [rho, segments] = op;
  OptimizerArgs args{};
  args.gradient = f32_only(io.out[Perturb::kGradients]),
  args.param = f32_only(io.out[Perturb::kParameters]);
  args.compute = operand(io.out, Perturb::kCopy).bf16();
  return make_kernel([&cpu, args, ranges = Ranges(segments),
                      norms = f32_only(io.in[Perturb::kNorms]), rho = static_cast<double>(rho)] {
    const auto scale = static_cast<float>(rho / (static_cast<double>(norms[0]) + 1e-12));
    ranges.run(cpu, [&](size_t i) {
      cpu.simd().optimizer->perturb(args, scale, ranges[i].first, ranges[i].last);
    });
  });
}

KernelPtr lower(CpuBackend&, const ClearRange& op, const Operands& io) {
  const auto& [first, count] = op;
  return make_kernel([x = f32_only(io.out[ClearRange::kX]) + first, count = count] {
    std::fill_n(x, count, 0.f);
  });
}

KernelPtr lower(CpuBackend& cpu, const NoAttributes<Copy>&, const Operands& io) {
  if (io.in[Copy::kX].dtype != io.out[Copy::kY].dtype)
    return make_kernel([&cpu, x = floats(io.in[Copy::kX]), y = floats(io.out[Copy::kY]),
                        chunks = chunk_rows(io.in[Copy::kX].shape.numel(), 1)] {
      for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
        cpu.simd().elementwise->convert(x, y, first, last);
      });
    });
  const Chunks chunks = chunk_rows(static_cast<int64_t>(io.in[Copy::kX].bytes()), 1);
  return make_kernel([&cpu, chunks, x = static_cast<const std::byte*>(io.in[Copy::kX].data),
                      y = static_cast<std::byte*>(io.out[Copy::kY].data)] {
    for_chunks(cpu, chunks, [&](int64_t first, int64_t last, int64_t, int) {
      std::memcpy(y + first, x + first, static_cast<size_t>(last - first));
    });
  });
}

}  // namespace vitrum::cpu
