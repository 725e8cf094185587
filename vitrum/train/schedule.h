// The learning rate as a pure function of the step, so that a resumed run needs no state for it.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace vitrum {

enum class ScheduleKind : uint8_t { kConstant, kCosine, kLinear };
enum class ScheduleUnit : uint8_t { kStep, kEpoch };  // how often the learning rate changes

struct Schedule {
  ScheduleKind kind = ScheduleKind::kConstant;
  ScheduleUnit unit = ScheduleUnit::kStep;
  double lr = 0, min_lr = 0;
  double warmup_steps = 0;
  int64_t total_steps = 1, steps_per_epoch = 1;
};

// The rate of optimiser step `step`, counted from 0. In units of t (steps or epochs), with warm-up
// W and length T it is PyTorch's LinearLR(start_factor = 1 / (W + 1), total_iters = W), then
// CosineAnnealingLR(T_max = T - W, eta_min) or a straight line from lr to min_lr. The last step's
// rate is the one just before min_lr is reached.
inline double lr_at(const Schedule& s, int64_t step) {
  const double unit = s.unit == ScheduleUnit::kEpoch ? static_cast<double>(s.steps_per_epoch) : 1;
  const double t = std::floor(static_cast<double>(step) / unit);
  const double warmup = s.warmup_steps / unit, total = static_cast<double>(s.total_steps) / unit;
  if (t < warmup) return s.lr * (t + 1) / (warmup + 1);
  const double done = total > warmup ? std::min(1.0, (t - warmup) / (total - warmup)) : 1;
  switch (s.kind) {
    case ScheduleKind::kConstant: break;
    case ScheduleKind::kCosine:
      return s.min_lr + (s.lr - s.min_lr) * (1 + std::cos(std::numbers::pi * done)) / 2;
    case ScheduleKind::kLinear: return s.lr + (s.min_lr - s.lr) * done;
  }
  return s.lr;
}

}  // namespace vitrum
