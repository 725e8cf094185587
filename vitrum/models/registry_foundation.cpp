// Presets of foundation models with positions inside attention: DINOv3, EVA-02, BEiT.
#include "vitrum/models/preset_parts.h"

namespace vitrum {
namespace {

using namespace preset;

// Rotary positions alone, registers, and no biases of keys; as timm has them, without those of
// queries and values (which are zero) unless the name says so, and pooling the mean.
Preset dinov3(const Size& size, const char* theirs, bool gated, bool biases, int64_t ratio = 4) {
  Preset preset = timm(size, 16, 256);
  preset.name = fmt::format("vit_{}_patch16_dinov3{}", size.name, biases ? "_qkvb" : "");
  if (theirs) preset.aliases = {fmt::format("facebook/dinov3-{}-pretrain-lvd1689m", theirs)};
  preset.public_weights = "timm/" + preset.name + ".lvd1689m";
  preset.mean = kImageNetMean, preset.std = kImageNetStd;
  ViTConfig& cfg = *preset.config.as<ViTConfig>();
  cfg.rope = Rope::kDinov3, cfg.rope_theta = 100, cfg.registers = 4;
  cfg.learned_positions = cfg.k_bias = false, cfg.qkv_bias = biases;
  cfg.pool = ViTPool::kNormedMean, cfg.layer_scale = 1e-5f, cfg.eps = 1e-5f, cfg.classes = 0;
  cfg.mlp_width = ratio * size.width;
  if (gated) cfg.gated = true, cfg.act = Act::kSilu;
  return preset;
}

// Rotary positions beside learned ones, gates, and in B and L norms inside the MLP. Without a tag
// of fine-tuning they have no head; CLIP's towers end in the joint space.
Preset eva02(const Size& size, int64_t patch, int64_t image, int64_t classes, const char* tag,
             bool clip = false) {
  Preset preset = timm(size, patch, image);
  preset.name = fmt::format("eva02_{}_patch{}_{}{}", size.name, patch, clip ? "clip_" : "", image);
  preset.public_weights = fmt::format("timm/{}.{}", preset.name, tag);
  preset.mean = kClipMean, preset.std = kClipStd;
  preset.crop_pct = image == 224 ? 0.9 : 1;
  if (image == 448) preset.crop_mode = "squash";
  ViTConfig& cfg = *preset.config.as<ViTConfig>();
  cfg.rope = Rope::kEva, cfg.k_bias = false, cfg.gated = true, cfg.act = Act::kSilu;
  cfg.mlp_width = size.width * 8 / 3, cfg.mlp_norm = size.width >= kBase.width;
  cfg.attn_norm = clip, cfg.pool = clip ? ViTPool::kToken : ViTPool::kMean, cfg.classes = classes;
  return preset;
}

// A bias by distance in every block, and no other positions. Version 2 has other weights.
Preset beit(const Size& size, int64_t image, int version, std::vector<std::string> aliases = {}) {
  Preset preset = timm(size, 16, image, std::move(aliases));
  preset.name = fmt::format("beit{}_{}_patch16_{}", version == 2 ? "v2" : "", size.name, image);
  preset.public_weights = fmt::format("timm/{}.{}", preset.name,
                                      version == 2 ? "in1k_ft_in22k_in1k" : "in22k_ft_in22k_in1k");
  if (version == 2) preset.mean = kImageNetMean, preset.std = kImageNetStd;
  preset.crop_pct = image > 224 ? 1 : version == 2 && size.width == kLarge.width ? 0.95 : 0.9;
  ViTConfig& cfg = *preset.config.as<ViTConfig>();
  cfg.distance_bias = DistanceBias::kEach, cfg.learned_positions = cfg.k_bias = false;
  cfg.pool = ViTPool::kMean;
  cfg.layer_scale = version == 1 && size.width == kBase.width ? 0.1f : 1e-5f;
  return preset;
}

}  // namespace

std::vector<Preset> foundation_presets() {
  return {
      dinov3(kSmall, nullptr, false, false),
      dinov3(kSmallPlus, nullptr, true, false),
      dinov3(kBase, nullptr, false, false),
      dinov3(kLarge, nullptr, false, false),
      dinov3(kHugePlus, nullptr, true, false),
      dinov3(k7B, "vit7b16", true, false, 2),
      dinov3(kSmall, "vits16", false, true),
      dinov3(kSmallPlus, "vits16plus", true, true),
      dinov3(kBase, "vitb16", false, true),
      dinov3(kLarge, "vitl16", false, true),
      dinov3(kHugePlus, "vith16plus", true, true),
      eva02(kTiny, 14, 224, 0, "mim_in22k"),
      eva02(kTiny, 14, 336, 1000, "mim_in22k_ft_in1k"),
      eva02(kSmall, 14, 224, 0, "mim_in22k"),
      eva02(kSmall, 14, 336, 1000, "mim_in22k_ft_in1k"),
      eva02(kBase, 14, 224, 0, "mim_in22k"),
      eva02(kBase, 14, 448, 1000, "mim_in22k_ft_in22k_in1k"),
      eva02(kLarge, 14, 224, 0, "mim_in22k"),
      eva02(kLarge, 14, 448, 1000, "mim_in22k_ft_in22k_in1k"),
      eva02(kBase, 16, 224, 512, "merged2b", /*clip=*/true),
      eva02(kLarge, 14, 224, 768, "merged2b", /*clip=*/true),
      eva02(kLarge, 14, 336, 768, "merged2b", /*clip=*/true),
      beit(kBase, 224, 1, {"microsoft/beit-base-patch16-224"}),
      beit(kBase, 384, 1, {"microsoft/beit-base-patch16-384"}),
      beit(kLarge, 224, 1, {"microsoft/beit-large-patch16-224"}),
      beit(kLarge, 384, 1, {"microsoft/beit-large-patch16-384"}),
      beit(kLarge, 512, 1, {"microsoft/beit-large-patch16-512"}),
      beit(kBase, 224, 2),
      beit(kLarge, 224, 2),
  };
}

}  // namespace vitrum
