#include "vitrum/models/registry.h"

#include <algorithm>
#include <array>

#include "vitrum/core/error.h"
#include "vitrum/core/nearest.h"
#include "vitrum/core/shown.h"
#include "vitrum/models/conv_presets.h"
#include "vitrum/models/preset_parts.h"

namespace vitrum {
namespace {

using namespace preset;

// The models are the ViTs above; DeiT's are other weights, other pixels and, distilled, two tokens.
Preset deit(const Size& size, int64_t image, bool distilled) {
  Preset preset = timm(size, 16, image);
  const char* kind = distilled ? "_distilled" : "";
  preset.name = fmt::format("deit_{}{}_patch16_{}", size.name, kind, image);
  preset.aliases = {fmt::format("facebook/deit-{}{}-patch16-{}", size.name,
                                distilled ? "-distilled" : "", image)};
  preset.public_weights = "timm/" + preset.name + ".fb_in1k";
  preset.mean = kImageNetMean, preset.std = kImageNetStd;
  preset.crop_pct = image == 224 ? 0.9 : 1;
  preset.config.as<ViTConfig>()->distilled = distilled;
  return preset;
}

// Patches alone have positions, and LayerScale starts near nothing.
Preset deit3(const Size& size, int64_t patch, int64_t image) {
  Preset preset = timm(size, patch, image);
  preset.name = fmt::format("deit3_{}_patch{}_{}", size.name, patch, image);
  preset.public_weights = "timm/" + preset.name + ".fb_in1k";
  preset.mean = kImageNetMean, preset.std = kImageNetStd;
  preset.crop_pct = image == 224 ? 0.9 : 1;
  ViTConfig& cfg = *preset.config.as<ViTConfig>();
  cfg.prefix_positions = false, cfg.layer_scale = 1e-6f;
  return preset;
}

// Foundation models without a head. Where there are registers, only patches have positions.
Preset dinov2(const Size& size, int64_t registers) {
  Preset preset = timm(size, 14, 518);
  preset.name = fmt::format("vit_{}_patch14_{}dinov2", size.name, registers > 0 ? "reg4_" : "");
  preset.aliases = {
      fmt::format("facebook/dinov2-{}{}", registers > 0 ? "with-registers-" : "", size.name)};
  preset.public_weights = "timm/" + preset.name + ".lvd142m";
  preset.mean = kImageNetMean, preset.std = kImageNetStd;
  ViTConfig& cfg = *preset.config.as<ViTConfig>();
  cfg.registers = registers, cfg.prefix_positions = registers == 0;
  cfg.layer_scale = 1e-5f, cfg.classes = 0;
  if (size.width == kGiant.width) cfg.gated = true, cfg.act = Act::kSilu, cfg.mlp_width = 4096;
  return preset;
}

// Trained with patches of many sizes.
Preset flexivit(const Size& size) {
  Preset preset = timm(size, 16, 240);
  preset.name = fmt::format("flexivit_{}", size.name);
  preset.public_weights = "timm/" + preset.name + ".1200ep_in1k";
  preset.crop_pct = 0.95;
  preset.config.as<ViTConfig>()->prefix_positions = false;
  return preset;
}

// Image towers of CLIP as timm has them: what it calls classes is the joint space of images and
// texts.
Preset clip(const Size& size, int64_t patch, int64_t image, int64_t space, bool quick,
            const char* tag) {
  Preset preset = timm(size, patch, image);
  preset.name =
      fmt::format("vit_{}_patch{}_clip_{}{}", size.name, patch, quick ? "quickgelu_" : "", image);
  preset.public_weights = fmt::format("timm/{}.{}", preset.name, tag);
  preset.mean = kClipMean, preset.std = kClipStd;
  preset.crop_pct = size.width == kBase.width && !quick ? 0.9 : 1;
  ViTConfig& cfg = *preset.config.as<ViTConfig>();
  cfg.norm_pre = true, cfg.patch_bias = false, cfg.eps = 1e-5f, cfg.classes = space;
  if (quick) cfg.act = Act::kQuickGelu;
  return preset;
}

// Image towers of SigLIP and SigLIP 2 as timm has them. Those with `tanh` compute that form of GELU
// there, the others the erf form; transformers' all compute tanh, and their files say so.
Preset siglip(const Size& size, int64_t patch, int64_t image, bool tanh, const char* tag,
              std::vector<std::string> aliases = {}) {
  Preset preset = timm(size, patch, image, std::move(aliases));
  preset.name = fmt::format("vit_{}_patch{}_siglip_{}", size.name, patch, image);
  preset.public_weights = fmt::format("timm/{}.{}", preset.name, tag);
  preset.crop_pct = 0.9;
  ViTConfig& cfg = *preset.config.as<ViTConfig>();
  cfg.class_token = false, cfg.pool = ViTPool::kMap, cfg.classes = 0;
  cfg.floor_patches = image % patch != 0;
  if (size.width == kSo400m.width) cfg.mlp_width = 4304;
  if (tanh) cfg.act = Act::kGeluTanh;
  return preset;
}

// The same without their pooling head: the mean of the tokens.
Preset siglip_gap(const Size& size, int64_t patch, int64_t image, bool tanh, const char* tag) {
  Preset preset = siglip(size, patch, image, tanh, tag);
  preset.name = fmt::format("vit_{}_patch{}_siglip_gap_{}", size.name, patch, image);
  preset.public_weights = fmt::format("timm/{}.{}", preset.name, tag);
  preset.config.as<ViTConfig>()->pool = ViTPool::kNormedMean;
  return preset;
}

// SigLIP 2's for images of any shape.
Preset naflex(const Size& size, const char* tag) {
  Preset preset = siglip(size, 16, 384, true, tag);
  preset.name = fmt::format("naflexvit_{}_patch16_siglip", size.name);
  preset.public_weights = fmt::format("timm/{}.{}", preset.name, tag);
  preset.crop_pct = 1;
  preset.config.as<ViTConfig>()->position_grid = 16;
  return preset;
}

Preset cifar(std::string name, int64_t width, int64_t depth, int64_t heads, int64_t mlp_ratio) {
  ViTConfig cfg{.image_h = 32,
                .image_w = 32,
                .patch_h = 4,
                .patch_w = 4,
                .width = width,
                .depth = depth,
                .heads = heads,
                .mlp_width = mlp_ratio * width,
                .classes = 10};
  return {.name = std::move(name),
          .family = "vit",
          .config = cfg,
          .aliases = {},
          .mean = kCifarMean,
          .std = kCifarStd};
}

// timm's; it drops paths unless told otherwise.
Preset swin(const char* size, int64_t width, std::vector<int64_t> depths, int64_t window,
            int64_t image, std::vector<std::string> aliases, const std::string& tag) {
  SwinConfig cfg{.image_h = image,
                 .image_w = image,
                 .width = width,
                 .depths = std::move(depths),
                 .heads = {},
                 .window_h = window,
                 .window_w = window,
                 .drop_path = 0.1f};
  for (int64_t i = 0; i < cfg.stages(); ++i) cfg.heads.push_back(cfg.stage_width(i) / 32);
  const std::string name = fmt::format("swin_{}_patch4_window{}_{}", size, window, image);
  return {.name = name,
          .family = "swin",
          .config = std::move(cfg),
          .aliases = std::move(aliases),
          .mean = {0.485f, 0.456f, 0.406f},
          .std = {0.229f, 0.224f, 0.225f},
          .public_weights = fmt::format("timm/{}.{}", name, tag)};
}

// 16 x 16, 8 x 8 and 4 x 4 tokens in windows of 4 x 4.
Preset swin_cifar() {
  return {.name = "swin_tiny_cifar",
          .family = "swin",
          .config = SwinConfig{.image_h = 32,
                               .image_w = 32,
                               .patch_h = 2,
                               .patch_w = 2,
                               .depths = {2, 6, 2},
                               .heads = {3, 6, 12},
                               .window_h = 4,
                               .window_w = 4,
                               .classes = 10,
                               .drop_path = 0.1f},
          .aliases = {},
          .mean = kCifarMean,
          .std = kCifarStd};
}

Preset resnet(std::string name, std::array<int64_t, 4> depths, bool bottleneck,
              std::vector<std::string> aliases, std::string weights) {
  return {.name = std::move(name),
          .family = "resnet",
          .config = ResNetConfig{.depths = depths, .bottleneck = bottleneck},
          .aliases = std::move(aliases),
          .mean = {0.485f, 0.456f, 0.406f},
          .std = {0.229f, 0.224f, 0.225f},
          .public_weights = std::move(weights)};
}

Preset resnet18_cifar() {
  return {.name = "resnet18_cifar",
          .family = "resnet",
          .config = ResNetConfig{.image_h = 32, .image_w = 32, .classes = 10, .small_stem = true},
          .aliases = {},
          .mean = kCifarMean,
          .std = kCifarStd};
}

// Without a class token, regularised as it is trained from scratch: recipes/cifar10-vit.toml.
Preset cifar_mean() {
  Preset preset = cifar("vit_c10_patch4_32", 256, 12, 4, 4);
  ViTConfig& cfg = *preset.config.as<ViTConfig>();
  cfg.class_token = false, cfg.pool = ViTPool::kMean;
  cfg.layer_scale = cfg.drop_path = 0.1f;
  return preset;
}

Preset deit_cifar() {
  Preset preset = cifar("deit_small_cifar", 256, 12, 4, 4);
  preset.config.as<ViTConfig>()->distilled = true;
  return preset;
}

// Document-faithful models. eps is PyTorch's LayerNorm default in all of them.
Preset minvit() {
  ViTConfig cfg{.image_h = 32,
                .image_w = 32,
                .patch_h = 4,
                .patch_w = 4,
                .width = 768,
                .depth = 4,
                .heads = 4,
                .mlp_width = 3072,
                .classes = 10,
                .eps = 1e-5f,
                .init = InitStyle::kMinViT,
                .qkv_bias = false,
                .proj_bias = false,
                .mlp_bias = false,
                .norm_bias = false,
                .head_bias = false,
                .drop_pos = 0.1f,
                .drop_mlp = 0.1f};
  return {
      .name = "minvit_cifar10",
      .family = "vit",
      .config = cfg,
      .aliases = {"minvit"},
      .mean = {},
      .std = {},
      .note =
          "the ViT of a walkthrough of a minimal one on CIFAR-10: no biases, positions start at 0"};
}

Preset mnist() {
  ViTConfig cfg{.image_h = 28,
                .image_w = 28,
                .patch_h = 7,
                .patch_w = 7,
                .channels = 1,
                .width = 64,
                .depth = 3,
                .heads = 8,
                .mlp_width = 2048,
                .classes = 100,
                .eps = 1e-5f,
                .act = Act::kRelu,
                .patch_order = PatchOrder::kChannelLast,
                .init = InitStyle::kMnist,
                .pre_norm = false,
                .drop_attn = 0.1f,
                .drop_proj = 0.1f,
                .drop_act = 0.1f,
                .drop_mlp = 0.1f};
  return {.name = "vit_mnist",
          .family = "vit",
          .config = cfg,
          .aliases = {},
          .mean = {},
          .std = {},
          .fixed_classes = true,
          .note = "the ViT of a step-by-step guide on MNIST: norms behind the blocks, 100 outputs"};
}

Preset fashion() {
  ViTConfig cfg{.image_h = 28,
                .image_w = 28,
                .patch_h = 7,
                .patch_w = 7,
                .channels = 1,
                .width = 64,
                .depth = 4,
                .heads = 4,
                .mlp_width = 256,
                .classes = 10};
  return {.name = "vit_small28",
          .family = "vit",
          .config = cfg,
          .aliases = {},
          .mean = {0.2860f},
          .std = {0.3530f}};
}

Preset notes() {
  ViTConfig cfg = sized(kBase, 224, 16);
  cfg.eps = 1e-5f, cfg.init = InitStyle::kNotes, cfg.drop_pos = cfg.drop_act = cfg.drop_mlp = 0.1f;
  return {.name = "vit_notes_base_patch16_224",
          .family = "vit",
          .config = cfg,
          .aliases = {},
          .mean = {},
          .std = {},
          .note =
              "ViT-B/16 as notes on the paper's equations write it: PyTorch's start values, "
              "dropout 0.1"};
}

Preset lesson(const Size& size, int64_t patch) {
  ViTConfig cfg = sized(size, 224, patch);
  cfg.eps = 1e-5f, cfg.init = InitStyle::kLesson;
  return {
      .name = fmt::format("vit_lesson_{}_patch{}_224", size.name, patch),
      .family = "vit",
      .config = cfg,
      .aliases = {},
      .mean = kHalf,
      .std = kHalf,
      .note =
          "the ViT that a lesson on vision transformers writes: PyTorch's start values and eps"};
}

// No class token: the patches' mean behind fixed positions. Trained from scratch by
// recipes/imagenet-vit-s16-90.toml.
Preset plain(const Size& size, int64_t patch) {
  ViTConfig cfg = sized(size, 224, patch);
  cfg.class_token = false, cfg.pool = ViTPool::kMean, cfg.sincos_positions = true;
  return {.name = fmt::format("vit_plain_{}_patch{}_224", size.name, patch),
          .family = "vit",
          .config = cfg,
          .aliases = {},
          .mean = kHalf,
          .std = kHalf,
          .note = "the plain ViT of big_vision's baseline: the patches' mean, fixed positions"};
}

std::vector<Preset> vit_presets() {
  return {
      timm(kTiny, 16, 224, {"WinKawaks/vit-tiny-patch16-224"},
           "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"),
      timm(kTiny, 16, 384, {}, "timm/vit_tiny_patch16_384.augreg_in21k_ft_in1k"),
      timm(kSmall, 32, 224, {}, "timm/vit_small_patch32_224.augreg_in21k_ft_in1k"),
      timm(kSmall, 32, 384, {}, "timm/vit_small_patch32_384.augreg_in21k_ft_in1k"),
      timm(kSmall, 16, 224, {"WinKawaks/vit-small-patch16-224"},
           "timm/vit_small_patch16_224.augreg_in21k_ft_in1k"),
      timm(kSmall, 16, 384, {}, "timm/vit_small_patch16_384.augreg_in21k_ft_in1k"),
      timm(kSmall, 8, 224, {}, "timm/vit_small_patch8_224.dino"),
      timm(kBase, 32, 224, {"vit_b_32"}, "timm/vit_base_patch32_224.augreg_in21k_ft_in1k"),
      timm(kBase, 32, 384, {"google/vit-base-patch32-384"},
           "timm/vit_base_patch32_384.augreg_in21k_ft_in1k"),
      timm(kBase, 16, 224, {"vit_b_16", "google/vit-base-patch16-224"},
           "timm/vit_base_patch16_224.augreg2_in21k_ft_in1k"),
      timm(kBase, 16, 384, {"google/vit-base-patch16-384"},
           "timm/vit_base_patch16_384.augreg_in21k_ft_in1k"),
      timm(kBase, 8, 224, {}, "timm/vit_base_patch8_224.augreg2_in21k_ft_in1k"),
      timm(kLarge, 32, 224, {"vit_l_32"}, "timm/vit_large_patch32_224.orig_in21k"),
      timm(kLarge, 32, 384, {"google/vit-large-patch32-384"},
           "timm/vit_large_patch32_384.orig_in21k_ft_in1k"),
      timm(kLarge, 16, 224, {"vit_l_16", "google/vit-large-patch16-224"},
           "timm/vit_large_patch16_224.augreg_in21k_ft_in1k"),
      timm(kLarge, 16, 384, {"google/vit-large-patch16-384"},
           "timm/vit_large_patch16_384.augreg_in21k_ft_in1k"),
      timm(kLarge, 14, 224),
      timm(kHuge, 14, 224, {"vit_h_14", "google/vit-huge-patch14-224-in21k"},
           "timm/vit_huge_patch14_224.orig_in21k"),
      deit(kTiny, 224, false),
      deit(kSmall, 224, false),
      deit(kBase, 224, false),
      deit(kBase, 384, false),
      deit(kTiny, 224, true),
      deit(kSmall, 224, true),
      deit(kBase, 224, true),
      deit(kBase, 384, true),
  };
}

// Other pretraining, and the few switches that came with it.
std::vector<Preset> pretrained_presets() {
  return {
      deit3(kSmall, 16, 224),
      deit3(kMedium, 16, 224),
      deit3(kBase, 16, 224),
      deit3(kBase, 16, 384),
      deit3(kLarge, 16, 224),
      deit3(kHuge, 14, 224),
      dinov2(kSmall, 0),
      dinov2(kBase, 0),
      dinov2(kLarge, 0),
      dinov2(kGiant, 0),
      dinov2(kSmall, 4),
      dinov2(kBase, 4),
      dinov2(kLarge, 4),
      dinov2(kGiant, 4),
      flexivit(kSmall),
      flexivit(kBase),
      flexivit(kLarge),
      clip(kBase, 32, 224, 512, false, "openai"),
      clip(kBase, 16, 224, 512, false, "openai"),
      clip(kLarge, 14, 224, 768, false, "openai"),
      clip(kLarge, 14, 336, 768, false, "openai"),
      clip(kHuge, 14, 224, 1024, false, "laion2b"),
      clip(kBase, 16, 224, 512, true, "metaclip_2pt5b"),
      clip(kLarge, 14, 224, 768, true, "dfn2b"),
      siglip(kBase, 16, 224, false, "v2_webli", {"google/siglip-base-patch16-224"}),
      siglip(kBase, 16, 256, false, "v2_webli", {"google/siglip-base-patch16-256"}),
      siglip(kBase, 16, 384, false, "v2_webli", {"google/siglip-base-patch16-384"}),
      siglip(kBase, 32, 256, true, "v2_webli"),
      siglip(kLarge, 16, 256, false, "v2_webli", {"google/siglip-large-patch16-256"}),
      siglip(kLarge, 16, 384, false, "v2_webli", {"google/siglip-large-patch16-384"}),
      siglip(kSo400m, 14, 224, false, "v2_webli"),
      siglip(kSo400m, 14, 378, false, "v2_webli"),
      siglip(kSo400m, 14, 384, false, "webli", {"google/siglip-so400m-patch14-384"}),
      siglip(kSo400m, 16, 256, true, "v2_webli"),
      siglip(kGiantOpt, 16, 256, true, "v2_webli"),
      naflex(kBase, "v2_webli"),
      naflex(kSo400m, "v2_webli"),
      siglip_gap(kBase, 16, 224, false, "v2_webli"),
      siglip_gap(kBase, 16, 256, false, "v2_webli"),
      siglip_gap(kBase, 16, 384, false, "v2_webli"),
      siglip_gap(kBase, 16, 512, false, "v2_webli"),
      siglip_gap(kBase, 32, 256, true, "v2_webli"),
      siglip_gap(kLarge, 16, 256, false, "v2_webli"),
      siglip_gap(kLarge, 16, 384, false, "v2_webli"),
      siglip_gap(kLarge, 16, 512, true, "v2_webli"),
      siglip_gap(kSo400m, 14, 224, false, "v2_webli"),
      siglip_gap(kSo400m, 14, 378, false, "v2_webli"),
      siglip_gap(kSo400m, 14, 384, false, "webli"),
      siglip_gap(kSo400m, 14, 448, false, "pali_mix"),
      siglip_gap(kSo400m, 14, 896, false, "pali_pt"),
      siglip_gap(kSo400m, 16, 256, true, "v2_webli"),
      siglip_gap(kSo400m, 16, 384, true, "v2_webli"),
      siglip_gap(kSo400m, 16, 512, true, "v2_webli"),
      siglip_gap(kGiantOpt, 16, 256, true, "v2_webli"),
      siglip_gap(kGiantOpt, 16, 384, true, "v2_webli"),
  };
}

std::vector<Preset> other_presets() {
  return {
      swin("tiny", 96, {2, 2, 6, 2}, 7, 224, {"swin_t", "microsoft/swin-tiny-patch4-window7-224"},
           "ms_in1k"),
      swin("small", 96, {2, 2, 18, 2}, 7, 224,
           {"swin_s", "microsoft/swin-small-patch4-window7-224"}, "ms_in1k"),
      swin("base", 128, {2, 2, 18, 2}, 7, 224, {"swin_b", "microsoft/swin-base-patch4-window7-224"},
           "ms_in22k_ft_in1k"),
      swin("base", 128, {2, 2, 18, 2}, 12, 384, {"microsoft/swin-base-patch4-window12-384"},
           "ms_in22k_ft_in1k"),
      swin("large", 192, {2, 2, 18, 2}, 7, 224, {"microsoft/swin-large-patch4-window7-224"},
           "ms_in22k_ft_in1k"),
      swin_cifar(),
      minvit(),
      mnist(),
      fashion(),
      cifar("vit_lite_cifar", 256, 7, 4, 2),
      cifar("vit_tiny_cifar", 192, 9, 12, 2),
      cifar("vit_small_cifar", 256, 12, 4, 4),
      cifar_mean(),
      deit_cifar(),
      notes(),
      plain(kSmall, 16),
      lesson(kBase, 16),
      lesson(kLarge, 16),
      lesson(kHuge, 14),
      resnet("resnet18", {2, 2, 2, 2}, false, {"microsoft/resnet-18"}, "timm/resnet18.tv_in1k"),
      resnet("resnet34", {3, 4, 6, 3}, false, {"microsoft/resnet-34"}, "timm/resnet34.tv_in1k"),
      resnet("resnet50", {3, 4, 6, 3}, true, {"microsoft/resnet-50"}, "timm/resnet50.tv_in1k"),
      resnet("resnet101", {3, 4, 23, 3}, true, {"microsoft/resnet-101"}, "timm/resnet101.tv_in1k"),
      resnet18_cifar(),
  };
}

}  // namespace

std::span<const Preset> presets() {
  static const std::vector<Preset> all = [] {
    std::vector<Preset> every;
    for (std::vector<Preset> some : {vit_presets(), pretrained_presets(), other_presets(),
                                     foundation_presets(), swin_v2_presets(), convnext_presets()})
      std::ranges::move(some, std::back_inserter(every));
    return every;
  }();
  return all;
}

const Preset* preset_named(std::string_view name) {
  for (const Preset& preset : presets())
    if (preset.name == name || std::ranges::find(preset.aliases, name) != preset.aliases.end())
      return &preset;
  return nullptr;
}

const Preset& find_preset(std::string_view name) {
  if (const Preset* preset = preset_named(name)) return *preset;
  std::vector<std::string> names;
  for (const Preset& preset : presets()) {
    names.push_back(preset.name);
    names.insert(names.end(), preset.aliases.begin(), preset.aliases.end());
  }
  const std::string nearest = did_you_mean(name, names);
  if (name.find('/') != name.npos)
    fail_input("'{}' is neither a model directory nor a model's name{}", shown(name), nearest);
  fail_input("unknown model '{}'{}; `vitrum models` lists all", shown(name), nearest);
}

}  // namespace vitrum
