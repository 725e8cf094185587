// The weights of ViTs and DeiTs.
#include "vitrum/weights/families/vit.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "vitrum/core/error.h"
#include "vitrum/weights/hf_config.h"

namespace vitrum {
namespace {

using enum Layout;
using Names = std::string_view;
using Json = nlohmann::ordered_json;

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

// timm's but for LayerScale, which DeiT III has.
constexpr NameRule kMeta[] = {
    {"patch_embed.proj.weight", "patch_embed.proj.weight", {}, kConv},
    {"blocks.{i}.ls1.gamma", "blocks.{i}.gamma_1"},
    {"blocks.{i}.ls2.gamma", "blocks.{i}.gamma_2"},
    {"", ""},
};
constexpr Names kMetaProbes[] = {"patch_embed.proj.weight",
                                 "cls_token",
                                 "pos_embed",
                                 "blocks.0.norm1.weight",
                                 "blocks.0.attn.qkv.weight",
                                 "blocks.0.attn.qkv.bias",
                                 "blocks.0.attn.proj.weight",
                                 "blocks.0.mlp.fc1.weight",
                                 "norm.weight",
                                 "blocks.0.ls1.gamma"};

// MAE's files have a decoder beside the encoder.
constexpr Names kHuggingFaceIgnored[] = {"pooler.", "embeddings.mask_token",
                                         "embeddings.position_ids", "^decoder."};
constexpr Names kTorchvisionBefore[] = {"heads.pre_logits."};
constexpr Names kGoogleBefore[] = {"pre_logits/"};
// The optimiser's state and a training's counters, beside the weights.
constexpr Names kGoogleIgnored[] = {"^opt/", "^extra/"};

// Keys of relatives of the ViT that would change what the model computes.
const std::vector<JsonKeys::Fixed> kOnly = {{"use_mean_pooling", "false"},
                                            {"use_relative_position_bias", "false"},
                                            {"use_shared_relative_position_bias", "false"},
                                            {"use_absolute_position_embeddings", "true"},
                                            {"use_swiglu_ffn", "false"},
                                            {"layer_scale_init_value", "0"},
                                            {"num_register_tokens", "0"},
                                            {"position_embedding_type", "\"absolute\""}};

Json side(int64_t h, int64_t w) { return h == w ? Json(h) : Json{h, w}; }

std::string hf_class(const ViTConfig& c) {
  const char* family = c.distilled ? "DeiT" : "ViT";
  if (c.classes == 0) return fmt::format("{}Model", family);
  return fmt::format("{}ForImageClassification{}", family, c.two_heads() ? "WithTeacher" : "");
}

// What the published DeiTs have: 256 pixels for a crop of 224, 438 for 384.
std::string deit_preprocessor(const ViTConfig& c) {
  return fmt::format(
      R"({{"do_center_crop": true, "size": {}, "crop_size": {{"height": {}, "width": {}}},
          "resample": 3, "image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}})",
      std::max(c.image_h, c.image_w) * 256 / 224, c.image_h, c.image_w);
}

void squash_bilinear(Preprocessing& p) {  // google/vit, in JAX and in transformers
  p.interpolation = "bilinear", p.crop_mode = "squash";
}

// torchvision's IMAGENET1K_V1 files are of 224 pixels (and none is a ViT-H); others are SWAG's,
// fine-tuned at a larger size.
void torchvision_transforms(const ViTConfig& c, Preprocessing& p) {
  constexpr int64_t kSize = 224, kResize = 256, kResizeL16 = 242;
  const bool swag = p.height != kSize || c.depth > 24;
  const bool large16 = c.depth == 24 && c.patch_h == 16;
  if (swag)
    center_crop(p, "bicubic", p.height);
  else
    center_crop(p, "bilinear", large16 ? kResizeL16 : kResize);
  if (c.channels == 3) p.mean = kImageNetMean, p.std = kImageNetStd;
}

// transformers' DeiTs; 438 for 384 pixels.
void deit_transforms(Preprocessing& p) {
  p.interpolation = "bicubic", p.crop_mode = "squash", p.crop_floor = true;
  p.resize = p.height * 256 / 224;
  p.crop_pct = static_cast<double>(p.height) / static_cast<double>(p.resize);
}

struct ViT : ViTFiles {
  static constexpr Dialect kDialects[] = {
      kTimmViT,
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
      // DeiT's, DeiT III's and MAE's; Google's own are "npz".
      {"vit",
       "meta",
       "Meta",
       kMeta,
       kTimmIgnored,
       {},
       kMetaProbes,
       PositionRule::kBicubic,
       1e-6f,
       Act::kGelu,
       /*original=*/true},
  };
  static constexpr std::string_view kHf[] = {"vit", "deit", "vit_mae"};
  static bool holds(const ViTConfig&) { return true; }

