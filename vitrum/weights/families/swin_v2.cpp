// The weights of Swin V2.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "vitrum/core/error.h"
#include "vitrum/weights/families/swin_keys.h"
#include "vitrum/weights/family.h"
#include "vitrum/weights/hf_config.h"

namespace vitrum {
namespace {

using enum Layout;
using Names = std::string_view;
using Json = nlohmann::ordered_json;

#define BLOCK "layers.{s}.blocks.{i}."
// Keys have no bias: the third that ours has in their place is in no file but torchvision's.
#define BIAS                                                  \
  {                                                           \
    BLOCK "attn.qkv.bias", BLOCK "attn.{q_bias,-,v_bias}", {} \
  }
constexpr NameRule kTimmSwinV2[] = {
    {"patch_embed.proj.weight", "patch_embed.proj.weight", {}, kConv},
    BIAS,
    {"", ""},
};

// Microsoft's own files merge patches at the end of a stage, timm at the start of the next.
constexpr NameRule kMicrosoftSwinV2[] = {
    {"patch_embed.proj.weight", "patch_embed.proj.weight", {}, kConv},
    {"layers.{s}.downsample", "layers.{s-1}.downsample"},
    {"head.fc", "head"},
    BIAS,
    {"", ""},
};
#undef BIAS

#define THEIRS "encoder.layers.{s}.blocks.{i}."
constexpr NameRule kHuggingFaceSwinV2[] = {
    {"patch_embed.proj.weight", "embeddings.patch_embeddings.projection.weight", {}, kConv},
    {"patch_embed.proj", "embeddings.patch_embeddings.projection"},
    {"patch_embed.norm", "embeddings.norm"},
    {"layers.{s}.downsample", "encoder.layers.{s-1}.downsample"},
    {BLOCK "norm1", THEIRS "layernorm_before"},
    {BLOCK "attn.logit_scale", THEIRS "attention.self.logit_scale"},
    {BLOCK "attn.cpb_mlp", THEIRS "attention.self.continuous_position_bias_mlp"},
    {BLOCK "attn.qkv.bias", THEIRS "attention.self.{query,-,value}.bias"},
    {BLOCK "attn.qkv", THEIRS "attention.self.{query,key,value}"},
    {BLOCK "attn.proj", THEIRS "attention.output.dense"},
    {BLOCK "norm2", THEIRS "layernorm_after"},
    {BLOCK "mlp.fc1", THEIRS "intermediate.dense"},
    {BLOCK "mlp.fc2", THEIRS "output.dense"},
    {"norm", "layernorm"},
    {"head.fc", "^classifier"},
};
#undef THEIRS
#undef BLOCK

// Buffers that follow from the sizes; some versions save them.
constexpr Names kSwinV2Ignored[] = {"*.relative_position_index", "*.relative_coords_table",
                                    "*.attn_mask", "*.k_bias", "embeddings.mask_token"};

constexpr Names kSwinV2Probes[] = {"patch_embed.proj.weight",
                                   "patch_embed.norm.weight",
                                   "layers.0.blocks.0.norm1.weight",
                                   "layers.0.blocks.0.attn.qkv.weight",
                                   "layers.0.blocks.0.attn.qkv.bias",
                                   "layers.0.blocks.0.attn.logit_scale",
                                   "layers.0.blocks.0.attn.cpb_mlp.2.weight",
                                   "layers.0.blocks.0.mlp.fc1.weight",
                                   "layers.1.downsample.norm.weight",
                                   "norm.weight",
                                   "head.fc.weight"};

bool fills_up(const SwinV2Config& c) {
  for (int64_t i = 0; i < c.stages(); ++i) {
    const SwinWindows w = swin_windows(c, i, false);
    if (w.grid_h % w.window_h != 0 || w.grid_w % w.window_w != 0) return true;
  }
  return false;
}

// Whether some stage has fewer tokens than a window.
bool exceeds(const SwinV2Config& c) {
  const SwinWindows last = swin_windows(c, c.stages() - 1, false);
  return last.grid_h < c.window_h || last.grid_w < c.window_w;
}

std::string timm_name(const ModelSpec& spec, const SwinV2Config& c) {
  if (c.eps != 1e-5f || c.act != Act::kGelu || !c.head_bias || (c.pad_first && fills_up(c)) ||
      (!c.shrink_windows && exceeds(c)))
    return "vitrum_swin_v2";
  return spec.architecture.starts_with("swinv2_") ? spec.architecture : "swinv2_tiny_window8_256";
}

// One a stage; 0 where nothing was trained before.
std::vector<int64_t> windows_of(const SwinV2Config& c) {
  return c.pretrained_windows.empty() ? std::vector<int64_t>(c.depths.size(), 0)
                                      : c.pretrained_windows;
}

Json model_args(const SwinV2Config& c) {
  Json args = swin_timm_sizes(c);
  args["pretrained_window_sizes"] = windows_of(c);
  return args;
}

// Windows of pretraining that say nothing are none.
std::vector<int64_t> stated_windows(std::vector<int64_t> windows) {
  if (std::ranges::all_of(windows, [](int64_t w) { return w == 0; })) windows.clear();
  return windows;
}

constexpr Dialect dialect(Names name, Names title, std::span<const NameRule> rules,
                          bool original = false) {
  return {"swin_v2",     name, title, rules,      kSwinV2Ignored, {},
          kSwinV2Probes, {},   1e-5f, Act::kGelu, original};
}

struct SwinV2 : EitherSwin {
  using Config = SwinV2Config;
  static constexpr Dialect kDialects[] = {
      // Before timm's: a file without a head that is both by its names is Microsoft's.
      dialect("microsoft", "Microsoft", kMicrosoftSwinV2, /*original=*/true),
      dialect("timm", "timm", kTimmSwinV2),
      dialect("hf", "Hugging Face transformers", kHuggingFaceSwinV2),
      dialect("torchvision", "torchvision", kTorchvisionSwin),
  };
  static constexpr std::string_view kHf[] = {"swinv2"};

