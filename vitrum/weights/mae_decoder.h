// The decoder that files of masked autoencoders hold beside the encoder: those of the authors, and
// transformers' ViTMAEForPreTraining.
#pragma once
#include <optional>
#include <string>

#include "vitrum/models/mae.h"
#include "vitrum/runtime/params.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

// Its sizes (of heads what the authors have, where nothing says so); nothing where there is none.
std::optional<MaeConfig> stored_decoder(const std::string& model);

// Fills the decoder's parameters of the store, or fails with all differences. Positions of an image
// of another size stay the table that they are.
void load_decoder(const std::string& model, const ModelSpec& spec, ParamStore& store);

}  // namespace vitrum
