// Arguments that timm's classes VisionTransformer, Eva and Beit have in common, in a config.json's
// model_args.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "vitrum/models/vit.h"
#include "vitrum/weights/json_keys.h"

namespace vitrum {

// The names of those, of others that do not change what a trained model computes, and of `more`.
std::vector<std::string> timm_args(const std::vector<std::string>& more);

// Sizes, biases, LayerScale and dropout. timm's hidden width is `per_row` times ours, and
// mlp_ratio times the width; `ratio` is that of the architecture.
void read_timm_sizes(const JsonKeys& args, ViTConfig& c, double ratio, double per_row = 1);
nlohmann::ordered_json timm_sizes(const ViTConfig& c, double per_row = 1);

// global_pool, which is "avg" or "token".
bool timm_pools_mean(const JsonKeys& top, const JsonKeys& args, bool fallback);

}  // namespace vitrum
