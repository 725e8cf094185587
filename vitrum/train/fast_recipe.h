// --fast: a recipe cut down to about a minute on two cores, for trying things out.
#pragma once
#include <string>
#include <vector>

#include "vitrum/train/recipe.h"

namespace vitrum {

inline constexpr double kFastBudget = 4e12;  // multiply-adds: what two cores do in a minute

// At most three epochs of as many images as fit into a fixed amount of computing (the same number
// for training and test), in batches of at most 32, without a scan. What is small enough already,
// or trains its head alone on kept features, keeps its epochs. Keys that are `given` stay as they
// are, and no subset becomes larger.
Recipe fast_recipe(Recipe recipe, const std::vector<std::string>& given = {},
                   double budget = kFastBudget);

}  // namespace vitrum
