// --fast: a recipe cut down to about a minute on two cores, for trying things out.
#pragma once
#include "vitrum/train/recipe.h"

namespace vitrum {

// At most three epochs of as many images as fit into a fixed amount of computing (the same number
// for training and test), in batches of at most 32, without a scan. What is small enough already,
// or trains its head alone on kept features, keeps its epochs.
Recipe fast_recipe(Recipe recipe);

}  // namespace vitrum
