// Masked autoencoders (He et al., 2021): a ViT that sees a quarter of an image's patches, and a
// small decoder that is asked for the pixels of the others. The decoder's names are those of the
// authors.
#pragma once
#include <string_view>
#include <vector>

#include "vitrum/models/vit.h"

namespace vitrum {

struct MaeConfig {
  double mask_ratio = 0.75;  // the share of patches that are not seen
  int64_t width = 512, depth = 8, heads = 16, mlp_width = 2048;  // of the decoder
  bool norm_pix = true;  // a patch's pixels are asked for with mean 0 and deviation 1
  bool operator==(const MaeConfig&) const = default;
};
// The paper's decoder, or for encoders narrower than that a smaller one: as wide, and four blocks.
MaeConfig usual_decoder(const ViTConfig& encoder);

// Throws a usage error that says why not.
void validate(const MaeConfig& mae, const ViTConfig& encoder);

// Both images are the same, normalised; two values, so that each is computed where it is used.
struct MaeInputs {
  Value image, asked;  // (B, C, H, W)
  Value weight;        // (B)
};
// Sum over images of weight * the mean square over the patches that were not seen. Parameters of
// the encoder are those of vit() without a head; its positions are fixed, as the decoder's are:
// sine-cosine tables that do not learn, unless weights bring others.
Value mae_loss(Scope s, const MaeInputs& in, const ViTConfig& encoder, const MaeConfig& mae);

// What the decoder makes of an image, to be looked at.
struct MaeGuess {
  Value pixels;  // (B, N, P P C), patches flattened channel last: as the loss asks for those that
                 // were not seen, 0 in the others
  Value hidden;  // (B, N, 1): 1 where a patch was not seen, else 0
};
MaeGuess mae_guess(Scope s, Value image, const ViTConfig& encoder, const MaeConfig& mae);

// The decoder's parameters, in the order of the graph.
std::vector<ParamSpec> decoder_params(const ViTConfig& encoder, const MaeConfig& mae);

// Whether a parameter is the decoder's.
bool in_decoder(std::string_view param);

}  // namespace vitrum
