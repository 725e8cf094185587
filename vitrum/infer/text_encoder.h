// Vectors of texts: a model's tokenizer and text tower.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "vitrum/infer/shared_device.h"
#include "vitrum/text/tokenizer.h"
#include "vitrum/weights/text_tower.h"

namespace vitrum {

class TextEncoder {
 public:
  // `model` is a directory whose model has a text tower.
  TextEncoder(const std::string& model, SharedDevice& device, DType compute);

  const TextSpec& spec() const { return spec_; }
  // (texts, space), as the tower gives them: not of length 1. On a CPU the bits of a row do not
  // depend on the texts beside it.
  std::vector<float> encode(std::span<const std::string> texts);

 private:
  struct TextProgram;
  void check_tokenizer(const std::string& model) const;

  std::string model_;
  SharedDevice& device_;
  DType compute_;
  TextSpec spec_;
  std::unique_ptr<Tokenizer> tokenizer_;
  Graph parameters_{Mode::kInference};
  std::unique_ptr<FrozenWeights> weights_;
};

// The same by way of a cache on disk (VITRUM_CACHE), so that the tower is read once for texts that
// are asked for again.
std::vector<float> text_vectors(const std::string& model, SharedDevice& device, DType compute,
                                std::span<const std::string> texts);

}  // namespace vitrum
