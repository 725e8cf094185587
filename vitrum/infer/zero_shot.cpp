#include "vitrum/infer/zero_shot.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "vitrum/core/all_finite.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/shown.h"
#include "vitrum/core/utf8.h"
#include "vitrum/infer/text_encoder.h"

namespace vitrum {
namespace {

constexpr size_t kMostTexts = 1'000'000;  // labels times templates

double length(std::span<const float> x) {
  double squares = 0;
  for (const float v : x) squares += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(squares);
}

std::string filled(const std::string& pattern, const std::string& label) {
  const size_t at = pattern.find("{}");
  return pattern.substr(0, at) + label + pattern.substr(at + 2);
}

void check_templates(const std::vector<std::string>& templates) {
  for (const std::string& t : templates)
    if (t.find("{}") == t.npos || t.find("{}") != t.rfind("{}"))
      fail_usage(
          "--template '{}': expected one {{}} where the label goes, as in 'a photo of a {{}}.'",
          shown(t));
}

// One of length 1 for each label.
std::vector<float> mean_directions(std::span<const float> vectors, size_t labels, size_t templates,
                                   size_t space) {
  std::vector<float> out;
  for (size_t label = 0; label < labels; ++label) {
    std::vector<double> sum(space);
    for (size_t t = 0; t < templates; ++t) {
      const auto row = vectors.subspan((label * templates + t) * space, space);
      const double norm = length(row);
      for (size_t i = 0; i < space; ++i) sum[i] += static_cast<double>(row[i]) / norm;
    }
    double squares = 0;
    for (const double x : sum) squares += x * x;
    for (const double x : sum) out.push_back(static_cast<float>(x / std::sqrt(squares)));
  }
  return out;
}

std::string_view trimmed(std::string_view text) {
  constexpr const char* kBlanks = " \t\r";
  const size_t first = text.find_first_not_of(kBlanks);
  return first == text.npos ? std::string_view()
                            : text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

}  // namespace

std::span<const float> joint_vector(const Predictor& predictor, std::span<const float> logits,
                                    std::span<const float> features) {
  return predictor.classes() > 0 ? logits : features;
}

ZeroShot::ZeroShot(const std::string& model, Predictor& predictor, std::vector<std::string> labels,
                   const std::vector<std::string>& templates)
    : spec_(resolve_text_tower(model)), labels_(std::move(labels)) {
  check_templates(templates);
  const std::vector<std::string> patterns =
      templates.empty() ? std::vector<std::string>{"{}"} : templates;
  const auto space = static_cast<size_t>(spec_.config.space);
  const int64_t seen = predictor.classes() > 0 ? predictor.classes() : predictor.dimension();
  if (seen != spec_.config.space)
    fail_input("{}: images have vectors of {} numbers, texts of {}", model, seen, space);
  if (labels_.size() * patterns.size() > kMostTexts)
    fail_usage("{} labels in {} templates are more than {} texts", labels_.size(), patterns.size(),
               kMostTexts);
  std::vector<std::string> texts;
  for (const std::string& label : labels_)
    for (const std::string& pattern : patterns) texts.push_back(filled(pattern, label));
  const std::vector<float> vectors =
      text_vectors(model, predictor.device(), predictor.precision(), texts);
  classes_ = mean_directions(vectors, labels_.size(), patterns.size(), space);
  if (!all_finite(classes_)) fail_input("{}: the vector of a text has no direction", model);
}

std::vector<float> ZeroShot::logits(std::span<const float> image) const {
  const double norm = length(image);
  std::vector<float> out;
  for (size_t label = 0; label < labels_.size(); ++label) {
    const float* row = classes_.data() + label * image.size();
    double dot = 0;
    for (size_t i = 0; i < image.size(); ++i)
      dot += static_cast<double>(image[i]) * static_cast<double>(row[i]);
    out.push_back(static_cast<float>(static_cast<double>(spec_.scale) * dot / norm +
                                     static_cast<double>(spec_.bias)));
  }
  return out;
}

std::vector<Prediction> ZeroShot::best(std::span<const float> image, size_t count) const {
  const std::vector<float> scores = logits(image);
  std::vector<Prediction> all = top_predictions(scores, labels_, count);
  if (!spec_.sigmoid) return all;
  for (Prediction& p : all) {
    const auto z = static_cast<double>(scores[static_cast<size_t>(p.index)]);
    p.probability = static_cast<float>(1 / (1 + std::exp(-z)));
  }
  return all;
}

std::vector<std::string> read_labels(const std::string& option) {
  const bool file = option.starts_with('@');
  const std::string text = file ? read_file(option.substr(1)) : option;
  std::vector<std::string> labels;
  std::set<std::string, std::less<>> seen;
  for (std::string_view rest = text; !rest.empty();) {
    const size_t end = std::min(rest.find(file ? '\n' : ','), rest.size());
    const std::string_view label = trimmed(rest.substr(0, end));
    rest.remove_prefix(std::min(rest.size(), end + 1));
    if (label.empty()) continue;
    if (!is_utf8(label)) fail_usage("--labels: '{}' is not UTF-8", shown(label));
    if (!seen.emplace(label).second) fail_usage("--labels: '{}' is there twice", shown(label));
    labels.emplace_back(label);
  }
  if (labels.empty())
    fail_usage(
        "--labels {}: expected labels, as in --labels \"a cat,a dog\" or a file with one a "
        "line, --labels @names.txt",
        shown(option));
  return labels;
}

}  // namespace vitrum
