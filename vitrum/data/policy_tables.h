// The published policies. Internal to data/.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "vitrum/data/policy.h"

namespace vitrum {

struct WeightedOp {
  PolicyOp op;
  double weight;
};
std::span<const PolicyOp> rand_ops(bool increasing);
std::span<const WeightedOp> weighted_ops(std::string_view name);  // "weights", "3a", "3aw"
std::vector<std::string> weighted_names();

Policy auto_policy(std::string_view name);
std::vector<std::string> auto_names();

Policy three_augment();
Policy trivial_augment();

}  // namespace vitrum