  static void read_hf(const JsonKeys& keys, ViTConfig& c) {
    keys.require(kOnly);
    c.distilled = keys.text("model_type", {}) == "deit";
    c.dist_head = !c.distilled || is_hf_class(keys, kTwoHeads);
    read_hf_sizes(keys, c);
    c.floor_patches = c.image_h % c.patch_h != 0 || c.image_w % c.patch_w != 0;
    c.qkv_bias = keys.boolean("qkv_bias", true);
    if (keys.has("head_dim") && keys.integer("head_dim", 0, kWidths) * c.heads != c.width)
      fail_input("{}: head_dim is not hidden_size / num_attention_heads", keys.where());
    const auto rate = [&](const char* key) {
      return static_cast<float>(keys.number(key, 0, 0, 1));
    };
    c.drop_attn = rate("attention_probs_dropout_prob");
    c.drop_pos = c.drop_proj = c.drop_mlp = rate("hidden_dropout_prob");
  }

  static std::string write_hf(const ViTConfig& c, const std::string& dtype) {
    const Json json = {{"architectures", {hf_class(c)}},
                       {"attention_probs_dropout_prob", tidy(c.drop_attn)},
                       {"dtype", dtype},
                       {"hidden_act", hf_act_name(c.act)},
                       {"hidden_dropout_prob", tidy(c.drop_mlp)},
                       {"hidden_size", c.width},
                       {"image_size", side(c.image_h, c.image_w)},
                       {"initializer_range", 0.02},
                       {"intermediate_size", c.mlp_width},
                       {"layer_norm_eps", tidy(c.eps)},
                       {"model_type", c.distilled ? "deit" : "vit"},
                       {"num_attention_heads", c.heads},
                       {"num_channels", c.channels},
                       {"num_hidden_layers", c.depth},
                       {"patch_size", side(c.patch_h, c.patch_w)},
                       {"qkv_bias", c.qkv_bias}};
    return json.dump();
  }

  static std::string_view hf_base(const ViTConfig& c) { return c.distilled ? "deit" : "vit"; }

  static void read_preprocessor(const ConfigText& stated, ModelSpec& spec) {
    const auto& c = *spec.config.as<ViTConfig>();
    const bool missing = c.distilled && stated.text == "{}";
    read_hf_preprocessor(JsonKeys(missing ? deit_preprocessor(c) : stated.text, stated.path),
                         spec.config, spec.preprocess);
  }

  static void as_published(const Dialect& dialect, ViTConfig& c, Preprocessing& p) {
    if (c.init == InitStyle::kTimm)  // our own models state theirs
      c.eps = dialect.eps, c.act = dialect.act;
    if (dialect.name == "torchvision")
      torchvision_transforms(c, p);
    else if (dialect.name == "hf" && p.mean == kImageNetMean)
      deit_transforms(p);
    else if (dialect.name == "hf" || dialect.name == "npz")
      squash_bilinear(p);
    else if (c.image_h == 224)  // timm's ViTs; those of 384 pixels are not cropped
      p.crop_pct = 0.9;
  }

  // What other frameworks' ViTs have no switch for. timm's directories keep ours beside timm's.
  static void require_plain(const Dialect& dialect, const ViTConfig& c) {
    if (dialect.name == "timm") return;
    const RequirePlain require{dialect, "ViT"};
    require(c.pre_norm, "with the norms after the blocks");
    require(c.patch_order == PatchOrder::kChannelFirst, "with patches flattened channel last");
    const bool meta = dialect.original;
    require(c.class_token && (c.pool == ViTPool::kToken || (meta && c.pool == ViTPool::kMean)),
            "that pools by the mean");
    require(c.registers == 0, "with registers");
    require(c.prefix_positions || meta, "whose class token has no position");
    require(!c.norm_pre, "with a norm before the blocks");
    require(c.patch_bias, "with patches embedded without a bias");
    require(!c.distilled || meta || dialect.name == "hf", "with a distillation token");
    require(!c.sincos_positions, "with fixed positions");
    require(c.layer_scale == 0 || meta, "with LayerScale");
    require(c.learned_positions && c.rope == Rope::kNone && c.k_bias &&
                c.distance_bias == DistanceBias::kNone,
            "with other positions in attention");
    require(!c.gated && !c.attn_norm && !c.mlp_norm, "with gates or norms inside its blocks");
    const bool square = c.image_h == c.image_w && c.patch_h == c.patch_w;
    require(square || dialect.name != "torchvision", "for images that are not square");
    require(!c.floor_patches || dialect.name != "torchvision",
            "whose patches do not cover the image");
  }

  static void give_biases(const Dialect& dialect, ViTConfig& c) {
    const bool switches = dialect.name == "timm";
    c.head_bias = c.norm_bias = true;
    if (!switches || c.proj_bias != c.mlp_bias) c.proj_bias = c.mlp_bias = true;
    if (!switches && dialect.name != "hf") c.qkv_bias = true;
  }
};

}  // namespace

extern constinit const WeightFamily kViTWeights = family<ViT>("vit");

}  // namespace vitrum
