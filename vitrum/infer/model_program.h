// A model as it is run: from raw pixels to logits, and to the features before the head.
#pragma once
#include <cstdint>
#include <span>

#include "vitrum/data/preprocess.h"
#include "vitrum/runtime/program.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

// Image (B, C, H, W) u8, features (B, width), logits (B, classes); without a head the logits are
// the features. cls, dist: each head's own, of a model that has two.
struct TracedModel {
  Value image, features, logits;
  Value cls = {}, dist = {};
};
TracedModel trace(Graph& g, const ModelSpec& model, int64_t batch);

// The part of the model's preprocessing that works on pixels: channels, resize, crop.
Preprocess preprocess_of(const ModelSpec& model);

// The model for one batch size. Both outputs are always kept, so that neither depends on whether
// the other was asked for.
class ModelProgram {
 public:
  ModelProgram(const ModelSpec& model, ParamStore& store, int64_t batch,
               const CompileOptions& options = {});

  int64_t batch() const { return batch_; }
  const Plan& plan() const { return program_.plan(); }

  void run(const uint8_t* pixels);  // (batch, C, H, W)
  void read_logits(float* to) const { program_.download(to, model_.logits); }
  void read_features(float* to) const { program_.download(to, model_.features); }

 private:
  Program compile(ParamStore& store, const CompileOptions& options);

  int64_t batch_;
  Graph graph_{Mode::kInference};
  TracedModel model_;
  Program program_;
};

}  // namespace vitrum
