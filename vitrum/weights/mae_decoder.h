// The decoder of a masked autoencoder: beside the encoder in files of the authors and of
// transformers' ViTMAEForPreTraining, and in a file of its own, decoder.safetensors, in directories
// of ours, so that timm finds there what it looks for and nothing else.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "vitrum/models/mae.h"
#include "vitrum/runtime/params.h"
#include "vitrum/weights/checkpoint.h"
#include "vitrum/weights/model_dir.h"
#include "vitrum/weights/stored_tensors.h"

namespace vitrum {

// Its sizes (of heads what the authors have, where nothing says so); nothing where there is none.
std::optional<MaeConfig> stored_decoder(const std::string& model);

// Fills the decoder's parameters of the store, or fails with all differences. Positions of an image
// of another size stay the table that they are.
void load_decoder(const std::string& model, const ModelSpec& spec, ParamStore& store);

inline constexpr const char* kDecoderFile = "decoder.safetensors";

// decoder.safetensors in `dir`, of parameters of the store under the authors' names.
void save_decoder(const std::string& dir, const MaeConfig& mae, ParamStore& store,
                  Arena which = Arena::kMaster);

// A stored decoder on its way to another file, numbers unchanged.
class DecoderCopy {
 public:
  // Fails where `model` has none. `dialect` is that of the encoder that is written.
  DecoderCopy(const std::string& model, const ModelSpec& spec, const Dialect& dialect);

  const std::vector<NamedTensor>& tensors() const { return written_.all(); }
  // The config of an encoder alone, as one of ViTMAEForPreTraining.
  std::string hf_config(const std::string& encoder) const;
  void write_file(const std::string& dir) const;  // decoder.safetensors
  void check_intact() const { file_.check_intact(); }

 private:
  ModelConfig config_;
  MaeConfig mae_;
  Checkpoint file_;
  Naming naming_;
  StoredTensors written_;
};

}  // namespace vitrum
