// What a masked autoencoder makes of photos, to be looked at.
#pragma once
#include <string>
#include <vector>

#include "vitrum/data/dataset.h"
#include "vitrum/data/image.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/train/recipe.h"

namespace vitrum {

// Photos as the model is given them, and the same with hidden patches grey, and filled in. Masks
// hang on the recipe's seed alone. Where each patch was asked for with its mean and deviation taken
// out, what is filled in has those of the photo's patch, as the authors draw it.
struct Reconstruction {
  Image photo, seen, filled;
};
// Of the first images that can be read; `model` is a directory with a decoder beside the encoder.
std::vector<Reconstruction> reconstruct(const std::string& model, const Recipe& recipe,
                                        const Dataset& images, int64_t most,
                                        const DeviceOptions& device = {.device = "cpu"});

// All of them in one picture: photo, seen, filled in beside each other, two of these in a row.
Image sheet_of(const std::vector<Reconstruction>& all);

// Whether such pictures can be made of this directory.
bool has_decoder(const std::string& model);

}  // namespace vitrum
