// How large the numbers of a graph can become, whatever the images are: what follows from the
// parameters alone.
#pragma once
#include <map>
#include <optional>

#include "vitrum/graph/passes.h"

namespace vitrum {

// A normalised row of C numbers has the length sqrt(C), so behind a LayerNorm of gamma and beta no
// number is larger than sqrt(C) |gamma| + |beta|, and behind a linear layer w, b after it none than
// sqrt(C) times the length of w gamma, + |w beta + b|. Activations make nothing larger, and
// attention leaves a mean of its values.
class Bounds {
 public:
  // The graph may gain nodes that only move or round numbers.
  Bounds(const Graph& g, const ParamValues& values);
  // The largest magnitude a value can have; none where it hangs on more than a norm and a layer.
  // `channels`: of its last dimension, where not all are asked for.
  std::optional<float> most(ValueId id, ElementRange channels = {}) const;
  // Whether there is one, without reading a parameter.
  bool has(ValueId id) const;

 private:
  struct Made {
    const Node* node;
    size_t result;
  };
  struct Norm;
  std::optional<Made> made(ValueId id) const;
  std::optional<Made> source(ValueId id) const;
  std::optional<Norm> norm(ValueId id) const;
  bool is_norm(const Made& by) const;
  ValueId unturned(ValueId qkv) const;
  std::vector<float> param(ValueId id, size_t count, float otherwise) const;
  float behind(const Norm& norm, const Node& linear, ElementRange channels) const;

  const Graph& g_;
  const ParamValues& values_;
};

}  // namespace vitrum
