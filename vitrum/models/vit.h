// The ViT family: the paper's model, timm's, and the variants of the tutorials people start from.
#pragma once
#include <string>
#include <vector>

#include "vitrum/graph/graph.h"

namespace vitrum {

// Start values, named after who states them.
enum class InitStyle : uint8_t {
  kTimm,    // weights N(0, 0.02), biases 0, positions N(0, 0.02), class token N(0, 1e-6)
  kMinViT,  // minvit_cifar10: PyTorch's Linear default; tokens and positions 0
  kNotes,   // vit_notes_*: as kLesson, but attention as nn.MultiheadAttention: xavier-uniform input
            // projection, biases 0
  kLesson,  // vit_lesson_*: PyTorch's Linear default; tokens and positions N(0, 1)
  kMnist,   // vit_mnist: as kNotes, positions uniform [0, 1); every block starts as a copy of the
            // first
};

// What the head reads, all behind the final norm but for kMean, which has its own (fc_norm), and
// kBareMean, which has none.
enum class ViTPool : uint8_t {
  kToken,         // the class token
  kMean,          // the mean of the patches
  kTokenAndMean,  // both side by side, as DINOv2's classifiers
  kNormedMean,    // the mean of the patches behind the norm, as timm's DINOv3
  kMap,           // what a learned query sees of all tokens, and an MLP on it, as SigLIP's head
  kBareMean,      // the mean of the patches without a norm, as transformers' CLIP classifiers
};

// Rotary positions: the angles by which queries and keys of a patch are turned. Of a head of D
// values one half of the pairs turns with the patch's row, the other with its column.
enum class Rope : uint8_t {
  kNone,
  kEva,     // EVA-02: index * rope_grid / n by theta^(-j / (D / 4)); pairs are neighbours
  kDinov3,  // 2 pi (2 (index + 0.5) / n - 1) by the same; pairs are halves of the head
};

// A learned bias of the scores by the distance of two patches, as BEiT has it.
enum class DistanceBias : uint8_t {
  kNone,
  kEach,
  kShared
};  // a table in each block, or one for all

struct ViTConfig {
  int64_t image_h = 224, image_w = 224, patch_h = 16, patch_w = 16, channels = 3;
  int64_t width = 768, depth = 12, heads = 12, mlp_width = 3072, classes = 1000;
  float eps = 1e-6f;
  Act act = Act::kGelu;
  PatchOrder patch_order = PatchOrder::kChannelFirst;
  InitStyle init = InitStyle::kTimm;

  bool pre_norm = true;  // false: x = norm(x + f(x)), and no final norm
  bool class_token = true;
  ViTPool pool = ViTPool::kToken;
  int64_t registers = 0;         // tokens behind the class token that only take part in attention
  bool prefix_positions = true;  // else only patches have positions
  bool norm_pre = false;         // a norm before the first block, as CLIP has it
  // DeiT: a second token after the class token, and a second head that reads it. Without that head
  // (transformers' DeiTForImageClassification) the token only takes part in attention.
  bool distilled = false, dist_head = true;
  bool sincos_positions = false;  // fixed 2-D sine-cosine instead of learned
  // Of these, wavelengths grow as 10000^(j / (q - 1)), so that the last is 10000; else, as MAE has
  // it, as 10000^(j / q).
  bool sincos_endpoint = true;
  // Pixels beyond the last whole patch are not seen, as a convolution does it; else patches must
  // cover the image.
  bool floor_patches = false;
  bool patch_bias = true, qkv_bias = true, proj_bias = true, mlp_bias = true, norm_bias = true,
       head_bias = true;
  bool k_bias = true;     // with qkv_bias; else that of keys does not exist, see ParamSpec::held
  float layer_scale = 0;  // start value; 0: none

  bool learned_positions = true;  // else none are added, unless sincos_positions
  // Learned positions are those of a square of so many patches a side, whatever the image, and are
  // resized to its patches, as SigLIP 2's NaFlex has it; 0: each patch has its own.
  int64_t position_grid = 0;
  Rope rope = Rope::kNone;
  int64_t rope_theta = 10000, rope_grid = 16;
  bool rope_bf16 = false;  // periods are rounded to bf16, as Meta's DINOv3 files have them
  DistanceBias distance_bias = DistanceBias::kNone;
  bool gated = false;  // the MLP is act(W x) * V x: fc1 holds W, then V, mlp_width rows each
  bool attn_norm = false, mlp_norm = false;  // before attn.proj and mlp.fc2, as EVA-02 has them

  // Dropout, by place. drop_path grows linearly from 0 at the first block to its value at the last.
  float drop_pos = 0, drop_attn = 0, drop_proj = 0, drop_act = 0, drop_mlp = 0, drop_path = 0;
  // The share of patches that each image goes without, others every time.
  float patch_drop = 0;

  int64_t patches() const { return (image_h / patch_h) * (image_w / patch_w); }
  int64_t prefix_tokens() const { return (class_token ? 1 : 0) + (distilled ? 1 : 0) + registers; }
  int64_t positions() const { return prefix_positions ? tokens() : patches(); }
  int64_t feature_width() const { return pool == ViTPool::kTokenAndMean ? 2 * width : width; }
  int64_t tokens() const { return patches() + prefix_tokens(); }
  bool two_heads() const { return distilled && dist_head; }
  bool operator==(const ViTConfig&) const = default;
};

// Throws a usage error that names the impossible combination.
void validate(const ViTConfig& cfg);

// (B, C, H, W) already normalised -> (B, classes). Without a head (classes = 0): the features.
Value vit(Scope s, Value image, const ViTConfig& cfg);

// (B, width) each. Of a model with two heads, `pooled` is the mean of what they see.
struct ViTFeatures {
  Value pooled;
  Value cls = {}, dist = {};  // only where there are two heads
};
ViTFeatures vit_features(Scope s, Value image, const ViTConfig& cfg);

// (B, classes) each. Two heads answer as one by their mean; training may ask each for its own.
struct ViTLogits {
  Value logits;
  Value cls = {}, dist = {};  // only where there are two heads
};
ViTLogits vit_head(Scope s, const ViTFeatures& features, const ViTConfig& cfg);

// What attention takes beside the tokens, made once for all blocks.
struct ViTAttends {
  Value angles = {};  // of rotary positions: Rotate's table
  Value bias = {};    // (H, T, T), where all blocks share it
  Value mask = {};    // (W, T, T), see Attention
};
ViTAttends vit_attends(Scope s, const ViTConfig& cfg);

// What the angles of rotary positions are divided by, one for each pair of an axis.
std::vector<float> rope_periods(const ViTConfig& cfg);

// What a masked autoencoder makes of an image: the tokens of `choice` alone go through the blocks,
// (B, n, C), behind the model's last norm. Only for models whose attention has no positions of its
// own.
Value vit_encode(Scope s, Value image, const ViTConfig& cfg, const TokenChoice& choice);

// Fixed 2-D sine-cosine positions (positions(), width) over the patch grid; those of prefix tokens
// are zero.
std::vector<float> sincos_table(const ViTConfig& cfg);

// One encoder block (B, T, C) -> (B, T, C).
Value vit_block(Scope s, Value x, const ViTConfig& cfg, int64_t index,
                const ViTAttends& extra = {});

}  // namespace vitrum