  static void fields(FieldVisitor& visit, SwinV2Config& c) {
    swin_fields(visit, c);
    visit("pretrained_windows", c.pretrained_windows, IntRange{0, kSides.high});
    visit("shrink_windows", c.shrink_windows);
  }

  static bool same_sizes(const SwinV2Config& p, const SwinV2Config& c) {
    return same_swin_sizes(p, c) && p.pretrained_windows == c.pretrained_windows;
  }

  static void read_timm(const JsonKeys& top, const JsonKeys& args, SwinV2Config& c) {
    read_swin_timm(top, args, c, {"pretrained_window_sizes"});
    if (args.has("pretrained_window_sizes"))
      c.pretrained_windows =
          stated_windows(args.integers("pretrained_window_sizes", {0, kSides.high}));
  }

  static TimmConfig write_timm(const ModelSpec& spec, const SwinV2Config& c) {
    return swin_timm_config(timm_name(spec, c), model_args(c));
  }

  static void read_hf(const JsonKeys& keys, SwinV2Config& c) {
    read_swin_hf(keys, c);
    if (keys.has("pretrained_window_sizes"))
      c.pretrained_windows =
          stated_windows(keys.integers("pretrained_window_sizes", {0, kSides.high}));
  }

  static std::string write_hf(const SwinV2Config& c, const std::string& dtype) {
    Json json = swin_hf_keys(c, "Swinv2", dtype);
    json["pretrained_window_sizes"] = windows_of(c);
    return json.dump();
  }

  static std::string_view hf_base(const SwinV2Config&) { return "swinv2"; }

  static SwinV2Config stored_sizes(SwinV2Config c, const Dialect&, const StoredDims& dims) {
    take_swin_dims(c, dims);
    return c;
  }

  // torchvision resizes its Swin V2-T and -S to 260 pixels, -B to 272.
  static void as_published(const Dialect& dialect, SwinV2Config& c, Preprocessing& p) {
    c.eps = dialect.eps, c.act = dialect.act;
    c.pad_first = dialect.name == "torchvision" || dialect.name == "hf";
    c.shrink_windows = dialect.name != "torchvision";
    const bool usual = c.image_h == 256 && c.image_w == 256;
    if (dialect.name == "hf")
      p.crop_mode = "squash";
    else if (dialect.name == "torchvision" && usual)
      center_crop(p, "bicubic", c.width > 96 ? 272 : 260);
    else if (c.image_h <= 256)
      p.crop_pct = 0.9;
  }

  static void take_stored(SwinV2Config& wanted, const SwinV2Config& stored) {
    wanted.window_h = stored.window_h, wanted.window_w = stored.window_w;
    wanted.pretrained_windows = stored.pretrained_windows;
    wanted.pad_first = stored.pad_first, wanted.shrink_windows = stored.shrink_windows;
  }
  static std::unique_ptr<Adapter> adapt(const SwinV2Config& stored, const SwinV2Config& wanted,
                                        PositionRule) {
    return std::make_unique<ChannelAdapter>(
        ChannelAdapter::FirstLayer{"patch_embed.proj.weight", "patch embedding", stored.width},
        stored.channels, wanted.channels);
  }

  static void require_plain(const Dialect& dialect, const SwinV2Config& c) {
    if (dialect.name == "timm" || dialect.name == "microsoft") return;
    const RequirePlain require{dialect, "Swin V2"};
    const bool torchvision = dialect.name == "torchvision";
    require(c.window_h == c.window_w || torchvision, "with windows that are not square");
    require(!torchvision || !c.shrink_windows || !exceeds(c),
            "whose windows are smaller in later stages");
    require(!torchvision || c.pretrained_windows.empty(), "with windows of pretraining");
    require(torchvision || c.shrink_windows || !exceeds(c),
            "that fills up windows of which a stage has not all tokens");
  }

  static std::vector<std::string> notes(const Dialect& dialect, const SwinV2Config& c,
                                        bool says_so) {
    return swin_notes(dialect, c, fills_up(c), says_so);
  }
};

}  // namespace

extern constinit const WeightFamily kSwinV2Weights = family<SwinV2>("swin_v2");

}  // namespace vitrum
