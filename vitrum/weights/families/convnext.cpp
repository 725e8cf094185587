// The weights of ConvNeXt and ConvNeXt V2.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <tuple>

#include "vitrum/core/error.h"
#include "vitrum/weights/family.h"
#include "vitrum/weights/hf_config.h"

namespace vitrum {
namespace {

using enum Layout;
using Names = std::string_view;
using Json = nlohmann::ordered_json;

#define BLOCK "stages.{s}.blocks.{i}."
constexpr NameRule kTimmConvNeXt[] = {
    {"stem.0.weight", "stem.0.weight", {}, kConv},
    {"stages.{s}.downsample.1.weight", "stages.{s}.downsample.1.weight", {}, kNeighbours},
    {BLOCK "mlp.fc1.weight", BLOCK "mlp.fc1.weight", {}, kPixel},
    {BLOCK "mlp.fc2.weight", BLOCK "mlp.fc2.weight", {}, kPixel},
    {"", ""},
};

#define THEIRS "encoder.stages.{s}.layers.{i}."
#define DOWN "encoder.stages.{s}.downsampling_layer."
constexpr NameRule kHuggingFaceConvNeXt[] = {
    {"stem.0.weight", "embeddings.patch_embeddings.weight", {}, kConv},
    {"stem.0", "embeddings.patch_embeddings"},
    {"stem.1", "embeddings.layernorm"},
    {"stages.{s}.downsample.1.weight", DOWN "1.weight", {}, kNeighbours},
    {"stages.{s}.downsample", "encoder.stages.{s}.downsampling_layer"},
    {BLOCK "conv_dw", THEIRS "dwconv"},
    {BLOCK "norm", THEIRS "layernorm"},
    {BLOCK "mlp.fc1", THEIRS "pwconv1"},
    {BLOCK "mlp.grn", THEIRS "grn", {}, kLine},
    {BLOCK "mlp.fc2", THEIRS "pwconv2"},
    {BLOCK "gamma", THEIRS "layer_scale_parameter"},
    {"head.norm", "layernorm"},
    {"head.fc", "^classifier"},
};
#undef DOWN
#undef THEIRS

#define THEIRS "features.{2s+1}.{i}."
constexpr NameRule kTorchvisionConvNeXt[] = {
    {"stem.0.weight", "features.0.0.weight", {}, kConv},
    {"stem", "features.0"},
    {"stages.{s}.downsample.1.weight", "features.{2s}.1.weight", {}, kNeighbours},
    {"stages.{s}.downsample", "features.{2s}"},
    {BLOCK "conv_dw", THEIRS "block.0"},
    {BLOCK "norm", THEIRS "block.2"},
    {BLOCK "mlp.fc1", THEIRS "block.3"},
    {BLOCK "mlp.fc2", THEIRS "block.5"},
    {BLOCK "gamma", THEIRS "layer_scale", {}, kPlanes},
    {"head.norm", "classifier.0"},
    {"head.fc", "classifier.2"},
};
#undef THEIRS

#define THEIRS "stages.{s}.{i}."
constexpr NameRule kMetaConvNeXt[] = {
    {"stem.0.weight", "downsample_layers.0.0.weight", {}, kConv},
    {"stem", "downsample_layers.0"},
    {"stages.{s}.downsample.1.weight", "downsample_layers.{s}.1.weight", {}, kNeighbours},
    {"stages.{s}.downsample", "downsample_layers.{s}"},
    {BLOCK "conv_dw", THEIRS "dwconv"},
    {BLOCK "norm", THEIRS "norm"},
    {BLOCK "mlp.fc1", THEIRS "pwconv1"},
    {BLOCK "mlp.grn.weight", THEIRS "grn.gamma", {}, kLine},
    {BLOCK "mlp.grn.bias", THEIRS "grn.beta", {}, kLine},
    {BLOCK "mlp.fc2", THEIRS "pwconv2"},
    {BLOCK "gamma", THEIRS "gamma"},
    {"head.norm", "norm"},
    {"head.fc", "head"},
};
#undef THEIRS
#undef BLOCK

constexpr Names kConvNeXtProbes[] = {"stages.0.blocks.0.conv_dw.weight",
                                     "stages.0.blocks.0.norm.weight",
                                     "stages.0.blocks.0.mlp.fc1.weight",
                                     "stages.1.downsample.0.weight",
                                     "stem.0.weight",
                                     "head.norm.weight",
                                     "head.fc.weight"};

constexpr IntRange kBlocks{1, 1024}, kKernels{1, 63};

// timm takes every size from model_args, but names what it builds. It has one eps for all norms;
// transformers' for the last, 1e-12, is taken for the same here and kept in our own object.
std::string timm_name(const ConvNeXtConfig& c) {
  if ((c.eps != c.head_eps && c.head_eps > 1e-6f) || !c.head_bias || c.mlp_ratio != 4 ||
      c.patch_h != c.patch_w || c.stages() != 4 || c.act == Act::kNone)
    return "vitrum_convnext";
  const std::string name = preset_name(c);
  return !name.empty() ? name : c.response_norm ? "convnextv2_tiny" : "convnext_tiny";
}

Json model_args(const ConvNeXtConfig& c) {
  Json args = {{"in_chans", c.channels},
               {"num_classes", c.classes},
               {"depths", c.depths},
               {"dims", c.widths},
               {"kernel_sizes", c.kernel},
               {"patch_size", c.patch_h},
               {"ls_init_value", c.layer_scale > 0 ? Json(tidy(c.layer_scale)) : Json(nullptr)},
               {"use_grn", c.response_norm},
               {"conv_mlp", c.conv_mlp},
               {"norm_eps", tidy(c.eps)}};
  if (c.act != Act::kGelu) args["act_layer"] = kActNames[static_cast<size_t>(c.act)];
  if (c.drop_path > 0) args["drop_path_rate"] = tidy(c.drop_path);
  return args;
}

constexpr Dialect dialect(Names name, Names title, std::span<const NameRule> rules,
                          bool original = false) {
  return {"convnext", name, title, rules, {}, {}, kConvNeXtProbes, {}, 1e-6f, Act::kGelu, original};
}

struct ConvNeXt {
  using Config = ConvNeXtConfig;
  static constexpr Dialect kDialects[] = {
      dialect("timm", "timm", kTimmConvNeXt),
      dialect("hf", "Hugging Face transformers", kHuggingFaceConvNeXt),
      dialect("torchvision", "torchvision", kTorchvisionConvNeXt),
      dialect("meta", "Meta", kMetaConvNeXt, /*original=*/true),
  };
  static constexpr std::string_view kHf[] = {"convnext", "convnextv2"};
  static constexpr bool kFixedInputSize = false;

