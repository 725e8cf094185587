// Names and arguments of timm's class Eva (EVA-02, DINOv3), which those of its class Beit are part
// of: no biases of keys, LayerScale by another name.
#pragma once
#include "vitrum/weights/families/vit.h"

namespace vitrum {

// With names that tell the dialects below from a plain ViT's.
inline constexpr std::string_view kEvaProbes[] = {"patch_embed.proj.weight",
                                                  "cls_token",
                                                  "pos_embed",
                                                  "blocks.0.norm1.weight",
                                                  "blocks.0.attn.qkv.weight",
                                                  "blocks.0.attn.qkv.bias",
                                                  "blocks.0.attn.proj.weight",
                                                  "blocks.0.mlp.fc1.weight",
                                                  "blocks.0.ls1.gamma",
                                                  "norm.weight"};

#define EVA_PATCHES \
  { "patch_embed.proj.weight", "patch_embed.proj.weight", {}, Layout::kConv }
#define EVA_SCALES \
  {"blocks.{i}.ls1.gamma", "blocks.{i}.gamma_1"}, { "blocks.{i}.ls2.gamma", "blocks.{i}.gamma_2" }
#define EVA_HELD_BIAS \
  { "blocks.{i}.attn.qkv.bias", "blocks.{i}.attn.{q_bias,-,v_bias}" }
#define EVA_TWO_FC1 \
  { "blocks.{i}.mlp.fc1", "blocks.{i}.mlp.{fc1_g,fc1_x}" }

// EVA-02 T and S, DINOv3 S, B and L, BEiT.
inline constexpr NameRule kEvaRules[] = {EVA_PATCHES, EVA_HELD_BIAS, EVA_SCALES, {"", ""}};
// DINOv3 with a gated MLP.
inline constexpr NameRule kEvaTwoFc1[] = {
    EVA_PATCHES, EVA_HELD_BIAS, EVA_TWO_FC1, EVA_SCALES, {"", ""}};
// EVA-02 B and L.
inline constexpr NameRule kEvaApart[] = {
    EVA_PATCHES,
    {"blocks.{i}.attn.qkv.weight", "blocks.{i}.attn.{q_proj,k_proj,v_proj}.weight"},
    {"blocks.{i}.attn.qkv.bias", "blocks.{i}.attn.{q_proj,-,v_proj}.bias"},
    EVA_TWO_FC1,
    EVA_SCALES,
    {"", ""}};

#undef EVA_TWO_FC1
#undef EVA_HELD_BIAS
#undef EVA_SCALES
#undef EVA_PATCHES

// Whether biases of keys, where there could be some, do not exist.
inline bool holds_k_bias(const ViTConfig& c) { return !c.qkv_bias || !c.k_bias; }

struct EvaFiles : ViTFiles {
  static void read_timm(const JsonKeys& top, const JsonKeys& args, ViTConfig& c);
  static TimmConfig write_timm(const ModelSpec& spec, const ViTConfig& c);
  static ViTConfig stored_sizes(ViTConfig c, const Dialect& dialect, const StoredDims& dims);
  static void give_biases(const Dialect& dialect, ViTConfig& c);
};

}  // namespace vitrum
