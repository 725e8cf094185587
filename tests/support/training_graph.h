// A traced, fused and differentiated training graph of a small model, ready to compile.
#pragma once
#include <array>

#include "vitrum/graph/functional.h"
#include "vitrum/graph/passes.h"
#include "vitrum/models/model.h"
#include "vitrum/runtime/program.h"

namespace vitrum::test {

struct TrainingOptions {
  bool fused = true;
  Recompute recompute = Recompute::kNone;
  float smoothing = 0;
  bool soft_targets = false;
};

struct TrainingGraph {
  Graph g{Mode::kTraining};
  Value image, target, weight, logits, loss, rng;

  TrainingGraph(const ModelConfig& cfg, int64_t batch, const TrainingOptions& options = {}) {
    image = g.input("image", {batch, cfg.channels(), cfg.image_h(), cfg.image_w()});
    logits = model(Scope(g), image, cfg);
    target = options.soft_targets ? g.input("target", {batch, cfg.classes()})
                                  : g.input("target", {batch}, DType::kI32);
    weight = g.input("weight", {batch}, DType::kF32, /*exact=*/true);
    loss = cross_entropy(logits, target, weight, options.smoothing);
    rng = g.rng();
    if (options.fused) fuse(g);
    differentiate(g, loss, options.recompute);
  }
  Program compile(ParamStore& store, const CompileOptions& options = {}) {
    const std::array outputs = {loss, logits};
    return Program(g, outputs, store, options);
  }
};

}  // namespace vitrum::test
