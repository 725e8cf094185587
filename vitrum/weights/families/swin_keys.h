// What the files of Swin and Swin V2 have in common: fields, sizes, names, and keys of configs.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "vitrum/models/swin.h"
#include "vitrum/weights/family.h"

namespace vitrum {

void swin_fields(FieldVisitor& visit, SwinConfig& c);
bool same_swin_sizes(const SwinConfig& preset, const SwinConfig& c);

inline constexpr NameRule kTorchvisionSwin[] = {
    {"patch_embed.proj.weight", "features.0.0.weight", {}, Layout::kConv},
    {"patch_embed.proj", "features.0.0"},
    {"patch_embed.norm", "features.0.2"},
    {"layers.{s}.downsample", "features.{2s}"},
    {"layers.{s}.blocks.{i}.mlp.fc1", "features.{2s+1}.{i}.mlp.0"},
    {"layers.{s}.blocks.{i}.mlp.fc2", "features.{2s+1}.{i}.mlp.3"},
    {"layers.{s}.blocks.{i}", "features.{2s+1}.{i}"},
    {"norm", "norm"},
    {"head.fc", "head"},
};

// Reads the arguments that both have, and knows the names of `more`.
void read_swin_timm(const JsonKeys& top, const JsonKeys& args, SwinConfig& c,
                    const std::vector<std::string>& more = {});
nlohmann::ordered_json swin_timm_sizes(const SwinConfig& c);
TimmConfig swin_timm_config(const std::string& architecture,
                            const nlohmann::ordered_json& model_args);

void read_swin_hf(const JsonKeys& keys, SwinConfig& c);
// `kind` is "Swin" or "Swinv2".
nlohmann::ordered_json swin_hf_keys(const SwinConfig& c, const std::string& kind,
                                    const std::string& dtype);

// Classes, head and channels, as a bare file's tensors have them.
void take_swin_dims(SwinConfig& c, const StoredDims& dims);
// `fills_up`: some window of the model is not full of tokens.
std::vector<std::string> swin_notes(const Dialect& dialect, const SwinConfig& c, bool fills_up,
                                    bool says_so);

// Members of WeightsOf that are the same for both.
struct EitherSwin {
  static constexpr bool kFixedInputSize = true;
  static bool holds(const SwinConfig&) { return true; }
  static void check_size(const SwinConfig& c, const std::string& path);
  static void read_preprocessor(const ConfigText& stated, ModelSpec& spec);
  static LayoutSizes layout_sizes(const SwinConfig& c) {
    return {.patch_h = c.patch_h, .patch_w = c.patch_w, .channels = c.channels};
  }
  static void give_biases(const Dialect& dialect, SwinConfig& c) {
    c.head_bias = true;
    if (dialect.name == "torchvision") c.qkv_bias = true;
  }
  static bool two_heads(const SwinConfig&) { return false; }
  static std::vector<BesideTensor> beside(const Dialect&, const SwinConfig&) { return {}; }
};

}  // namespace vitrum
