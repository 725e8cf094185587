// A model that gives out its attention weights, and the gradient of a class's score with respect to
// them, for one image at a time.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "vitrum/explain/layer_attention.h"
#include "vitrum/graph/taps.h"
#include "vitrum/infer/model_program.h"

namespace vitrum {

struct AttentionOptions {
  std::vector<int64_t> layers = {};  // by number from 0; empty: all
  bool gradient = false;
  DType compute = DType::kF32;
};

class AttentionProgram {
 public:
  // The store holds the model's weights and must outlive this. Fails for a model without attention.
  AttentionProgram(const ModelSpec& model, ParamStore& store, const AttentionOptions& options = {});

  void run(const uint8_t* pixels);  // (C, H, W): the logits and the weights
  const std::vector<float>& logits() const { return logits_; }
  void run_backward(int64_t target);  // the gradients, of this class's logit; after run()

  size_t layers() const { return sites_.size(); }
  LayerAttention layer(size_t i) const;  // of what was run last
  std::vector<LayerAttention> all() const;

 private:
  struct Site : AttentionSite {
    LayerAttention form;  // everything but the numbers
    Value weights, gradient;
  };
  // What pools all tokens with a learned query, as SigLIP's head does.
  struct QueryPool {
    Value query, kv;  // (1, 1, C), (1, T, 2C)
    int64_t heads = 0;
  };
  QueryPool find_pool();
  std::vector<double> pool_shares() const;
  std::vector<Site> record(const AttentionOptions& options);
  Program compile(ParamStore& store, const AttentionOptions& options);
  std::vector<float> read(Value v) const;

  Graph graph_{Mode::kInference};
  TracedModel model_;
  QueryPool pool_;  // heads is 0 where there is none
  std::vector<Site> sites_;
  Value seed_;  // (1, classes): the gradient of the score with respect to the logits
  Program program_;
  size_t forward_;  // kernels before the backward pass
  std::vector<float> logits_;
};

}  // namespace vitrum
