#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "vitrum/core/error.h"
#include "vitrum/core/nearest.h"
#include "vitrum/core/shown.h"
#include "vitrum/data/policy_tables.h"

namespace vitrum {
namespace {

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(at, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

std::string joined(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& word : words) all += (all.empty() ? "" : ", ") + word;
  return all;
}

bool contains(const std::vector<std::string>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

// The sections of a policy after its name: letters and a number each.
class Options {
 public:
  Options(std::string_view policy, std::vector<std::string_view> sections)
      : policy_(policy), sections_(std::move(sections)) {}

  // Calls take(key, section) for each; it returns false where it does not know the key.
  template <class Take>
  void each(std::string_view known, const Take& take) {
    for (const std::string_view section : sections_) {
      const size_t digits = std::min(section.find_first_of("0123456789."), section.size());
      if (!take(section.substr(0, digits), section))
        fail_usage("augment '{}': unknown part '{}'; {} takes {}", shown(policy_), shown(section),
                   shown(policy_.substr(0, policy_.find('-'))), known);
    }
  }
  double number(std::string_view section, size_t letters, double low, double high) const {
    const std::string_view digits = section.substr(letters);
    double value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value,
                                              std::chars_format::fixed);
    if (error != std::errc() || end != digits.data() + digits.size() || digits.empty() ||
        !(value >= low && value <= high))
      fail_usage("augment '{}': '{}' in '{}'; expected a number from {} to {} after '{}'",
                 shown(policy_), shown(digits), shown(section), low, high,
                 shown(section.substr(0, letters)));
    return value;
  }
  void refuse(std::string_view what, std::string_view word,
              const std::vector<std::string>& known) const {
    fail_usage("augment '{}': unknown {} '{}'{}; there are {}", shown(policy_), what, shown(word),
               did_you_mean(word, known), joined(known));
  }

 private:
  std::string_view policy_;
  std::vector<std::string_view> sections_;
};

void fill_rand(Policy& policy, std::string_view set, bool increasing, const PolicyStep& step) {
  const auto add = [&](PolicyOp op) {
    policy.choices.push_back({{op, step.probability, step.level}});
  };
  if (set.empty() || set == "3a") {  // 3a is a plain list in timm
    if (set.empty())
      for (const PolicyOp op : rand_ops(increasing)) add(op);
    else
      for (const WeightedOp& w : weighted_ops(set)) add(w.op);
    return;
  }
  for (const WeightedOp& w : weighted_ops(set)) add(w.op), policy.weights.push_back(w.weight);
}

Policy parse_rand(Options options) {
  Policy policy{.layers = 2};
  PolicyStep step{.probability = 0.5, .level = 10};
  std::string_view set;
  bool increasing = false;
  options.each("m, n, p, mstd, mmax, inc and t, as in rand-m9-mstd0.5-inc1",
               [&](std::string_view key, std::string_view section) {
                 if (section.starts_with('t')) {
                   set = section.substr(1);
                   if (!contains(weighted_names(), set))
                     options.refuse("set", set, weighted_names());
                 } else if (key == "m") {
                   step.level = options.number(section, 1, 0, 100);
                 } else if (key == "n") {
                   policy.layers = static_cast<int>(options.number(section, 1, 1, 14));
                 } else if (key == "p") {
                   step.probability = options.number(section, 1, 0, 1);
                 } else if (key == "mstd") {
                   const double deviation = options.number(section, 4, 0, 1000);
                   policy.deviation =
                       deviation > 100 ? std::numeric_limits<double>::infinity() : deviation;
                 } else if (key == "mmax") {
                   policy.max_level = options.number(section, 4, 1, 100);
                 } else if (key == "inc") {
                   increasing = options.number(section, 3, 0, 1) > 0;
                 } else {
                   return false;
                 }
                 return true;
               });
  fill_rand(policy, set, increasing, step);
  if (!policy.weights.empty())
    policy.layers = std::min(policy.layers, static_cast<int>(policy.weights.size()));
  return policy;
}

// Policies with one number to set: `key` and a number up to `high`.
struct OneNumber {
  std::string_view key, known;
  double high;
  double Policy::*target;
};
constexpr OneNumber kStrength{"m", "m, its strength, as in trivial-m0.5", 1, &Policy::strength},
    kJitter{"j", "j, its colour jitter, as in three-j0.3", 1, &Policy::jitter},
    kDeviation{"mstd", "mstd, as in auto-original-mstd0.5", 100, &Policy::deviation};

Policy with_number(Policy policy, Options options, const OneNumber& number, bool allowed = true) {
  options.each(number.known, [&](std::string_view key, std::string_view section) {
    if (key != number.key || !allowed) return false;
    policy.*number.target = options.number(section, key.size(), 0, number.high);
    return true;
  });
  return policy;
}

Policy parse_auto(Options options, std::string_view name) {
  if (!contains(auto_names(), name)) options.refuse("AutoAugment policy", name, auto_names());
  const Policy policy = auto_policy(name);
  return with_number(policy, std::move(options), kDeviation, policy.scale == LevelScale::kTimm);
}

}  // namespace

std::vector<std::string> policy_names() { return {"rand", "trivial", "auto", "three"}; }

Policy parse_policy(std::string_view text) {
  std::vector<std::string_view> parts = split(text, '-');
  const std::string_view name = parts[0];
  parts.erase(parts.begin());
  if (name == "rand") return parse_rand({text, parts});
  if (name == "trivial") return with_number(trivial_augment(), {text, parts}, kStrength);
  if (name == "three") return with_number(three_augment(), {text, parts}, kJitter);
  if (name != "auto") Options(text, {}).refuse("policy", name, policy_names());
  const std::string_view table = parts.empty() ? "" : parts[0];
  if (!parts.empty()) parts.erase(parts.begin());
  return parse_auto({text, parts}, table);
}

}  // namespace vitrum
