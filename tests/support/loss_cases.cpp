#include <cmath>

#include "tests/support/case_maker.h"

namespace vitrum::test {

// ---- loss ----
namespace {
enum class TargetKind { kLabels, kSoft, kLogs, kValues };
struct LossData {
  std::string label;
  HostTensor logits, target, weight;
  LossForm form;
};
struct LossTrial {
  const char* label;
  TargetKind target;
  LossForm form;
};
const LossTrial kLossTrials[] = {
    {"labels", TargetKind::kLabels, {}},
    {"labels smooth", TargetKind::kLabels, {.smoothing = 0.1f}},
    {"labels scaled", TargetKind::kLabels, {.tau = 1.5f, .scale = 0.25f}},
    {"soft", TargetKind::kSoft, {}},
    {"soft smooth", TargetKind::kSoft, {.smoothing = 0.1f}},
    {"divergence", TargetKind::kLogs, {.kind = LossKind::kDivergence, .tau = 3, .scale = 0.9f}},
    {"binary", TargetKind::kLabels, {.kind = LossKind::kBinary}},
    {"binary smooth", TargetKind::kLabels, {.smoothing = 0.1f, .kind = LossKind::kBinary}},
    {"square", TargetKind::kValues, {.kind = LossKind::kSquare, .scale = 0.5f}},
    {"binary soft", TargetKind::kSoft, {.kind = LossKind::kBinary, .scale = 0.5f}},
};
}  // namespace

static HostTensor target_of(Maker& m, TargetKind kind, const Shape& s) {
  if (kind == TargetKind::kLabels) return m.below({s[0]}, s[1], kI32);
  if (kind == TargetKind::kValues) return m.normal(s, kF32);
  if (kind == TargetKind::kLogs)
    return m.forward(LogSoftmax{}, {m.normal(s, kF32, 2)}, {m.blank(s, kF32)})[0];
  HostTensor target{
      .shape = s, .dtype = kF32, .values = std::vector<double>(static_cast<size_t>(s.numel()))};
  for (int64_t b = 0; b < s[0]; ++b) {  // two classes share each image, as mixup leaves them
    target.values[b * s[1] + b % s[1]] = 0.75;
    target.values[b * s[1] + (b + 1) % s[1]] = 0.25;
  }
  return target;
}

static std::vector<LossData> loss_data(Maker& m) {
  std::vector<LossData> all;
  for (DType logits : {kF32, m.compute})
    for (const Shape& s :
         {Shape{1, 2}, Shape{7, 10}, Shape{17, 100}, Shape{33, 1000}, Shape{128, 10}})
      for (const LossTrial& trial : kLossTrials) {
        HostTensor weight = m.normal({s[0]}, kF32, 0.1, 1. / static_cast<double>(s[0]));
        for (double& w : weight.values) w = m.uniform() < 0.2 && s[0] > 1 ? 0 : std::abs(w);
        const std::string label =
            std::string(trial.label) + " " + std::string(vitrum::name_of(logits)) + " logits";
        all.push_back(
            {label, m.normal(s, logits, 3), target_of(m, trial.target, s), weight, trial.form});
      }
  // All that an image has, whatever its rank; more than a run of sums.
  for (DType logits : {kF32, m.compute})
    all.push_back({"square images",
                   m.normal({3, 7, 700}, logits),
                   m.normal({3, 7, 700}, kF32),
                   m.normal({3}, kF32, 0.1, 0.3),
                   {.kind = LossKind::kSquare}});
  return all;
}

// The loss, and the statistics of its rows where the kind has them.
static std::vector<HostTensor> loss_outputs(Maker& m, const LossData& d) {
  std::vector<HostTensor> out = {m.blank({1}, kF32)};
  if (has_softmax(d.form.kind)) out.push_back(m.blank({d.logits.shape[0]}, kF32));
  return out;
}

void make(Maker& m, const CrossEntropy&) {
  for (const LossData& d : loss_data(m))
    m.add(CrossEntropy{d.form}, d.label, {d.logits, d.target, d.weight}, loss_outputs(m, d))
        .aux_at_end = true;
}

void make(Maker& m, const CrossEntropyBwd&) {
  for (const LossData& d : loss_data(m)) {
    const auto y =
        m.forward(CrossEntropy{d.form}, {d.logits, d.target, d.weight}, loss_outputs(m, d));
    m.add(CrossEntropyBwd{.form = d.form}, d.label,
          {d.logits, d.target, d.weight, y.size() > 1 ? y[1] : m.none()},
          {m.blank(d.logits.shape, m.compute)});
  }
}

// Rows of a teacher's logits; the first has a tie for the largest.
static std::vector<HostTensor> teacher_rows(Maker& m) {
  std::vector<HostTensor> all;
  for (DType dtype : {kF32, m.compute})
    for (const Shape& s : {Shape{1, 1}, Shape{3, 2}, Shape{7, 10}, Shape{33, 1000}}) {
      HostTensor& x = all.emplace_back(m.normal(s, dtype, 3));
      x.values[0] = x.values[static_cast<size_t>(s[1]) - 1] = 32;
    }
  return all;
}

void make(Maker& m, const Argmax&) {
  for (const HostTensor& x : teacher_rows(m))
    m.add(Argmax{}, "", {x}, {m.needed(m.blank({x.shape[0]}, kI32))});
}

void make(Maker& m, const LogSoftmax&) {
  for (const HostTensor& x : teacher_rows(m))
    for (float tau : {1.f, 3.f})
      m.add(LogSoftmax{.tau = tau}, std::to_string(tau), {x}, {m.needed(m.blank(x.shape, kF32))});
}

void make(Maker& m, const TrainMetrics&) {
  for (LossData& d : loss_data(m)) {
    if (d.form.kind == LossKind::kDivergence || d.form.kind == LossKind::kSquare)
      continue;                                 // no target of classes
    const int64_t classes = d.logits.shape[1];  // the first image has a tie for the best class
    d.logits.values[0] = d.logits.values[classes - 1] = 32;
    if (d.target.dtype == kI32) d.target.values[0] = 0;
    m.add(TrainMetrics{}, d.label, {m.normal({1}, kF32), d.logits, d.target, d.weight},
          {m.normal({3}, DType::kF64, 100)});
    m.add(TrainMetrics{}, "no answers", {m.normal({1}, kF32), m.none(), m.none(), d.weight},
          {m.normal({3}, DType::kF64, 100)});
  }
}

}  // namespace vitrum::test
