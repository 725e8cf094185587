// What the files of all models of ViTConfig have in common: timm's form of them, our own object,
// and other sizes. A weight family adds how its framework names and states them.
#pragma once
#include "vitrum/weights/family.h"

namespace vitrum {

inline constexpr std::string_view kViTProbes[] = {"patch_embed.proj.weight",
                                                  "cls_token",
                                                  "pos_embed",
                                                  "blocks.0.norm1.weight",
                                                  "blocks.0.attn.qkv.weight",
                                                  "blocks.0.attn.qkv.bias",
                                                  "blocks.0.attn.proj.weight",
                                                  "blocks.0.mlp.fc1.weight",
                                                  "norm.weight"};

inline constexpr std::string_view kTimmBefore[] = {"pre_logits."};
// What MAE's and DINOv2's authors have beside the model that is used, and OpenCLIP's files of two
// towers, where that of images is timm's.
inline constexpr std::string_view kTimmIgnored[] = {"mask_token", "decoder_", "^text.",
                                                    "^logit_scale", "^logit_bias"};
inline constexpr Dialect kTimmViT{
    "vit",        "timm",      "timm",     kTimmRules,
    kTimmIgnored, kTimmBefore, kViTProbes, PositionRule::kBicubicAntialias,
    1e-6f,        Act::kGelu};

struct ViTFiles {
  using Config = ViTConfig;
  static constexpr bool kFixedInputSize = true;

  static void fields(FieldVisitor& visit, ViTConfig& c);
  static bool same_sizes(const ViTConfig& p, const ViTConfig& c);
  static void check_size(const ViTConfig& c, const std::string& path);
  static void read_timm(const JsonKeys& top, const JsonKeys& args, ViTConfig& c);
  static TimmConfig write_timm(const ModelSpec& spec, const ViTConfig& c);
  // What transformers' ViT and BEiT call alike.
  static void read_hf_sizes(const JsonKeys& keys, ViTConfig& c);
  static LayoutSizes layout_sizes(const ViTConfig& c);
  // Only what agrees with the rest of the model is taken: a size is then no larger than the file.
  static ViTConfig stored_sizes(ViTConfig c, const Dialect& dialect, const StoredDims& dims);
  static void take_stored(ViTConfig&, const ViTConfig&);
  static std::unique_ptr<Adapter> adapt(const ViTConfig& stored, const ViTConfig& wanted,
                                        PositionRule rule);
  static std::vector<std::string> notes(const Dialect& dialect, const ViTConfig& c, bool says_so);
  static bool two_heads(const ViTConfig& c);
  static std::vector<BesideTensor> beside(const Dialect&, const ViTConfig&) { return {}; }
};

}  // namespace vitrum
