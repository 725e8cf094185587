#include "vitrum/train/param_rules.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <optional>
#include <set>

#include "vitrum/core/error.h"
#include "vitrum/core/join.h"
#include "vitrum/core/nearest.h"
#include "vitrum/core/shown.h"

namespace vitrum {
namespace {

// "head.*" for "head.weight": what stands at the top of a name, as a pattern.
std::string top_pattern(const std::string& name) {
  const size_t dot = name.find('.');
  return dot == name.npos ? name : name.substr(0, dot) + ".*";
}

[[noreturn]] void fail_unmatched(const char* key, const std::string& pattern,
                                 const std::vector<ParamSpec>& params) {
  std::vector<std::string> near, tops;
  for (const ParamSpec& p : params) {
    near.push_back(p.name);
    for (size_t dot = p.name.find('.'); dot != p.name.npos; dot = p.name.find('.', dot + 1))
      near.push_back(p.name.substr(0, dot)), near.push_back(p.name.substr(0, dot) + ".*");
    if (const std::string top = top_pattern(p.name); tops.empty() || tops.back() != top)
      tops.push_back(top);
  }
  fail_usage("{}: '{}' matches no parameter{}; this model has {}", key, shown(pattern),
             did_you_mean(pattern, near), join(tops, ", "));
}

// Calls visit(i) for every parameter that matches.
template <class Visit>
void each_match(const char* key, const std::string& pattern, const std::vector<ParamSpec>& params,
                Visit&& visit) {
  bool found = false;
  for (size_t i = 0; i < params.size(); ++i)
    if (matches(pattern, params[i].name)) visit(i), found = true;
  if (!found) fail_unmatched(key, pattern, params);
}

// (stage, block) of a parameter inside a block: "blocks.I." of ViT, "layers.S.blocks.I." of Swin
// and "stages.S.blocks.I." of ConvNeXt, whose downsampling belongs to its stage's first block,
// "layerS.I." of ResNet.
struct BlockPlace {
  int stage = 0, block = 0;
  auto operator<=>(const BlockPlace&) const = default;
};
std::optional<BlockPlace> block_of(const std::string& name) {
  BlockPlace at;
  const char* text = name.c_str();
  if (std::sscanf(text, "blocks.%d.", &at.block) == 1) return at;
  if (std::sscanf(text, "layers.%d.blocks.%d.", &at.stage, &at.block) == 2) return at;
  if (std::sscanf(text, "stages.%d.blocks.%d.", &at.stage, &at.block) == 2) return at;
  if (std::sscanf(text, "layer%d.%d.", &at.stage, &at.block) == 2) return at;
  if (std::sscanf(text, "layers.%d.downsample.", &at.stage) == 1 ||
      std::sscanf(text, "stages.%d.downsample.", &at.stage) == 1)
    return BlockPlace{at.stage, 0};
  return {};
}

}  // namespace

bool matches(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0 ||
         fnmatch((pattern + ".*").c_str(), name.c_str(), 0) == 0;
}

void freeze_params(std::vector<ParamSpec>& params, const ModelConfig& model, const Recipe& recipe) {
  if (recipe.head_only)
    for (ParamSpec& p : params) p.trainable = in_head(model, p.name);
  for (const std::string& pattern : recipe.freeze)
    each_match("freeze", pattern, params, [&](size_t i) { params[i].trainable = false; });
  if (std::none_of(params.begin(), params.end(), [](const ParamSpec& p) { return p.trainable; }))
    fail_usage("every parameter is frozen: nothing is left to train");
}

std::vector<size_t> zero_params(const std::vector<ParamSpec>& params, const Recipe& recipe) {
  std::vector<size_t> all;
  for (const std::string& pattern : recipe.zero_init)
    each_match("zero_init", pattern, params, [&](size_t i) { all.push_back(i); });
  return all;
}

std::vector<int> layer_depths(const std::vector<ParamSpec>& params) {
  std::set<BlockPlace> blocks;
  for (const ParamSpec& p : params)
    if (const auto at = block_of(p.name)) blocks.insert(*at);
  const auto count = static_cast<int>(blocks.size());
  std::vector<int> depths;
  bool before = true;  // parameters come in the order of the forward pass
  for (const ParamSpec& p : params) {
    if (const auto at = block_of(p.name)) {
      before = false;
      depths.push_back(count - static_cast<int>(std::distance(blocks.begin(), blocks.find(*at))));
    } else if (before) {
      depths.push_back(count + 1);
    } else {
      depths.push_back(p.name.starts_with("norm") ? 1 : 0);
    }
  }
  return depths;
}

std::vector<double> lr_factors(const std::vector<ParamSpec>& params, const Recipe& recipe) {
  std::vector<double> factors(params.size(), 1);
  if (recipe.layer_decay < 1) {
    const std::vector<int> depths = layer_depths(params);
    for (size_t i = 0; i < params.size(); ++i) factors[i] = std::pow(recipe.layer_decay, depths[i]);
  }
  for (const LrScale& scale : recipe.lr_scale)
    each_match("lr_scale", scale.pattern, params, [&](size_t i) { factors[i] *= scale.factor; });
  return factors;
}

}  // namespace vitrum
