// What the image towers of CLIP and SigLIP have in common in transformers' files: the names of
// their blocks and the keys of their configs.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "vitrum/models/vit.h"
#include "vitrum/weights/dialect.h"
#include "vitrum/weights/json_keys.h"

namespace vitrum {

inline constexpr NameRule kTowerRules[] = {
    {"patch_embed.proj.weight", "embeddings.patch_embedding.weight", {}, Layout::kPatch},
    {"patch_embed.proj", "embeddings.patch_embedding"},
    {"pos_embed", "embeddings.position_embedding.weight", {}, Layout::kSqueezed},
    // SigLIP 2's for images of any shape. A classifier of these, without a pooling head, has no
    // names that CLIP's had not.
    {"pos_grid", "embeddings.position_embedding.weight", {}, Layout::kKernel},
    {"blocks.{i}.norm1", "encoder.layers.{i}.layer_norm1"},
    {"blocks.{i}.attn.qkv", "encoder.layers.{i}.self_attn.{q_proj,k_proj,v_proj}"},
    {"blocks.{i}.attn.proj", "encoder.layers.{i}.self_attn.out_proj"},
    {"blocks.{i}.norm2", "encoder.layers.{i}.layer_norm2"},
    {"blocks.{i}.mlp.fc1", "encoder.layers.{i}.mlp.fc1"},
    {"blocks.{i}.mlp.fc2", "encoder.layers.{i}.mlp.fc2"},
    {"norm", "post_layernorm"},
};

// SigLIP's. The query's projection and that of keys and values are parts of one tensor.
inline constexpr NameRule kSiglipPool[] = {
    {"attn_pool.latent", "head.probe"},
    {"attn_pool.q.weight", "head.attention.in_proj_weight[0:1/3]"},
    {"attn_pool.q.bias", "head.attention.in_proj_bias[0:1/3]"},
    {"attn_pool.kv.weight", "head.attention.in_proj_weight[1:3/3]"},
    {"attn_pool.kv.bias", "head.attention.in_proj_bias[1:3/3]"},
    {"attn_pool.proj", "head.attention.out_proj"},
    {"attn_pool.norm", "head.layernorm"},
    {"attn_pool.mlp", "head.mlp"},
    {"head", "^classifier"},
};
inline constexpr auto kSiglipRules = joined(kTowerRules, kSiglipPool);

// A text tower beside the image tower is no part of it; a table of numbers from 0 on is no weight;
// and where the mean is taken, the pooling head is of no use.
inline constexpr std::string_view kSiglipIgnored[] = {
    "embeddings.position_ids", "head.", "^text_model.", "^logit_scale", "^logit_bias"};
inline constexpr std::string_view kSiglipProbes[] = {"patch_embed.proj.weight",
                                                     "patch_embed.proj.bias", "attn_pool.latent",
                                                     "blocks.0.norm1.weight", "norm.weight"};

// One set of names for models of one size and for those of any shape, read by one rule.
inline constexpr Dialect kSiglipHf{
    "vit", "hf",          "Hugging Face transformers", kSiglipRules, kSiglipIgnored,
    {},    kSiglipProbes, PositionRule::kBicubic,      1e-6f,        Act::kGeluTanh};

// A config is a tower's own, or has it as vision_config beside that of texts: `pair` is the
// model_type of such.
bool is_tower_pair(const JsonKeys& keys, std::string_view pair);
JsonKeys tower_keys(const JsonKeys& keys, std::string_view pair);

// Sizes, eps, activation and dropout; what `c` has stands where a key is missing.
void read_tower(const JsonKeys& keys, ViTConfig& c);
// The same as `type` ("clip_vision_model") has them.
nlohmann::ordered_json write_tower(const ViTConfig& c, const std::string& type);
// A model of a tower with a classifier: `kind` is "CLIP", `pair` its model_type.
std::string write_tower_classifier(const std::string& kind, const std::string& pair,
                                   const nlohmann::ordered_json& tower, const std::string& dtype);

// Fails where transformers has no tower like that; `kind` is for the message.
void require_plain_tower(const Dialect& dialect, const ViTConfig& c, const char* kind);

}  // namespace vitrum
