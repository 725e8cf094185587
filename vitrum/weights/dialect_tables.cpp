// The tables. To add a dialect, add one here.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "vitrum/core/error.h"
#include "vitrum/core/join.h"
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

// google-research/vision_transformer numbers the modules of a block through; big_vision, the second
// spelling, those of each kind.
#define BLOCK "Transformer/encoderblock_{i}/"
#define ATTENTION(part) \
  BLOCK "MultiHeadDotProductAttention_1/" part, BLOCK "MultiHeadDotProductAttention_0/" part
#define MLP(part) BLOCK "MlpBlock_3/" part, BLOCK "MlpBlock_0/" part
constexpr NameRule kGoogle[] = {
    {"patch_embed.proj.weight", "embedding/kernel", {}, kConvHwio},
    {"patch_embed.proj.bias", "embedding/bias"},
    {"cls_token", "cls"},
    {"pos_embed", "Transformer/posembed_input/pos_embedding", "pos_embedding"},
    {"blocks.{i}.norm1.weight", BLOCK "LayerNorm_0/scale"},
    {"blocks.{i}.norm1.bias", BLOCK "LayerNorm_0/bias"},
    {"blocks.{i}.attn.qkv.weight", ATTENTION("{query,key,value}/kernel"), kHeadKernel},
    {"blocks.{i}.attn.qkv.bias", ATTENTION("{query,key,value}/bias"), kHeadBias},
    {"blocks.{i}.attn.proj.weight", ATTENTION("out/kernel"), kOutKernel},
    {"blocks.{i}.attn.proj.bias", ATTENTION("out/bias")},
    {"blocks.{i}.norm2.weight", BLOCK "LayerNorm_2/scale", BLOCK "LayerNorm_1/scale"},
    {"blocks.{i}.norm2.bias", BLOCK "LayerNorm_2/bias", BLOCK "LayerNorm_1/bias"},
    {"blocks.{i}.mlp.fc1.weight", MLP("Dense_0/kernel"), kKernel},
    {"blocks.{i}.mlp.fc1.bias", MLP("Dense_0/bias")},
    {"blocks.{i}.mlp.fc2.weight", MLP("Dense_1/kernel"), kKernel},
    {"blocks.{i}.mlp.fc2.bias", MLP("Dense_1/bias")},
    {"norm.weight", "Transformer/encoder_norm/scale"},
    {"norm.bias", "Transformer/encoder_norm/bias"},
    {"head.weight", "head/kernel", {}, kKernel},
    {"head.bias", "head/bias"},
};
#undef MLP
#undef ATTENTION
#undef BLOCK

// Microsoft's own files merge patches at the end of a stage, timm at the start of the next.
constexpr NameRule kMicrosoftSwin[] = {
    {"patch_embed.proj.weight", "patch_embed.proj.weight", {}, kConv},
    {"layers.{s}.downsample", "layers.{s-1}.downsample"},
    {"head.fc", "head"},
    {"", ""},
};

#define BLOCK "layers.{s}.blocks.{i}."
#define THEIRS "encoder.layers.{s}.blocks.{i}."
constexpr NameRule kHuggingFaceSwin[] = {
    {"patch_embed.proj.weight", "embeddings.patch_embeddings.projection.weight", {}, kConv},
    {"patch_embed.proj", "embeddings.patch_embeddings.projection"},
    {"patch_embed.norm", "embeddings.norm"},
    {"layers.{s}.downsample", "encoder.layers.{s-1}.downsample"},
    {BLOCK "norm1", THEIRS "layernorm_before"},
    {BLOCK "attn.relative_position_bias_table",
     THEIRS "attention.self.relative_position_bias_table",
     THEIRS "attention.relative_position_bias.relative_position_bias_table"},
    {BLOCK "attn.qkv", THEIRS "attention.self.{query,key,value}", THEIRS "attention.{q,k,v}_proj"},
    {BLOCK "attn.proj", THEIRS "attention.output.dense", THEIRS "attention.o_proj"},
    {BLOCK "norm2", THEIRS "layernorm_after"},
    {BLOCK "mlp.fc1", THEIRS "intermediate.dense", THEIRS "mlp.fc1"},
    {BLOCK "mlp.fc2", THEIRS "output.dense", THEIRS "mlp.fc2"},
    {"norm", "layernorm"},
    {"head.fc", "^classifier"},
};
#undef THEIRS

constexpr NameRule kTorchvisionSwin[] = {
    {"patch_embed.proj.weight", "features.0.0.weight", {}, kConv},
    {"patch_embed.proj", "features.0.0"},
    {"patch_embed.norm", "features.0.2"},
    {"layers.{s}.downsample", "features.{2s}"},
    {BLOCK "mlp.fc1", "features.{2s+1}.{i}.mlp.0"},
    {BLOCK "mlp.fc2", "features.{2s+1}.{i}.mlp.3"},
    {"layers.{s}.blocks.{i}", "features.{2s+1}.{i}"},
    {"norm", "norm"},
    {"head.fc", "head"},
};
#undef BLOCK

