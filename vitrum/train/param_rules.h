// Which parameters learn, and how fast, by their names.
//
// A pattern is a glob over the dotted names (`*` crosses dots, `?`, `[0-9]`) and may also name a
// module: "blocks.0" means all of that block. One that matches nothing is a usage error that shows
// near names.
#pragma once
#include <string>
#include <vector>

#include "vitrum/models/model.h"
#include "vitrum/train/recipe.h"

namespace vitrum {

bool matches(const std::string& pattern, const std::string& name);

// Clears `trainable` where the recipe's `freeze` and `head_only` say so.
void freeze_params(std::vector<ParamSpec>& params, const ModelConfig& model, const Recipe& recipe);

// The parameters that the recipe's `zero_init` names.
std::vector<size_t> zero_params(const std::vector<ParamSpec>& params, const Recipe& recipe);

// Each parameter's factor to the learning rate: all the lr_scale patterns that match, times the
// layer decay.
std::vector<double> lr_factors(const std::vector<ParamSpec>& params, const Recipe& recipe);

// How often the decay applies to each, as timm and BEiT count: the head 0, the last block (and the
// norm behind it) 1, the block below it 2, ..., what comes before the blocks one more than the
// first of them.
std::vector<int> layer_depths(const std::vector<ParamSpec>& params);

}  // namespace vitrum
