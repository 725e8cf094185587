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

}  // namespace vitrum::test