// Buffers that follow from the sizes; some versions save them.
constexpr Names kSwinIgnored[] = {"*.relative_position_index", "*.attn_mask",
                                  "embeddings.mask_token"};

// torchvision's names, which timm has too.
constexpr NameRule kResNet[] = {{"", ""}};

#define STAGE(ours, theirs)                                                                    \
  {"layer" ours ".{i}.conv1", "encoder.stages." theirs ".layers.{i}.layer.0.convolution"},     \
      {"layer" ours ".{i}.bn1", "encoder.stages." theirs ".layers.{i}.layer.0.normalization"}, \
      {"layer" ours ".{i}.conv2", "encoder.stages." theirs ".layers.{i}.layer.1.convolution"}, \
      {"layer" ours ".{i}.bn2", "encoder.stages." theirs ".layers.{i}.layer.1.normalization"}, \
      {"layer" ours ".{i}.conv3", "encoder.stages." theirs ".layers.{i}.layer.2.convolution"}, \
      {"layer" ours ".{i}.bn3", "encoder.stages." theirs ".layers.{i}.layer.2.normalization"}, \
      {"layer" ours ".{i}.downsample.0",                                                       \
       "encoder.stages." theirs ".layers.{i}.shortcut.convolution"},                           \
  {                                                                                            \
    "layer" ours ".{i}.downsample.1",                                                          \
        "encoder.stages." theirs ".layers.{i}.shortcut.normalization"                          \
  }
constexpr NameRule kHuggingFaceResNet[] = {
    {"conv1", "embedder.embedder.convolution"},
    {"bn1", "embedder.embedder.normalization"},
    STAGE("1", "0"),
    STAGE("2", "1"),
    STAGE("3", "2"),
    STAGE("4", "3"),
    {"fc", "^classifier.1"},
};
#undef STAGE

constexpr Names kTimmBefore[] = {"pre_logits."};
constexpr Names kHuggingFaceIgnored[] = {"pooler.", "embeddings.mask_token",
                                         "embeddings.position_ids"};
constexpr Names kTorchvisionBefore[] = {"heads.pre_logits."};
constexpr Names kGoogleBefore[] = {"pre_logits/"};
// The optimiser's state and a training's counters, beside the weights.
constexpr Names kGoogleIgnored[] = {"^opt/", "^extra/"};

constexpr Names kViTProbes[] = {"patch_embed.proj.weight",
                                "cls_token",
                                "pos_embed",
                                "blocks.0.norm1.weight",
                                "blocks.0.attn.qkv.weight",
                                "blocks.0.attn.proj.weight",
                                "blocks.0.mlp.fc1.weight",
                                "norm.weight"};

constexpr Names kSwinProbes[] = {"patch_embed.proj.weight",
                                 "patch_embed.norm.weight",
                                 "layers.0.blocks.0.norm1.weight",
                                 "layers.0.blocks.0.attn.qkv.weight",
                                 "layers.0.blocks.0.attn.relative_position_bias_table",
                                 "layers.0.blocks.0.mlp.fc1.weight",
                                 "layers.1.downsample.norm.weight",
                                 "norm.weight",
                                 "head.fc.weight"};
constexpr Names kResNetProbes[] = {"layer1.0.conv1.weight", "layer1.0.bn1.running_mean",
                                   "layer4.0.downsample.0.weight", "conv1.weight", "bn1.weight"};

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
    {"vit", "npz", "Google", kGoogle, kGoogleIgnored, kGoogleBefore, kViTProbes,
     PositionRule::kZoom, 1e-6f, Act::kGeluTanh},
    // Before timm's: a file without a head that is both by its names is Microsoft's.
    {"swin",
     "microsoft",
     "Microsoft",
     kMicrosoftSwin,
     kSwinIgnored,
     {},
     kSwinProbes,
     PositionRule::kBicubic,
     1e-5f,
     Act::kGelu},
    {"swin",
     "timm",
     "timm",
     kTimm,
     kSwinIgnored,
     {},
     kSwinProbes,
     PositionRule::kGeometric,
     1e-5f,
     Act::kGelu},
    {"swin",
     "hf",
     "Hugging Face transformers",
     kHuggingFaceSwin,
     kSwinIgnored,
     {},
     kSwinProbes,
     PositionRule::kBicubic,
     1e-5f,
     Act::kGelu},
    {"swin",
     "torchvision",
     "torchvision",
     kTorchvisionSwin,
     kSwinIgnored,
     {},
     kSwinProbes,
     PositionRule::kBicubic,
     1e-5f,
     Act::kGelu},
    {"resnet", "timm", "timm", kResNet, {}, {}, kResNetProbes, {}, 1e-5f, Act::kRelu},
    {"resnet",
     "hf",
     "Hugging Face transformers",
     kHuggingFaceResNet,
     {},
     {},
     kResNetProbes,
     {},
     1e-5f,
     Act::kRelu},
    {"resnet", "torchvision", "torchvision", kResNet, {}, {}, kResNetProbes, {}, 1e-5f, Act::kRelu},
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
  fail_usage("unknown dialect '{}' of {} weights; there are {}{}", name, family, join(names, ", "),
             did_you_mean(name, names));
}

}  // namespace vitrum