  static bool holds(const ConvNeXtConfig&) { return true; }
  static void fields(FieldVisitor& visit, ConvNeXtConfig& c) {
    visit("image_h", c.image_h, kSides), visit("image_w", c.image_w, kSides);
    visit("patch_h", c.patch_h, kSides), visit("patch_w", c.patch_w, kSides);
    visit("channels", c.channels, kSides), visit("classes", c.classes, kClasses);
    visit("depths", c.depths, kBlocks), visit("widths", c.widths, kWidths);
    visit("kernel", c.kernel, kKernels), visit("mlp_ratio", c.mlp_ratio);
    visit("layer_scale", c.layer_scale), visit("response_norm", c.response_norm);
    visit("eps", c.eps), visit("head_eps", c.head_eps), visit("act", c.act, kActNames);
    visit("head_bias", c.head_bias), visit("conv_mlp", c.conv_mlp);
    visit("drop_path", c.drop_path);
  }

  static bool same_sizes(const ConvNeXtConfig& p, const ConvNeXtConfig& c) {
    return p.depths == c.depths && p.widths == c.widths && p.kernel == c.kernel &&
           p.patch_h == c.patch_h && p.patch_w == c.patch_w && p.mlp_ratio == c.mlp_ratio &&
           p.response_norm == c.response_norm && (p.layer_scale > 0) == (c.layer_scale > 0);
  }

  static void check_size(const ConvNeXtConfig& c, const std::string& path) {
    if (c.widths.empty() || c.widths.size() != c.depths.size()) return;  // validate() says so
    const auto real = [](int64_t n) { return static_cast<double>(n); };
    double total = real(c.widths.back()) * real(c.classes) +
                   real(c.widths[0]) * real(c.channels) * real(c.patch_h) * real(c.patch_w);
    for (size_t i = 0; i < c.depths.size(); ++i) {
      const double width = real(c.widths[i]);
      total += real(c.depths[i]) * width * (2 * width * c.mlp_ratio + real(c.kernel * c.kernel));
      if (i > 0) total += 4 * width * real(c.widths[i - 1]);
    }
    const double pixels = real(c.image_h) / real(c.patch_h) * (real(c.image_w) / real(c.patch_w));
    if (total > kMaxParameters || pixels > kMaxTokens)
      fail_input("{}: a model of {:.3g} parameters for images of {}x{} is too large to be meant",
                 path, total, c.image_h, c.image_w);
  }

