#include "vitrum/infer/agreement.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "vitrum/infer/predict_all.h"

namespace vitrum {
namespace {

constexpr int64_t kAtOnce = 256;  // images whose answers are remembered

std::vector<double> softmax(std::span<const float> logits) {
  std::vector<double> p(logits.begin(), logits.end());
  const double top = *std::ranges::max_element(p);
  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - top);
  for (double& x : p) x /= sum;
  return p;
}

int64_t best(std::span<const float> logits) {
  return std::ranges::max_element(logits) - logits.begin();
}

class Comparison {
 public:
  Comparison(const Dataset& data, const std::vector<int>& outputs)
      : data_(data), outputs_(outputs) {}

  void add(int64_t image, std::span<const float> before, std::span<const float> after, bool head) {
    ++result_.images, result_.has_head = head;
    for (size_t i = 0; i < before.size(); ++i) {
      const double x = static_cast<double>(before[i]), y = static_cast<double>(after[i]);
      squares_ += x * x, difference_ += (x - y) * (x - y);
    }
    if (!head) return;
    const std::vector<double> p = softmax(before), q = softmax(after);
    for (size_t i = 0; i < p.size(); ++i)
      result_.largest_change = std::max(result_.largest_change, std::abs(p[i] - q[i]));
    result_.same += best(before) == best(after);
    if (outputs_.empty()) return;
    const int truth = outputs_[static_cast<size_t>(data_.label(image))];
    right_before_ += best(before) == truth, right_after_ += best(after) == truth;
  }

  Agreement result() {
    if (squares_ > 0) result_.error = std::sqrt(difference_ / squares_);
    if (!outputs_.empty() && result_.images > 0) {
      const auto images = static_cast<double>(result_.images);
      result_.top1_before = static_cast<double>(right_before_) / images;
      result_.top1_after = static_cast<double>(right_after_) / images;
    }
    return result_;
  }

 private:
  const Dataset& data_;
  const std::vector<int>& outputs_;
  Agreement result_;
  double squares_ = 0, difference_ = 0;
  int64_t right_before_ = 0, right_after_ = 0;
};

}  // namespace

Agreement compare_answers(Predictor& before, Predictor& after, const Dataset& data,
                          const std::vector<int>& outputs,
                          const std::function<void(int64_t)>& progress) {
  const bool head = before.classes() > 0;
  const auto answer = [head](const PredictedSample& sample) {
    return head ? sample.logits : sample.features;
  };
  Comparison comparison(data, outputs);
  for (int64_t first = 0; first < data.size(); first += kAtOnce) {
    std::vector<int64_t> images(static_cast<size_t>(std::min(kAtOnce, data.size() - first)));
    std::iota(images.begin(), images.end(), first);
    const std::unique_ptr<Dataset> part = select_images(data, images);
    std::vector<std::vector<float>> answers;
    predict_all(before, *part, {}, [&](const PredictedSample& sample) {
      answers.emplace_back(answer(sample).begin(), answer(sample).end());
      return true;
    });
    predict_all(after, *part, {}, [&](const PredictedSample& sample) {
      comparison.add(first + sample.index, answers[static_cast<size_t>(sample.index)],
                     answer(sample), head);
      if (progress) progress(first + sample.index + 1);
      return true;
    });
  }
  return comparison.result();
}

}  // namespace vitrum
