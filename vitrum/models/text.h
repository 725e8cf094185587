// The text towers of CLIP and SigLIP: token numbers to a vector in the space of the image tower's.
#pragma once
#include "vitrum/graph/graph.h"

namespace vitrum {

struct TextConfig {
  int64_t vocabulary = 49408, context = 77;
  int64_t width = 512, depth = 12, heads = 8, mlp_width = 2048, space = 512;
  float eps = 1e-5f;
  Act act = Act::kQuickGelu;
  // CLIP: a token sees those before it, and the vector of a text is that of its end mark. SigLIP:
  // every token sees all, padding too, and the vector is that of the last.
  bool causal = true;
  bool proj_bias = false;
  bool operator==(const TextConfig&) const = default;
};

// Throws a usage error that names the impossible combination.
void validate(const TextConfig& cfg);

// ids (B, context) i32, each below the vocabulary; ends (B) i32, where causal: the end mark of each
// text, counted over all B * context tokens. -> (B, space)
Value text_features(Scope s, Value ids, Value ends, const TextConfig& cfg);

}  // namespace vitrum
