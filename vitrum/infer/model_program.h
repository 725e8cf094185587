// A model as it is run: from raw pixels to logits, and to the features before the head.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "vitrum/data/preprocess.h"
#include "vitrum/runtime/program.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

// Image (B, C, H, W) u8, features (B, width), logits (B, classes); without a head the logits are
// the features. cls, dist: each head's own, of a model that has two.
struct TracedModel {
  Value image, features, logits;
  Value cls = {}, dist = {};
  Value mix = {};  // (B, 6), see Mix; where the images are mixed
};
// kFeatures: the head alone, `image` being the features. The graph has every parameter all the
// same, so that it shares a store with one from pixels. kNormalized: `image` is f32 and normalised
// already, as other frameworks give it to the model itself.
enum class InputStage : uint8_t { kPixels, kFeatures, kNormalized };
TracedModel trace(Graph& g, const ModelSpec& model, int64_t batch,
                  InputStage from = InputStage::kPixels, bool mixed = false);
// Whether kFeatures can be used: the logits depend on the pixels by way of the features alone.
bool head_sees_features_only(const ModelSpec& model);

// The linear layers of the model's blocks, which int8 rounds; a usage error where there are none.
// `name` is what the user calls the model.
std::vector<std::string> block_layers(const ModelSpec& model, const std::string& name);
// Those of them that fp8 rounds.
std::vector<std::string> e4m3_layers(const ModelSpec& model, const std::string& name);

// The part of the model's preprocessing that works on pixels: channels, resize, crop.
Preprocess preprocess_of(const ModelSpec& model);

// How many images of a batch one program should compute: no more than keep the backend busy, since
// more would only take memory.
int64_t images_at_once(const ModelSpec& model, const Backend& backend, DType compute,
                       int64_t batch);
// The same, where the multiply-adds of one image are known.
int64_t images_at_once(int64_t macs, const Backend& backend, DType compute, int64_t batch);

// The model for one batch size. Both outputs are always kept, so that neither depends on whether
// the other was asked for. `taps` name further values to keep (graph/taps.h); the outputs have the
// same bits with and without them.
class ModelProgram {
 public:
  ModelProgram(const ModelSpec& model, ParamStore& store, int64_t batch,
               const CompileOptions& options = {}, InputStage from = InputStage::kPixels,
               std::span<const std::string> taps = {});

  int64_t batch() const { return batch_; }
  const Plan& plan() const { return program_.plan(); }

  void upload(const void* images);  // (batch, C, H, W) as the input stage says, or features
  void run() { program_.run(); }    // on what was uploaded
  void run(const uint8_t* pixels) { upload(pixels), run(); }
  TensorView pixels() const { return program_[model_.image]; }
  TensorView logits() const { return program_[model_.logits]; }
  TensorView features() const { return program_[model_.features]; }
  void upload_image(size_t i, const void* pixels);  // (C, H, W), as the i-th of the batch
  void read_logits(float* to) const { program_.download(to, model_.logits); }
  void read_features(float* to) const { program_.download(to, model_.features); }
  void read_tap(size_t i, float* to) const;

  size_t kernels() const { return program_.kernels(); }

 private:
  Program compile(ParamStore& store, CompileOptions options);

  int64_t batch_;
  Graph graph_{Mode::kInference};
  TracedModel model_;
  std::vector<Value> taps_;
  Program program_;
};

}  // namespace vitrum
