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

constexpr NameRule kTorchvisionSwinV2[] = {
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

// Nothing is stored by position.
class SwinV2Adapter final : public Adapter {
 public:
  SwinV2Adapter(const SwinV2Config& stored, const SwinV2Config& wanted)
      : stored_(stored), wanted_(wanted) {}
  bool changes(const std::string& param) const override {
    return param == "patch_embed.proj.weight" && stored_.channels != wanted_.channels;
  }
  std::vector<float> operator()(const std::string&,
                                const std::vector<float>& values) const override {
    return adapt_channels(values, stored_.width, stored_.channels, wanted_.channels, true);
  }
  std::vector<std::string> report() const override {
    if (stored_.channels == wanted_.channels) return {};
    return {
        fmt::format("patch embedding of {} -> {} channels", stored_.channels, wanted_.channels)};
  }

 private:
  const SwinV2Config stored_, wanted_;
};

constexpr Dialect dialect(Names name, Names title, std::span<const NameRule> rules,
                          bool original = false) {
  return {"swin_v2",     name, title, rules,      kSwinV2Ignored, {},
          kSwinV2Probes, {},   1e-5f, Act::kGelu, original};
}

struct SwinV2 {
  using Config = SwinV2Config;
  static constexpr Dialect kDialects[] = {
      // Before timm's: a file without a head that is both by its names is Microsoft's.
      dialect("microsoft", "Microsoft", kMicrosoftSwinV2, /*original=*/true),
      dialect("timm", "timm", kTimmSwinV2),
      dialect("hf", "Hugging Face transformers", kHuggingFaceSwinV2),
      dialect("torchvision", "torchvision", kTorchvisionSwinV2),
  };
  static constexpr std::string_view kHf[] = {"swinv2"};
  static constexpr bool kFixedInputSize = true;

  static bool holds(const SwinV2Config&) { return true; }
  static void fields(FieldVisitor& visit, SwinV2Config& c) {
    swin_fields(visit, c);
    visit("pretrained_windows", c.pretrained_windows, IntRange{0, kSides.high});
    visit("shrink_windows", c.shrink_windows);
  }

  static bool same_sizes(const SwinV2Config& p, const SwinV2Config& c) {
    return same_swin_sizes(p, c) && p.pretrained_windows == c.pretrained_windows;
  }

  static void check_size(const SwinV2Config& c, const std::string& path) {
    check_swin_size(c, path);
  }

  static void read_timm(const JsonKeys& top, const JsonKeys& args, SwinV2Config& c) {
    const std::vector<JsonKeys::Fixed> only = {{"always_partition", "false"}};
    args.only(swin_timm_args({"pretrained_window_sizes"}), only);
    read_swin_timm(top, args, c);
    if (args.has("pretrained_window_sizes"))
      c.pretrained_windows =
          stated_windows(args.integers("pretrained_window_sizes", {0, kSides.high}));
  }

  static TimmConfig write_timm(const ModelSpec& spec, const SwinV2Config& c) {
    return {.architecture = timm_name(spec, c),
            .pool = "avg",
            .model_args = model_args(c).dump(),
            .first = "patch_embed.proj",
            .classifiers = {"head.fc"}};
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

  static void read_preprocessor(const ConfigText& stated, ModelSpec& spec) {
    read_hf_preprocessor(JsonKeys(stated.text, stated.path), spec.config, spec.preprocess);
  }

  static LayoutSizes layout_sizes(const SwinV2Config& c) {
    return {.patch_h = c.patch_h, .patch_w = c.patch_w, .channels = c.channels};
  }

  static SwinV2Config stored_sizes(SwinV2Config c, const Dialect&, const StoredDims& dims) {
    const std::vector<int64_t> head = dims("head.fc.weight", 2);
    c.classes = !head.empty() && head[1] == c.features() ? head[0] : 0;
    c.head_bias = c.classes == 0 || !dims("head.fc.bias", 1).empty();
    const std::vector<int64_t> patch = dims("patch_embed.proj.weight", 4);
    if (!patch.empty() && patch[0] == c.width && patch[2] == c.patch_h && patch[3] == c.patch_w)
      c.channels = std::max<int64_t>(patch[1], 1);
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
    return std::make_unique<SwinV2Adapter>(stored, wanted);
  }

  static void require_plain(const Dialect& dialect, const SwinV2Config& c) {
    if (dialect.name == "timm" || dialect.name == "microsoft") return;
    const auto require = [&](bool has, const char* what) {
      if (!has) fail_input("{} has no Swin V2 {}", dialect.title, what);
    };
    const bool torchvision = dialect.name == "torchvision";
    require(c.window_h == c.window_w || torchvision, "with windows that are not square");
    require(!torchvision || !c.shrink_windows || !exceeds(c),
            "whose windows are smaller in later stages");
    require(!torchvision || c.pretrained_windows.empty(), "with windows of pretraining");
    require(torchvision || c.shrink_windows || !exceeds(c),
            "that fills up windows of which a stage has not all tokens");
  }

  static void give_biases(const Dialect& dialect, SwinV2Config& c) {
    c.head_bias = true;
    if (dialect.name == "torchvision") c.qkv_bias = true;
  }

  static std::vector<std::string> notes(const Dialect& dialect, const SwinV2Config& c,
                                        bool says_so) {
    std::vector<std::string> all = computed_otherwise(dialect, c.eps, c.act, says_so);
    const bool pads_first = dialect.name == "torchvision" || dialect.name == "hf";
    if (fills_up(c) && c.pad_first != pads_first)
      all.push_back(fmt::format("{} fills up windows {} they are shifted, the model does not",
                                dialect.title, pads_first ? "before" : "after"));
    return all;
  }
  static bool two_heads(const SwinV2Config&) { return false; }
  static std::vector<BesideTensor> beside(const Dialect&, const SwinV2Config&) { return {}; }
};

}  // namespace

extern constinit const WeightFamily kSwinV2Weights = family<SwinV2>("swin_v2");

}  // namespace vitrum