  static void read_timm(const JsonKeys& top, const JsonKeys& args, ConvNeXtConfig& c) {
    const std::vector<JsonKeys::Fixed> only = {
        {"stem_type", "\"patch\""}, {"output_stride", "32"},      {"head_norm_first", "false"},
        {"conv_bias", "true"},      {"head_hidden_size", "null"}, {"norm_layer", "null"}};
    args.only({"img_size", "in_chans", "num_classes", "global_pool", "depths", "dims",
               "kernel_sizes", "patch_size", "ls_init_value", "use_grn", "conv_mlp", "norm_eps",
               "act_layer", "drop_rate", "drop_path_rate", "head_init_scale"},
              only);
    std::tie(c.image_h, c.image_w) = args.pair("img_size", {c.image_h, c.image_w}, kSides);
    c.channels = args.integer("in_chans", c.channels, kSides);
    c.classes = args.integer("num_classes", c.classes, kClasses);
    if (args.has("depths")) c.depths = args.integers("depths", kBlocks);
    if (args.has("dims")) c.widths = args.integers("dims", kWidths);
    c.kernel = args.integer("kernel_sizes", c.kernel, kKernels);
    c.patch_h = c.patch_w = args.integer("patch_size", c.patch_h, kSides);
    if (args.has("use_grn")) {
      c.response_norm = args.boolean("use_grn", c.response_norm);
      c.layer_scale = static_cast<float>(args.number("ls_init_value", 0, 0, 1));
    } else {
      c.layer_scale = static_cast<float>(
          args.number("ls_init_value", static_cast<double>(c.layer_scale), 0, 1));
    }
    c.conv_mlp = args.boolean("conv_mlp", c.conv_mlp);
    c.eps = c.head_eps =
        static_cast<float>(args.number("norm_eps", static_cast<double>(c.eps), 0, 1));
    c.act = static_cast<Act>(args.choice("act_layer", static_cast<size_t>(c.act), kActNames));
    c.drop_path = static_cast<float>(args.number("drop_path_rate", 0, 0, 1));
    constexpr std::array<std::string_view, 1> kPools = {"avg"};
    args.choice("global_pool", top.choice("global_pool", 0, kPools), kPools);
  }

  static TimmConfig write_timm(const ModelSpec&, const ConvNeXtConfig& c) {
    return {.architecture = timm_name(c),
            .pool = "avg",
            .model_args = model_args(c).dump(),
            .first = "stem.0",
            .classifiers = {"head.fc"},
            .says_eps = c.eps == c.head_eps};
  }

  static void read_hf(const JsonKeys& keys, ConvNeXtConfig& c) {
    c.response_norm = keys.text("model_type", "") == "convnextv2";
    if (keys.has("depths")) c.depths = keys.integers("depths", kBlocks);
    if (keys.has("hidden_sizes")) c.widths = keys.integers("hidden_sizes", kWidths);
    c.act = read_hf_act(keys);
    c.layer_scale =
        c.response_norm ? 0 : static_cast<float>(keys.number("layer_scale_init_value", 1e-6, 0, 1));
    c.head_eps = static_cast<float>(keys.number("layer_norm_eps", 1e-12, 0, 1));
    std::tie(c.image_h, c.image_w) = keys.pair("image_size", {224, 224}, kSides);
    std::tie(c.patch_h, c.patch_w) = keys.pair("patch_size", {4, 4}, kSides);
    c.channels = keys.integer("num_channels", 3, kSides);
    c.drop_path = static_cast<float>(keys.number("drop_path_rate", 0, 0, 1));
    const auto stages = static_cast<int64_t>(c.depths.size());
    if (keys.integer("num_stages", stages, kBlocks) != stages)
      fail_input("{}: depths must be {} numbers", keys.where(),
                 keys.integer("num_stages", 4, kBlocks));
  }

  static std::string write_hf(const ConvNeXtConfig& c, const std::string& dtype) {
    const char* kind = c.response_norm ? "ConvNextV2" : "ConvNext";
    Json json = {
        {"architectures",
         {fmt::format("{}{}", kind, c.classes > 0 ? "ForImageClassification" : "Model")}},
        {"depths", c.depths},
        {"drop_path_rate", tidy(c.drop_path)},
        {"dtype", dtype},
        {"hidden_act", hf_act_name(c.act)},
        {"hidden_sizes", c.widths},
        {"image_size", c.image_h == c.image_w ? Json(c.image_h) : Json{c.image_h, c.image_w}},
        {"initializer_range", 0.02},
        {"layer_norm_eps", tidy(c.head_eps)},
        {"model_type", hf_base(c)},
        {"num_channels", c.channels},
        {"num_stages", c.stages()},
        {"patch_size", c.patch_h}};
    if (!c.response_norm) json["layer_scale_init_value"] = tidy(c.layer_scale);
    return json.dump();
  }

