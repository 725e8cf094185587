// A model that is loaded, warm and ready to answer.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "vitrum/core/spares.h"
#include "vitrum/explain/attention_program.h"
#include "vitrum/infer/engine.h"

namespace vitrum::serve {

// What one image needs on its way: reused, so that a request allocates little.
struct ImageSlot {
  explicit ImageSlot(const Predictor& predictor);
  std::vector<uint8_t> pixels;
  InputSize size;  // of the image in it; 0: the model's
  std::vector<float> logits, features;
};

class ServedModel {
 public:
  // One predictor for each of `replicas`.
  ServedModel(std::string name, const std::string& path,
              const std::vector<PredictorOptions>& replicas, const EngineOptions& engine);

  const std::string& name() const { return name_; }
  const std::string& version() const { return version_; }  // the digest of its weights
  Engine& engine() { return engine_; }
  const Predictor& predictor() const { return engine_.predictor(); }
  const ModelSpec& spec() const { return engine_.predictor().model(); }
  std::string label(int index) const;
  const std::string& card() const { return card_; }  // JSON, for /v1/models

  std::unique_ptr<ImageSlot> take_slot();
  void give_back(std::unique_ptr<ImageSlot> slot) { slots_.give(std::move(slot)); }

  // The attention overlay of an image as PNG, and what it shows. One at a time.
  std::string explain(const Image& image, int orientation, const std::string& method);

 private:
  std::string name_;
  Engine engine_;
  std::string version_, card_;
  Spares<ImageSlot> slots_;
  std::mutex explain_mutex_;
  std::unique_ptr<AttentionProgram> attention_;  // compiled when first asked for
};
using ModelPtr = std::shared_ptr<ServedModel>;

}  // namespace vitrum::serve
