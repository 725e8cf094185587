// What a model directory of two towers says of the one for texts, and its weights.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "vitrum/models/text.h"
#include "vitrum/weights/frozen_weights.h"

namespace vitrum {

struct TextSpec {
  TextConfig config;
  // What the cosine of an image's and a text's vector becomes: scale * cosine + bias. The sigmoid
  // of that says whether the text fits the image (SigLIP); the softmax over texts which one (CLIP).
  float scale = 1, bias = 0;
  bool sigmoid = false;
  bool canonical = false;  // texts go through canonical() before they are cut into tokens
  bool from_open_clip = false;
};

// Whether the directory holds a model of images and texts: CLIPModel or SiglipModel of
// transformers, or one of OpenCLIP's.
bool has_text_tower(const std::string& model);
// Fails where it does not, naming what would.
TextSpec resolve_text_tower(const std::string& model);
// What tells one text tower from another: its config, and of its weights those that every training
// changes and that are few, vectors, positions and the projection.
std::string text_digest(const std::string& model);
// Where its tensors are, and what they are called there.
struct TextFile {
  std::string path;
  Naming naming;
};
TextFile text_file(const std::string& model);
// transformers' names: those of SiglipModel or of CLIPModel.
const Dialect& hf_text_dialect(bool siglip);
// Every parameter of such a tower, under "text.".
std::vector<ParamSpec> text_params(const TextConfig& config);
// `g` states its parameters, under "text.".
std::unique_ptr<FrozenWeights> open_text_weights(const std::string& model, const Graph& g,
                                                 Backend& backend);

}  // namespace vitrum
