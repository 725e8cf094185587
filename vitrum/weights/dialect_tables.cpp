// The tables. To add a dialect, add one here.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "vitrum/core/error.h"
#include "vitrum/core/nearest.h"
#include "vitrum/weights/dialect.h"

namespace vitrum {
namespace {

using enum Layout;
using Names = std::string_view;

constexpr NameRule kTimm[] = {
    {"patch_embed.proj.weight", "patch_embed.proj.weight", {}, kConv},
    {"", ""},
};

// What the hub holds and transformers writes; its modules are called otherwise since version 5.
constexpr NameRule kHuggingFace[] = {
    {"patch_embed.proj.weight", "embeddings.patch_embeddings.projection.weight", {}, kConv},
    {"patch_embed.proj", "embeddings.patch_embeddings.projection"},
    {"cls_token", "embeddings.cls_token"},
    {"dist_token", "embeddings.distillation_token"},
    {"pos_embed", "embeddings.position_embeddings"},
    {"blocks.{i}.norm1", "encoder.layer.{i}.layernorm_before", "layers.{i}.layernorm_before"},
    {"blocks.{i}.attn.qkv", "encoder.layer.{i}.attention.attention.{query,key,value}",
     "layers.{i}.attention.{q,k,v}_proj"},
    {"blocks.{i}.attn.proj", "encoder.layer.{i}.attention.output.dense",
     "layers.{i}.attention.o_proj"},
    {"blocks.{i}.norm2", "encoder.layer.{i}.layernorm_after", "layers.{i}.layernorm_after"},
    {"blocks.{i}.mlp.fc1", "encoder.layer.{i}.intermediate.dense", "layers.{i}.mlp.fc1"},
    {"blocks.{i}.mlp.fc2", "encoder.layer.{i}.output.dense", "layers.{i}.mlp.fc2"},
    {"norm", "layernorm"},
    {"head", "^cls_classifier", {}, kSame, /*two_heads=*/true},
    {"head", "^classifier"},
    {"head_dist", "^distillation_classifier", {}, kSame, /*two_heads=*/true},
};

// The second spelling is what the published files have; torchvision renames on loading.
constexpr NameRule kTorchvision[] = {
    {"patch_embed.proj.weight", "conv_proj.weight", {}, kConv},
    {"patch_embed.proj", "conv_proj"},
    {"cls_token", "class_token"},
    {"pos_embed", "encoder.pos_embedding"},
    {"blocks.{i}.norm1", "encoder.layers.encoder_layer_{i}.ln_1"},
    {"blocks.{i}.attn.qkv.weight",
     "encoder.layers.encoder_layer_{i}.self_attention.in_proj_weight"},
    {"blocks.{i}.attn.qkv.bias", "encoder.layers.encoder_layer_{i}.self_attention.in_proj_bias"},
    {"blocks.{i}.attn.proj", "encoder.layers.encoder_layer_{i}.self_attention.out_proj"},
    {"blocks.{i}.norm2", "encoder.layers.encoder_layer_{i}.ln_2"},
    {"blocks.{i}.mlp.fc1", "encoder.layers.encoder_layer_{i}.mlp.0",
     "encoder.layers.encoder_layer_{i}.mlp.linear_1"},
    {"blocks.{i}.mlp.fc2", "encoder.layers.encoder_layer_{i}.mlp.3",
     "encoder.layers.encoder_layer_{i}.mlp.linear_2"},
    {"norm", "encoder.ln"},
    {"head", "heads.head"},
};

#define BLOCK "Transformer/encoderblock_{i}/"
#define ATTENTION BLOCK "MultiHeadDotProductAttention_1/"
constexpr NameRule kGoogle[] = {
    {"patch_embed.proj.weight", "embedding/kernel", {}, kConvHwio},
    {"patch_embed.proj.bias", "embedding/bias"},
    {"cls_token", "cls"},
    {"pos_embed", "Transformer/posembed_input/pos_embedding"},
    {"blocks.{i}.norm1.weight", BLOCK "LayerNorm_0/scale"},
    {"blocks.{i}.norm1.bias", BLOCK "LayerNorm_0/bias"},
    {"blocks.{i}.attn.qkv.weight", ATTENTION "{query,key,value}/kernel", {}, kHeadKernel},
    {"blocks.{i}.attn.qkv.bias", ATTENTION "{query,key,value}/bias", {}, kHeadBias},
    {"blocks.{i}.attn.proj.weight", ATTENTION "out/kernel", {}, kOutKernel},
    {"blocks.{i}.attn.proj.bias", ATTENTION "out/bias"},
    {"blocks.{i}.norm2.weight", BLOCK "LayerNorm_2/scale"},
    {"blocks.{i}.norm2.bias", BLOCK "LayerNorm_2/bias"},
    {"blocks.{i}.mlp.fc1.weight", BLOCK "MlpBlock_3/Dense_0/kernel", {}, kKernel},
    {"blocks.{i}.mlp.fc1.bias", BLOCK "MlpBlock_3/Dense_0/bias"},
    {"blocks.{i}.mlp.fc2.weight", BLOCK "MlpBlock_3/Dense_1/kernel", {}, kKernel},
    {"blocks.{i}.mlp.fc2.bias", BLOCK "MlpBlock_3/Dense_1/bias"},
    {"norm.weight", "Transformer/encoder_norm/scale"},
    {"norm.bias", "Transformer/encoder_norm/bias"},
    {"head.weight", "head/kernel", {}, kKernel},
    {"head.bias", "head/bias"},
};
#undef ATTENTION
#undef BLOCK

constexpr Names kTimmBefore[] = {"pre_logits."};
constexpr Names kHuggingFaceIgnored[] = {"pooler.", "embeddings.mask_token",
                                         "embeddings.position_ids"};
constexpr Names kTorchvisionBefore[] = {"heads.pre_logits."};
constexpr Names kGoogleBefore[] = {"pre_logits/"};

constexpr Names kViTProbes[] = {"patch_embed.proj.weight",
                                "cls_token",
                                "pos_embed",
                                "blocks.0.norm1.weight",
                                "blocks.0.attn.qkv.weight",
                                "blocks.0.attn.proj.weight",
                                "blocks.0.mlp.fc1.weight",
                                "norm.weight"};

constexpr Dialect kDialects[] = {
    {"vit",
     "timm",
     "timm",
     kTimm,
     {},
     kTimmBefore,
     kViTProbes,
     PositionRule::kBicubicAntialias,
     1e-6f,
     Act::kGelu},
    {"vit",
     "hf",
     "Hugging Face transformers",
     kHuggingFace,
     kHuggingFaceIgnored,
     {},
     kViTProbes,
     PositionRule::kBicubic,
     1e-12f,
     Act::kGelu},
    {"vit",
     "torchvision",
     "torchvision",
     kTorchvision,
     {},
     kTorchvisionBefore,
     kViTProbes,
     PositionRule::kBicubicAlignCorners,
     1e-6f,
     Act::kGelu},
    // JAX's gelu is the tanh form unless told otherwise.
    {"vit",
     "npz",
     "Google",
     kGoogle,
     {},
     kGoogleBefore,
     kViTProbes,
     PositionRule::kZoom,
     1e-6f,
     Act::kGeluTanh},
};

}  // namespace

std::span<const Dialect> dialects() { return kDialects; }

const Dialect& find_dialect(std::string_view family, std::string_view name) {
  std::vector<std::string> names;
  for (const Dialect& d : kDialects) {
    if (d.family != family) continue;
    if (d.name == name) return d;
    names.emplace_back(d.name);
  }
  fail_usage("unknown dialect '{}' of {} weights; there are {}{}", name, family,
             fmt::join(names, ", "), did_you_mean(name, names));
}

}  // namespace vitrum
