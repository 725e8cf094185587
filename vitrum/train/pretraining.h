// Learning without labels: what a masked autoencoder needs beside what every run has.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "vitrum/infer/evaluator.h"
#include "vitrum/models/mae.h"
#include "vitrum/runtime/program.h"
#include "vitrum/train/recipe.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

// The recipe's masks and decoder for this model; fails saying why not where it is no ViT, or one
// that needs all of its patches.
MaeConfig mae_for(const Recipe& recipe, const ModelSpec& model);

// The decoder of the recipe's weights, where they have one of these sizes; else it starts anew.
// Says which, where there are weights at all.
std::string load_stored_decoder(const Recipe& recipe, const ModelSpec& model, ParamStore& store);

// Image (B, C, H, W) u8 and the loss; `weight` is (B).
struct TracedMae {
  Value image, loss;
};
TracedMae trace_mae(Graph& g, const ModelSpec& model, const MaeConfig& mae, Value weight);

// The loss on images that were not trained on, without dropout, with masks that are the same every
// time.
class MaskedEvaluator {
 public:
  // `weights` is kMaster, or kEma for the averaged ones.
  MaskedEvaluator(const Recipe& recipe, const ModelSpec& model, ParamStore& store, int64_t batch,
                  Arena weights);

  // Where the loader's batches have rows in place of pixels: who makes pixels of them.
  TensorView pixels() const { return program_[traced_.image]; }
  void set_images(std::unique_ptr<ResidentImages> images) { images_ = std::move(images); }

  // As Evaluator::run(); only images and loss are in the result.
  Evaluation run(Loader& loader, const KeepGoing& keep_going, Communicator* comm);

 private:
  struct Sum {
    double loss = 0;
    int64_t images = 0;
  };
  Sum loss_of(const Batch& batch, int64_t index);

  uint64_t seed_;
  Graph graph_{Mode::kInference};
  Value weight_;
  TracedMae traced_;
  Program program_;
  std::unique_ptr<ResidentImages> images_;
  std::vector<float> weights_;
};

}  // namespace vitrum
