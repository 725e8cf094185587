// The weights of Swin transformers.
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
#undef BLOCK

// Buffers that follow from the sizes; some versions save them.
constexpr Names kSwinIgnored[] = {"*.relative_position_index", "*.attn_mask",
                                  "embeddings.mask_token"};

constexpr Names kSwinProbes[] = {"patch_embed.proj.weight",
                                 "patch_embed.norm.weight",
                                 "layers.0.blocks.0.norm1.weight",
                                 "layers.0.blocks.0.attn.qkv.weight",
                                 "layers.0.blocks.0.attn.relative_position_bias_table",
                                 "layers.0.blocks.0.mlp.fc1.weight",
                                 "layers.1.downsample.norm.weight",
                                 "norm.weight",
                                 "head.fc.weight"};

std::string timm_name(const ModelSpec& spec, const SwinConfig& c) {
  if (c.eps != 1e-5f || c.act != Act::kGelu || !c.head_bias || (c.pad_first && fills_up(c)))
    return "vitrum_swin";
  return spec.architecture.find("_patch") != std::string::npos ? spec.architecture
                                                               : "swin_tiny_patch4_window7_224";
}

// Bias tables are resampled where windows have another size, which they also have where a stage has
// fewer tokens than a window.
class SwinAdapter final : public Adapter {
 public:
  SwinAdapter(const SwinConfig& stored, const SwinConfig& wanted, PositionRule rule)
      : stored_(stored), wanted_(wanted), rule_(rule) {}

  bool changes(const std::string& param) const override {
    if (param == kPatches) return stored_.channels != wanted_.channels;
    return param.ends_with(kTable) && table(stored_, stage(param)) != table(wanted_, stage(param));
  }
  std::vector<float> operator()(const std::string& param,
                                const std::vector<float>& values) const override {
    if (param == kPatches)
      return adapt_channels(values, stored_.width, stored_.channels, wanted_.channels, true);
    const int64_t i = stage(param);
    return resample_positions(values, 0, stored_.heads[static_cast<size_t>(i)], table(stored_, i),
                              table(wanted_, i), rule_);
  }
  std::vector<std::string> report() const override {
    std::vector<std::string> all;
    for (int64_t i = 0; i < stored_.stages(); ++i) {
      const SwinWindows from = swin_windows(stored_, i, false),
                        to = swin_windows(wanted_, i, false);
      if (table(stored_, i) != table(wanted_, i))
        all.push_back(fmt::format("windows of stage {} {}x{} -> {}x{} ({})", i, from.window_h,
                                  from.window_w, to.window_h, to.window_w, name_of(rule_)));
    }
    if (stored_.channels != wanted_.channels)
      all.push_back(
          fmt::format("patch embedding of {} -> {} channels", stored_.channels, wanted_.channels));
    return all;
  }

 private:
  static constexpr std::string_view kPatches = "patch_embed.proj.weight",
                                    kTable = ".relative_position_bias_table";
  static int64_t stage(const std::string& param) {  // "layers.2.blocks..."
    return std::stoll(param.substr(std::string_view("layers.").size()));
  }
  static Grid table(const SwinConfig& c, int64_t stage) {
    const SwinWindows w = swin_windows(c, stage, false);
    return {2 * w.window_h - 1, 2 * w.window_w - 1};
  }

  const SwinConfig stored_, wanted_;
  PositionRule rule_;
};

constexpr Dialect dialect(Names name, Names title, std::span<const NameRule> rules,
                          PositionRule positions, bool original = false) {
  return {"swin",      name,      title, rules,      kSwinIgnored, {},
          kSwinProbes, positions, 1e-5f, Act::kGelu, original};
}

struct Swin : EitherSwin {
  using Config = SwinConfig;
  static constexpr Dialect kDialects[] = {
      // Before timm's: a file without a head that is both by its names is Microsoft's.
      dialect("microsoft", "Microsoft", kMicrosoftSwin, PositionRule::kBicubic, /*original=*/true),
      dialect("timm", "timm", kTimmRules, PositionRule::kGeometric),
      dialect("hf", "Hugging Face transformers", kHuggingFaceSwin, PositionRule::kBicubic),
      dialect("torchvision", "torchvision", kTorchvisionSwin, PositionRule::kBicubic),
  };
  static constexpr std::string_view kHf[] = {"swin"};

  static void fields(FieldVisitor& visit, SwinConfig& c) { swin_fields(visit, c); }

  static bool same_sizes(const SwinConfig& p, const SwinConfig& c) { return same_swin_sizes(p, c); }

  static void read_timm(const JsonKeys& top, const JsonKeys& args, SwinConfig& c) {
    read_swin_timm(top, args, c);
  }

  static TimmConfig write_timm(const ModelSpec& spec, const SwinConfig& c) {
    return swin_timm_config(timm_name(spec, c), swin_timm_sizes(c));
  }

  static void read_hf(const JsonKeys& keys, SwinConfig& c) { read_swin_hf(keys, c); }

  static std::string write_hf(const SwinConfig& c, const std::string& dtype) {
    return swin_hf_keys(c, "Swin", dtype).dump();
  }

  static std::string_view hf_base(const SwinConfig&) { return "swin"; }

  static SwinConfig stored_sizes(SwinConfig c, const Dialect&, const StoredDims& dims) {
    take_swin_dims(c, dims);
    const std::vector<int64_t> table =
        dims("layers.0.blocks.0.attn.relative_position_bias_table", 2);
    const int64_t side = table.empty() || table[1] != c.heads[0] ? 0 : square_root(table[0]);
    const SwinWindows now = swin_windows(c, 0, false);
    if (side % 2 == 1 && (side != 2 * now.window_h - 1 || side != 2 * now.window_w - 1))
      c.window_h = c.window_w = (side + 1) / 2;
    return c;
  }

  // torchvision resizes its Swin-T, -S and -B to 232, 246 and 238 pixels.
  static void as_published(const Dialect& dialect, SwinConfig& c, Preprocessing& p) {
    c.eps = dialect.eps, c.act = dialect.act;
    c.pad_first = dialect.name == "torchvision" || dialect.name == "hf";
    const bool usual = c.image_h == 224 && c.image_w == 224;
    if (dialect.name == "hf")
      p.crop_mode = "squash";
    else if (dialect.name == "torchvision" && usual)
      center_crop(p, "bicubic", c.width > 96 ? 238 : c.depths[c.depths.size() / 2] > 6 ? 246 : 232);
    else if (usual)
      p.crop_pct = 0.9;
  }

  static void take_stored(SwinConfig& wanted, const SwinConfig& stored) {
    wanted.window_h = stored.window_h, wanted.window_w = stored.window_w;
    wanted.pad_first = stored.pad_first;
  }
  static std::unique_ptr<Adapter> adapt(const SwinConfig& stored, const SwinConfig& wanted,
                                        PositionRule rule) {
    return std::make_unique<SwinAdapter>(stored, wanted, rule);
  }

  static void require_plain(const Dialect& dialect, const SwinConfig& c) {
    if (dialect.name == "timm") return;
    const RequirePlain require{dialect, "Swin"};
    require(!shrinks(c), "whose windows are smaller in later stages");
    require(c.window_h == c.window_w || dialect.name == "torchvision",
            "with windows that are not square");
  }

  static std::vector<std::string> notes(const Dialect& dialect, const SwinConfig& c, bool says_so) {
    return swin_notes(dialect, c, fills_up(c), says_so);
  }
};

}  // namespace

extern constinit const WeightFamily kSwinWeights = family<Swin>("swin");

}  // namespace vitrum
