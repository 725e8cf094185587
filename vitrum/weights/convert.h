// A model from one framework's files to another's. Numbers are never changed: what was f16 stays
// f16, and a round trip gives the same bits.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "vitrum/weights/model_dir.h"

namespace vitrum {

// What rounding its weights did to a layer.
struct QuantizedLayer {
  std::string name;
  double error = 0;  // root mean square of the difference, as a share of that of the weights
};

struct Converted {
  int64_t tensors = 0, bytes = 0;  // of weights
  std::vector<QuantizedLayer> layers = {};
  std::vector<std::string> notes;  // where the target computes a little differently, for people
};

// `source` is a model directory, or a weight file of the preset `arch`. `dialect` is "timm" or "hf"
// (`target` is a directory with configs, or a bare .safetensors or .pth), "torchvision" or
// "original", the names of the model's authors (a bare file, of OpenCLIP's pairs also a directory),
// or "npz" (a .npz). Fails, naming it,
// where the target has no place for a part of the model.
// Layers that `in_bytes` knows are rounded to eight bits (core/eight_bits.h, core/e4m3.h); only
// directories and .safetensors hold these.
using InBytes = std::function<bool(const std::string& layer)>;
struct Parts {
  // Of a model of images and texts (weights/text_tower.h) both towers are written, with the
  // tokenizer's files, where the dialect has names for both; timm's, which has not, gets the image
  // tower.
  bool texts = true;
  // Of a masked autoencoder the decoder (weights/mae_decoder.h); fails where it has none, or the
  // dialect has no place for it.
  bool decoder = false;
  DType eight_bits = DType::kI8;  // or kE4M3: of layers that `in_bytes` knows
};
Converted convert_model(const std::string& source, const std::string& arch,
                        const std::string& target, const std::string& dialect,
                        const InBytes& in_bytes = {}, const Parts& parts = {});

// Fails, saying why, where transformers' directories cannot hold the model.
void require_hf(const ModelSpec& spec);

}  // namespace vitrum
