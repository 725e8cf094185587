#include "vitrum/models/conv_presets.h"

#include <fmt/format.h>

namespace vitrum {
namespace {

// timm's; `before` are the windows of pretraining: "12to16" has 16 now and had 12.
Preset swin_v2(const char* size, int64_t width, std::vector<int64_t> depths, int64_t window,
               int64_t image, int64_t before, std::vector<std::string> aliases,
               const std::string& tag) {
  SwinV2Config cfg;
  cfg.image_h = cfg.image_w = image, cfg.window_h = cfg.window_w = window;
  cfg.width = width, cfg.depths = std::move(depths), cfg.heads.clear(), cfg.drop_path = 0.1f;
  for (int64_t i = 0; i < cfg.stages(); ++i) cfg.heads.push_back(cfg.stage_width(i) / 32);
  std::string name = fmt::format("swinv2_{}_window{}_{}", size, window, image);
  if (before > 0) {
    cfg.pretrained_windows = {before, before, before, before / 2};
    name = fmt::format("swinv2_{}_window{}to{}_192to{}", size, before, window, image);
  }
  if (image == 192) cfg.classes = 21841;
  return {.name = name,
          .family = "swin_v2",
          .config = std::move(cfg),
          .aliases = std::move(aliases),
          .mean = {0.485f, 0.456f, 0.406f},
          .std = {0.229f, 0.224f, 0.225f},
          .public_weights = fmt::format("timm/{}.{}", name, tag),
          .crop_pct = image > 256 ? 1 : 0.9};
}

// timm's; those up to 80 wide have MLPs stored as convolutions.
Preset convnext(const char* size, std::vector<int64_t> depths, int64_t width, bool second,
                std::vector<std::string> aliases, const std::string& tag) {
  ConvNeXtConfig cfg{.depths = std::move(depths),
                     .widths = {width, 2 * width, 4 * width, 8 * width},
                     .layer_scale = second ? 0 : 1e-6f,
                     .response_norm = second,
                     .conv_mlp = width <= 80};
  const std::string name = fmt::format("convnext{}_{}", second ? "v2" : "", size);
  return {.name = name,
          .family = "convnext",
          .config = std::move(cfg),
          .aliases = std::move(aliases),
          .mean = {0.485f, 0.456f, 0.406f},
          .std = {0.229f, 0.224f, 0.225f},
          .public_weights = fmt::format("timm/{}.{}", name, tag),
          .crop_pct = 0.875};
}

// Published for larger images than the others, squashed.
Preset convnextv2_huge() {
  Preset preset = convnext("huge", {3, 3, 27, 3}, 352, true, {"facebook/convnextv2-huge-22k-384"},
                           "fcmae_ft_in22k_in1k_384");
  preset.config.set_image_size(384, 384);
  preset.crop_pct = 1;
  return preset;
}

}  // namespace

std::vector<Preset> swin_v2_presets() {
  return {
      swin_v2("tiny", 96, {2, 2, 6, 2}, 8, 256, 0,
              {"swin_v2_t", "microsoft/swinv2-tiny-patch4-window8-256"}, "ms_in1k"),
      swin_v2("tiny", 96, {2, 2, 6, 2}, 16, 256, 0, {"microsoft/swinv2-tiny-patch4-window16-256"},
              "ms_in1k"),
      swin_v2("small", 96, {2, 2, 18, 2}, 8, 256, 0,
              {"swin_v2_s", "microsoft/swinv2-small-patch4-window8-256"}, "ms_in1k"),
      swin_v2("small", 96, {2, 2, 18, 2}, 16, 256, 0,
              {"microsoft/swinv2-small-patch4-window16-256"}, "ms_in1k"),
      swin_v2("base", 128, {2, 2, 18, 2}, 8, 256, 0,
              {"swin_v2_b", "microsoft/swinv2-base-patch4-window8-256"}, "ms_in1k"),
      swin_v2("base", 128, {2, 2, 18, 2}, 16, 256, 0, {"microsoft/swinv2-base-patch4-window16-256"},
              "ms_in1k"),
      swin_v2("base", 128, {2, 2, 18, 2}, 12, 192, 0,
              {"microsoft/swinv2-base-patch4-window12-192-22k"}, "ms_in22k"),
      swin_v2("base", 128, {2, 2, 18, 2}, 16, 256, 12,
              {"microsoft/swinv2-base-patch4-window12to16-192to256-22kto1k-ft"},
              "ms_in22k_ft_in1k"),
      swin_v2("base", 128, {2, 2, 18, 2}, 24, 384, 12,
              {"microsoft/swinv2-base-patch4-window12to24-192to384-22kto1k-ft"},
              "ms_in22k_ft_in1k"),
      swin_v2("large", 192, {2, 2, 18, 2}, 12, 192, 0,
              {"microsoft/swinv2-large-patch4-window12-192-22k"}, "ms_in22k"),
      swin_v2("large", 192, {2, 2, 18, 2}, 16, 256, 12,
              {"microsoft/swinv2-large-patch4-window12to16-192to256-22kto1k-ft"},
              "ms_in22k_ft_in1k"),
      swin_v2("large", 192, {2, 2, 18, 2}, 24, 384, 12,
              {"microsoft/swinv2-large-patch4-window12to24-192to384-22kto1k-ft"},
              "ms_in22k_ft_in1k"),
  };
}

std::vector<Preset> convnext_presets() {
  return {
      convnext("atto", {2, 2, 6, 2}, 40, false, {}, "d2_in1k"),
      convnext("tiny", {3, 3, 9, 3}, 96, false, {"facebook/convnext-tiny-224"}, "fb_in1k"),
      convnext("small", {3, 3, 27, 3}, 96, false, {"facebook/convnext-small-224"}, "fb_in1k"),
      convnext("base", {3, 3, 27, 3}, 128, false, {"facebook/convnext-base-224"},
               "fb_in22k_ft_in1k"),
      convnext("large", {3, 3, 27, 3}, 192, false, {"facebook/convnext-large-224"},
               "fb_in22k_ft_in1k"),
      convnext("xlarge", {3, 3, 27, 3}, 256, false, {"facebook/convnext-xlarge-224-22k-1k"},
               "fb_in22k_ft_in1k"),
      convnext("atto", {2, 2, 6, 2}, 40, true, {"facebook/convnextv2-atto-1k-224"},
               "fcmae_ft_in1k"),
      convnext("femto", {2, 2, 6, 2}, 48, true, {"facebook/convnextv2-femto-1k-224"},
               "fcmae_ft_in1k"),
      convnext("pico", {2, 2, 6, 2}, 64, true, {"facebook/convnextv2-pico-1k-224"},
               "fcmae_ft_in1k"),
      convnext("nano", {2, 2, 8, 2}, 80, true, {"facebook/convnextv2-nano-22k-224"},
               "fcmae_ft_in22k_in1k"),
      convnext("tiny", {3, 3, 9, 3}, 96, true, {"facebook/convnextv2-tiny-22k-224"},
               "fcmae_ft_in22k_in1k"),
      convnext("base", {3, 3, 27, 3}, 128, true, {"facebook/convnextv2-base-22k-224"},
               "fcmae_ft_in22k_in1k"),
      convnext("large", {3, 3, 27, 3}, 192, true, {"facebook/convnextv2-large-22k-224"},
               "fcmae_ft_in22k_in1k"),
      convnextv2_huge(),
  };
}

}  // namespace vitrum
