// Pictures of a model's weights alone: how positions resemble each other, and what the first layer
// looks for.
#pragma once
#include "vitrum/explain/explain_photo.h"
#include "vitrum/graph/graph.h"
#include "vitrum/runtime/params.h"

namespace vitrum {

// Vectors (patches, width) of a grid of positions.
struct Positions {
  int64_t rows = 0, columns = 0, width = 0;
  std::vector<float> values;
};

// Cosines of every patch with every patch: (patches, patches).
std::vector<float> position_cosines(const Positions& positions);
// Dot products of all patches with the one in the middle, that of row rows / 2 and column
// columns / 2.
PatchMap centre_similarity(const Positions& positions);

// For the model that `g` traces, with its weights in `store`.
Explanation explain_weights(const Graph& g, ParamStore& store);

}  // namespace vitrum