  static std::string_view hf_base(const ConvNeXtConfig& c) {
    return c.response_norm ? "convnextv2" : "convnext";
  }

  static void read_preprocessor(const ConfigText& stated, ModelSpec& spec) {
    read_convnext_preprocessor(stated, spec);
  }

  static LayoutSizes layout_sizes(const ConvNeXtConfig& c) {
    return {
        .patch_h = c.patch_h, .patch_w = c.patch_w, .channels = c.channels, .pixels = c.conv_mlp};
  }

  static ConvNeXtConfig stored_sizes(ConvNeXtConfig c, const Dialect&, const StoredDims& dims) {
    const std::vector<int64_t> head = dims("head.fc.weight", 2), stem = dims("stem.0.weight", 4);
    c.classes = !head.empty() && head[1] == c.features() ? head[0] : 0;
    c.head_bias = c.classes == 0 || !dims("head.fc.bias", 1).empty();
    if (!stem.empty() && stem[0] == c.widths[0] && stem[2] == c.patch_h && stem[3] == c.patch_w)
      c.channels = std::max<int64_t>(stem[1], 1);
    c.conv_mlp = !dims("stages.0.blocks.0.mlp.fc1.weight", 4).empty();
    return c;
  }

  // torchvision resizes its Tiny to 236 pixels, its Small to 230, others to 232.
  static void as_published(const Dialect& dialect, ConvNeXtConfig& c, Preprocessing& p) {
    c.eps = dialect.eps, c.act = dialect.act;
    c.head_eps = dialect.name == "hf" ? 1e-12f : dialect.eps;
    if (c.image_h != 224 || c.image_w != 224) return;
    if (dialect.name == "torchvision")
      center_crop(p, "bilinear", c.widths[0] > 96 ? 232 : c.depths[2] > 9 ? 230 : 236);
    else
      p.crop_pct = 0.875;
  }

  static void take_stored(ConvNeXtConfig& wanted, const ConvNeXtConfig& stored) {
    wanted.conv_mlp = stored.conv_mlp;
  }
  static std::unique_ptr<Adapter> adapt(const ConvNeXtConfig& stored, const ConvNeXtConfig& wanted,
                                        PositionRule) {
    return std::make_unique<ChannelAdapter>(
        ChannelAdapter::FirstLayer{"stem.0.weight", "stem", stored.widths[0]}, stored.channels,
        wanted.channels);
  }

  static void require_plain(const Dialect& dialect, const ConvNeXtConfig& c) {
    if (dialect.name == "timm") return;
    const RequirePlain require{dialect, "ConvNeXt"};
    require(c.kernel == 7, "with windows other than of 7 pixels");
    require(c.mlp_ratio == 4, "whose MLPs are other than 4 times as wide");
    require(c.patch_h == c.patch_w, "whose stem's windows are not square");
    const bool hf = dialect.name == "hf", torchvision = dialect.name == "torchvision";
    require(!torchvision || !c.response_norm, "with response norms (V2)");
    require(!torchvision || c.layer_scale > 0, "without layer scale");
    require(!hf || c.response_norm == (c.layer_scale == 0) || !c.response_norm,
            "with both layer scale and response norms");
    require(!hf || c.eps == 1e-6f, "whose norms have another eps than 1e-06");
  }

  static void give_biases(const Dialect&, ConvNeXtConfig& c) { c.head_bias = true; }

  static std::vector<std::string> notes(const Dialect& dialect, const ConvNeXtConfig& c,
                                        bool says_so) {
    std::vector<std::string> all = computed_otherwise(dialect, c.eps, c.act, says_so);
    const float theirs = dialect.name == "hf" && !says_so ? 1e-12f : dialect.eps;
    if (c.head_eps != theirs && !says_so)
      all.push_back(fmt::format("{} computes the last norm with eps {}, the model with {}",
                                dialect.title, theirs, c.head_eps));
    return all;
  }
  static bool two_heads(const ConvNeXtConfig&) { return false; }
  static std::vector<BesideTensor> beside(const Dialect&, const ConvNeXtConfig&) { return {}; }
};

}  // namespace

extern constinit const WeightFamily kConvNeXtWeights = family<ConvNeXt>("convnext");

}  // namespace vitrum
