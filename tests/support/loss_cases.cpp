#include <cmath>

#include "tests/support/case_maker.h"

namespace vitrum::test {

// ---- loss ----
namespace {
struct LossData {
  std::string label;
  HostTensor logits, target, weight;
  float smoothing;
};
}  // namespace

static std::vector<LossData> loss_data(Maker& m) {
  std::vector<LossData> all;
  for (DType logits : {kF32, m.compute})
    for (const Shape& s :
         {Shape{1, 2}, Shape{7, 10}, Shape{17, 100}, Shape{33, 1000}, Shape{128, 10}})
      for (const auto& [soft, smoothing] :
           {std::pair{false, 0.f}, {false, 0.1f}, {true, 0.f}, {true, 0.1f}}) {
        HostTensor target = m.below({s[0]}, s[1], kI32);
        if (soft) {  // two classes share each image, as mixup leaves them
          target = {.shape = s,
                    .dtype = kF32,
                    .values = std::vector<double>(static_cast<size_t>(s.numel()))};
          for (int64_t b = 0; b < s[0]; ++b) {
            target.values[b * s[1] + b % s[1]] = 0.75;
            target.values[b * s[1] + (b + 1) % s[1]] = 0.25;
          }
        }
        HostTensor weight = m.normal({s[0]}, kF32, 0.1, 1. / static_cast<double>(s[0]));
        for (double& w : weight.values) w = m.uniform() < 0.2 && s[0] > 1 ? 0 : std::abs(w);
        const std::string label = std::string(soft ? "soft" : "labels") +
                                  (smoothing > 0 ? " smooth" : "") + " " +
                                  std::string(vitrum::name_of(logits)) + " logits";
        all.push_back({label, m.normal(s, logits, 3), target, weight, smoothing});
      }
  return all;
}

void make(Maker& m, const CrossEntropy&) {
  for (const LossData& d : loss_data(m))
    m.add(CrossEntropy{d.smoothing}, d.label, {d.logits, d.target, d.weight},
          {m.blank({1}, kF32), m.blank({d.logits.shape[0]}, kF32)})
        .aux_at_end = true;
}

void make(Maker& m, const CrossEntropyBwd&) {
  for (const LossData& d : loss_data(m)) {
    const auto y = m.forward(CrossEntropy{d.smoothing}, {d.logits, d.target, d.weight},
                             {m.blank({1}, kF32), m.blank({d.logits.shape[0]}, kF32)});
    m.add(CrossEntropyBwd{.smoothing = d.smoothing}, d.label, {d.logits, d.target, d.weight, y[1]},
          {m.blank(d.logits.shape, m.compute)});
  }
}

void make(Maker& m, const TrainMetrics&) {
  for (LossData& d : loss_data(m)) {
    const int64_t classes = d.logits.shape[1];  // the first image has a tie for the best class
    d.logits.values[0] = d.logits.values[classes - 1] = 32;
    if (d.target.dtype == kI32) d.target.values[0] = 0;
    m.add(TrainMetrics{}, d.label, {m.normal({1}, kF32), d.logits, d.target, d.weight},
          {m.normal({3}, DType::kF64, 100)});
  }
}

// ---- update ----
void make(Maker& m, const ClipScale&) {
  for (int64_t n : {1, 7, 1000, 70001})
    for (float max_norm : {0.f, 1.f, 1e6f})
      m.add(ClipScale{.max_norm = max_norm}, std::to_string(max_norm), {m.normal({n}, kF32)},
            {m.blank({2}, kF32)});
}

void make(Maker& m, const OptimizerStep&) {
  // Segments start at multiples of 16, with padding between; the third is a frozen parameter's
  // place.
  const std::vector<Segment> segments = {{0, 1, 1, 0.1f}, {16, 33, 0.5f, 0}, {128, 1379, 1, 0.05f}};
  constexpr int64_t kSize = 1520;
  for (OptimizerKind kind : {OptimizerKind::kSgd, OptimizerKind::kAdam, OptimizerKind::kAdamW})
    for (int step : {1, 100})
      for (bool momentum : {true, false}) {
        const bool adam = kind != OptimizerKind::kSgd;
        if (adam && !momentum) continue;
        HostTensor hyper = m.blank({4}, kF32), clip = m.blank({2}, kF32);
        for (double h : {0.01, 1 - std::pow(0.9, step), 1 - std::pow(0.999, step), 0.99})
          hyper.values.push_back(static_cast<float>(h));
        clip.values = {4, 0.25};
        HostTensor g = m.normal({kSize}, kF32), second = m.normal({kSize}, kF32);
        std::vector<bool> used(static_cast<size_t>(kSize));
        for (const Segment& s : segments)
          for (int64_t i = s.offset; i < s.offset + s.size; ++i) used[i] = true;
        for (size_t i = 0; i < used.size(); ++i) g.values[i] *= used[i] ? 1 : 0;
        for (double& v : second.values) v = static_cast<float>(v * v);
        const OptimizerStep op{.kind = kind, .segments = segments};
        m.add(op, std::to_string(static_cast<int>(kind)) + " step " + std::to_string(step),
              {hyper, clip},
              {m.needed(g), m.needed(m.normal({kSize}, kF32)),
               momentum ? m.needed(m.normal({kSize}, kF32)) : m.none(),
               adam ? m.needed(second) : m.none(), m.normal({kSize}, kF32),
               m.normal({kSize}, DType::kBF16)});
      }
}

}  // namespace vitrum::test
