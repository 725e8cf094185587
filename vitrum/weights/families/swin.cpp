// The weights of Swin transformers.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "vitrum/core/error.h"
#include "vitrum/weights/families/swin_keys.h"
#include "vitrum/weights/family.h"
#include "vitrum/weights/hf_config.h"

namespace vitrum {

void read_swin_timm(const JsonKeys& top, const JsonKeys& args, SwinConfig& c) {
  std::tie(c.image_h, c.image_w) = args.pair("img_size", {c.image_h, c.image_w}, kSides);
  std::tie(c.patch_h, c.patch_w) = args.pair("patch_size", {c.patch_h, c.patch_w}, kSides);
  std::tie(c.window_h, c.window_w) = args.pair("window_size", {c.window_h, c.window_w}, kSides);
  c.channels = args.integer("in_chans", c.channels, kSides);
  c.classes = args.integer("num_classes", c.classes, kClasses);
  c.width = args.integer("embed_dim", c.width, kWidths);
  if (args.has("depths")) c.depths = args.integers("depths", kDepths);
  if (args.has("num_heads")) c.heads = args.integers("num_heads", kWidths);
  c.mlp_ratio = args.number("mlp_ratio", c.mlp_ratio, 0, 64);
  c.qkv_bias = args.boolean("qkv_bias", c.qkv_bias);
  const auto rate = [&](const char* key, double usual) {
    return static_cast<float>(args.number(key, usual, 0, 1));
  };
  c.drop_attn = rate("attn_drop_rate", 0), c.drop_path = rate("drop_path_rate", 0.1);
  c.drop_proj = c.drop_act = c.drop_mlp = rate("proj_drop_rate", 0);
  constexpr std::array<std::string_view, 1> kPools = {"avg"};
  args.choice("global_pool", top.choice("global_pool", 0, kPools), kPools);
}

void read_swin_hf(const JsonKeys& keys, SwinConfig& c) {
  const std::array<JsonKeys::Fixed, 1> only = {{{"use_absolute_embeddings", "false"}}};
  keys.require(only);
  c.width = keys.integer("embed_dim", 96, kWidths);
  if (keys.has("depths")) c.depths = keys.integers("depths", kDepths);
  if (keys.has("num_heads")) c.heads = keys.integers("num_heads", kWidths);
  c.window_h = c.window_w = keys.integer("window_size", 7, kSides);
  c.mlp_ratio = keys.number("mlp_ratio", 4, 0, 64);
  c.act = read_hf_act(keys);
  c.eps = static_cast<float>(keys.number("layer_norm_eps", 1e-5, 0, 1));
  std::tie(c.image_h, c.image_w) = keys.pair("image_size", {224, 224}, kSides);
  std::tie(c.patch_h, c.patch_w) = keys.pair("patch_size", {4, 4}, kSides);
  c.channels = keys.integer("num_channels", 3, kSides);
  c.qkv_bias = keys.boolean("qkv_bias", true);
  c.pad_first = true;
  const auto rate = [&](const char* key, double usual) {
    return static_cast<float>(keys.number(key, usual, 0, 1));
  };
  c.drop_attn = rate("attention_probs_dropout_prob", 0);
  c.drop_proj = c.drop_mlp = rate("hidden_dropout_prob", 0);
  c.drop_path = rate("drop_path_rate", 0.1);
}

namespace {

using enum Layout;
using Names = std::string_view;
using Json = nlohmann::ordered_json;

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

constexpr Names kSwinProbes[] = {"patch_embed.proj.weight",
                                 "patch_embed.norm.weight",
                                 "layers.0.blocks.0.norm1.weight",
                                 "layers.0.blocks.0.attn.qkv.weight",
                                 "layers.0.blocks.0.attn.relative_position_bias_table",
                                 "layers.0.blocks.0.mlp.fc1.weight",
                                 "layers.1.downsample.norm.weight",
                                 "norm.weight",
                                 "head.fc.weight"};
// A shifted block's mask has a number for each pair of tokens in a window.
constexpr double kMaxPairs = 1 << 28;

std::string timm_name(const ModelSpec& spec, const SwinConfig& c) {
  if (c.eps != 1e-5f || c.act != Act::kGelu || !c.head_bias || (c.pad_first && fills_up(c)))
    return "vitrum_swin";
  return spec.architecture.find("_patch") != std::string::npos ? spec.architecture
                                                               : "swin_tiny_patch4_window7_224";
}

Json side(int64_t h, int64_t w) { return h == w ? Json(h) : Json{h, w}; }

Json model_args(const SwinConfig& c) {
  Json args = {{"img_size", side(c.image_h, c.image_w)},
               {"patch_size", side(c.patch_h, c.patch_w)},
               {"in_chans", c.channels},
               {"num_classes", c.classes},
               {"global_pool", "avg"},
               {"embed_dim", c.width},
               {"depths", c.depths},
               {"num_heads", c.heads},
               {"window_size", side(c.window_h, c.window_w)},
               {"mlp_ratio", c.mlp_ratio},
               {"qkv_bias", c.qkv_bias},
               {"drop_path_rate", tidy(c.drop_path)}};
  if (c.drop_attn > 0) args["attn_drop_rate"] = tidy(c.drop_attn);
  if (c.drop_proj > 0 && c.drop_proj == c.drop_act && c.drop_act == c.drop_mlp)
    args["proj_drop_rate"] = tidy(c.drop_proj);
  return args;
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

struct Swin {
  using Config = SwinConfig;
  static constexpr Dialect kDialects[] = {
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
       kTimmRules,
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
  };
  static constexpr std::string_view kHf[] = {"swin"};
  static constexpr bool kFixedInputSize = true;

  static bool holds(const SwinConfig&) { return true; }
  static void fields(FieldVisitor& visit, SwinConfig& c) {
    visit("image_h", c.image_h, kSides), visit("image_w", c.image_w, kSides);
    visit("patch_h", c.patch_h, kSides), visit("patch_w", c.patch_w, kSides);
    visit("channels", c.channels, kSides), visit("width", c.width, kWidths);
    visit("depths", c.depths, kDepths), visit("heads", c.heads, kWidths);
    visit("window_h", c.window_h, kSides), visit("window_w", c.window_w, kSides);
    visit("mlp_ratio", c.mlp_ratio), visit("classes", c.classes, kClasses);
    visit("eps", c.eps), visit("act", c.act, kActNames), visit("qkv_bias", c.qkv_bias);
    visit("head_bias", c.head_bias), visit("pad_first", c.pad_first);
    visit("drop_attn", c.drop_attn), visit("drop_proj", c.drop_proj), visit("drop_act", c.drop_act);
    visit("drop_mlp", c.drop_mlp), visit("drop_path", c.drop_path);
  }

  static bool same_sizes(const SwinConfig& p, const SwinConfig& c) {
    return p.width == c.width && p.depths == c.depths && p.heads == c.heads &&
           p.patch_h == c.patch_h && p.patch_w == c.patch_w && p.window_h == c.window_h &&
           p.window_w == c.window_w && p.mlp_ratio == c.mlp_ratio && p.image_h == c.image_h;
  }

  static void check_size(const SwinConfig& c, const std::string& path) {
    const auto real = [](int64_t n) { return static_cast<double>(n); };
    double width = real(c.width);
    double total = width * real(c.channels) * real(c.patch_h) * real(c.patch_w);
    for (const int64_t depth : c.depths) {
      total += real(depth) * width * width * (4 + 2 * c.mlp_ratio) + 2 * width * width;
      width *= 2;
    }
    total += width * real(c.classes);
    const double tokens = real(c.image_h) / real(c.patch_h) * (real(c.image_w) / real(c.patch_w));
    const double pairs = tokens * real(c.window_h) * real(c.window_w);
    if (total > kMaxParameters || tokens > kMaxTokens || pairs > kMaxPairs)
      fail_input(
          "{}: a model of {:.3g} parameters, {:.3g} tokens and windows of {}x{} is too large "
          "to be meant",
          path, total, tokens, c.window_h, c.window_w);
  }

  static void read_timm(const JsonKeys& top, const JsonKeys& args, SwinConfig& c) {
    const std::vector<JsonKeys::Fixed> only = {{"always_partition", "false"}};
    args.only({"img_size", "patch_size", "in_chans", "num_classes", "global_pool", "embed_dim",
               "depths", "num_heads", "window_size", "mlp_ratio", "qkv_bias", "proj_drop_rate",
               "attn_drop_rate", "drop_path_rate", "drop_rate", "weight_init", "strict_img_size"},
              only);
    read_swin_timm(top, args, c);
  }

  static TimmConfig write_timm(const ModelSpec& spec, const SwinConfig& c) {
    return {.architecture = timm_name(spec, c),
            .pool = "avg",
            .model_args = model_args(c).dump(),
            .first = "patch_embed.proj",
            .classifiers = {"head.fc"}};
  }

  static void read_hf(const JsonKeys& keys, SwinConfig& c) { read_swin_hf(keys, c); }

  static std::string write_hf(const SwinConfig& c, const std::string& dtype) {
    const Json json = {
        {"architectures", {c.classes > 0 ? "SwinForImageClassification" : "SwinModel"}},
        {"attention_probs_dropout_prob", tidy(c.drop_attn)},
        {"depths", c.depths},
        {"drop_path_rate", tidy(c.drop_path)},
        {"dtype", dtype},
        {"embed_dim", c.width},
        {"encoder_stride", 32},
        {"hidden_act", hf_act_name(c.act)},
        {"hidden_dropout_prob", tidy(c.drop_mlp)},
        {"hidden_size", c.features()},
        {"image_size", side(c.image_h, c.image_w)},
        {"initializer_range", 0.02},
        {"layer_norm_eps", tidy(c.eps)},
        {"mlp_ratio", c.mlp_ratio},
        {"model_type", "swin"},
        {"num_channels", c.channels},
        {"num_heads", c.heads},
        {"num_layers", c.stages()},
        {"patch_size", side(c.patch_h, c.patch_w)},
        {"qkv_bias", c.qkv_bias},
        {"use_absolute_embeddings", false},
        {"window_size", c.window_h}};
    return json.dump();
  }

  static std::string_view hf_base(const SwinConfig&) { return "swin"; }

  static void read_preprocessor(const ConfigText& stated, ModelSpec& spec) {
    read_hf_preprocessor(JsonKeys(stated.text, stated.path), spec.config, spec.preprocess);
  }

  static LayoutSizes layout_sizes(const SwinConfig& c) {
    return {.patch_h = c.patch_h, .patch_w = c.patch_w, .channels = c.channels};
  }

  static SwinConfig stored_sizes(SwinConfig c, const Dialect&, const StoredDims& dims) {
    const std::vector<int64_t> head = dims("head.fc.weight", 2);
    c.classes = !head.empty() && head[1] == c.features() ? head[0] : 0;
    c.head_bias = c.classes == 0 || !dims("head.fc.bias", 1).empty();
    const std::vector<int64_t> patch = dims("patch_embed.proj.weight", 4);
    if (!patch.empty() && patch[0] == c.width && patch[2] == c.patch_h && patch[3] == c.patch_w)
      c.channels = std::max<int64_t>(patch[1], 1);
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
    const auto require = [&](bool has, const char* what) {
      if (!has) fail_input("{} has no Swin {}", dialect.title, what);
    };
    require(!shrinks(c), "whose windows are smaller in later stages");
    require(c.window_h == c.window_w || dialect.name == "torchvision",
            "with windows that are not square");
  }

  static void give_biases(const Dialect& dialect, SwinConfig& c) {
    c.head_bias = true;
    if (dialect.name == "torchvision") c.qkv_bias = true;
  }

  static std::vector<std::string> notes(const Dialect& dialect, const SwinConfig& c, bool says_so) {
    std::vector<std::string> all = computed_otherwise(dialect, c.eps, c.act, says_so);
    const bool pads_first = dialect.name == "torchvision" || dialect.name == "hf";
    if (fills_up(c) && c.pad_first != pads_first)
      all.push_back(fmt::format("{} fills up windows {} they are shifted, the model does not",
                                dialect.title, pads_first ? "before" : "after"));
    return all;
  }
  static bool two_heads(const SwinConfig&) { return false; }
};

}  // namespace

extern constinit const WeightFamily kSwinWeights = family<Swin>("swin");

}  // namespace vitrum
