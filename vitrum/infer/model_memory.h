// How much memory a model takes: what its programs would ask for, without building them.
#pragma once
#include <cstdint>
#include <functional>

#include "vitrum/graph/passes.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

struct ModelMemory {
  int64_t weights = 0;  // bytes; in training with gradients, AdamW's moments and a bf16 copy
  int64_t arena = 0;    // the planned activations: Plan::bytes, where nothing is joined
  int64_t inputs = 0;   // images, labels and constants
  int64_t total() const { return weights + arena + inputs; }
};

struct MemoryOptions {
  int64_t batch = 1;
  DType compute = DType::kF32;
  Recompute recompute = Recompute::kNone;
  std::function<void(Graph&)> freeze = {};  // clears `trainable` where it likes
};

ModelMemory inference_memory(const ModelSpec& model, const MemoryOptions& options);
ModelMemory training_memory(const ModelSpec& model, const MemoryOptions& options);

}  // namespace vitrum
