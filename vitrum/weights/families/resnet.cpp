// The weights of ResNets.
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

constexpr Names kResNetProbes[] = {"layer1.0.conv1.weight", "layer1.0.bn1.running_mean",
                                   "layer4.0.downsample.0.weight", "conv1.weight", "bn1.weight"};

constexpr double kMaxPixels = 1e10;  // times the channels of the first stage

// Arguments of timm's ResNet that do not change what a trained model computes, and those with a
// single value that we have.
const std::vector<JsonKeys::Fixed> kOnlyResNetArgs = {
    {"cardinality", "1"},    {"base_width", "64"},  {"stem_type", "\"\""},
    {"output_stride", "32"}, {"avg_down", "false"}, {"replace_stem_pool", "false"}};

std::string timm_name(const ResNetConfig& c) {
  const std::string name = preset_name(c);
  const bool same = c.eps == 1e-5f && c.head_bias && !c.small_stem;
  return name.empty() || !same ? "vitrum_resnet" : name;
}

Json model_args(const ResNetConfig& c) {
  Json args = {{"in_chans", c.channels}, {"num_classes", c.classes}};
  if (c.drop_path > 0) args["drop_path_rate"] = tidy(c.drop_path);
  return args;
}

struct ResNet {
  using Config = ResNetConfig;
  static constexpr Dialect kDialects[] = {
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
      {"resnet",
       "torchvision",
       "torchvision",
       kResNet,
       {},
       {},
       kResNetProbes,
       {},
       1e-5f,
       Act::kRelu},
  };
  static constexpr std::string_view kHf[] = {"resnet"};
  static constexpr bool kFixedInputSize = false;  // the published one is as good a default as any

  static bool holds(const ResNetConfig&) { return true; }
  static void fields(FieldVisitor& visit, ResNetConfig& c) {
    constexpr IntRange kBlocks{1, 1024};
    visit("image_h", c.image_h, kSides), visit("image_w", c.image_w, kSides);
    visit("channels", c.channels, kSides), visit("classes", c.classes, kClasses);
    visit("depth1", c.depths[0], kBlocks), visit("depth2", c.depths[1], kBlocks);
    visit("depth3", c.depths[2], kBlocks), visit("depth4", c.depths[3], kBlocks);
    visit("width", c.width, IntRange{1, 1 << 12}), visit("bottleneck", c.bottleneck);
    visit("small_stem", c.small_stem), visit("head_bias", c.head_bias);
    visit("eps", c.eps), visit("momentum", c.momentum), visit("drop_path", c.drop_path);
  }

  static bool same_sizes(const ResNetConfig& p, const ResNetConfig& c) {
    return p.depths == c.depths && p.bottleneck == c.bottleneck && p.width == c.width &&
           p.small_stem == c.small_stem;
  }

  static void check_size(const ResNetConfig& c, const std::string& path) {
    const auto real = [](int64_t n) { return static_cast<double>(n); };
    double total = real(c.features()) * real(c.classes) + 49 * real(c.channels) * real(c.width);
    for (size_t stage = 0; stage < c.depths.size(); ++stage)
      total += 18 * real(c.depths[stage]) * std::pow(real(c.width << stage), 2);
    const double pixels = real(c.image_h) * real(c.image_w) * real(c.width);
    if (total > kMaxParameters || pixels > kMaxPixels)
      fail_input("{}: a model of {:.3g} parameters for images of {}x{} is too large to be meant",
                 path, total, c.image_h, c.image_w);
  }

  static void read_timm(const JsonKeys& top, const JsonKeys& args, ResNetConfig& c) {
    args.only({"in_chans", "num_classes", "global_pool", "layers", "stem_width", "drop_rate",
               "drop_path_rate", "zero_init_last", "img_size"},
              kOnlyResNetArgs);
    std::tie(c.image_h, c.image_w) = args.pair("img_size", {c.image_h, c.image_w}, kSides);
    c.channels = args.integer("in_chans", c.channels, kSides);
    c.classes = args.integer("num_classes", c.classes, kClasses);
    c.width = args.integer("stem_width", c.width, {c.width, c.width});
    c.drop_path = static_cast<float>(args.number("drop_path_rate", 0, 0, 1));
    const std::vector<int64_t> layers = args.integers("layers", {1, kDepths.high});
    if (!layers.empty() && layers.size() != c.depths.size())
      fail_input("{}: layers must be 4 numbers", args.where());
    std::copy(layers.begin(), layers.end(), c.depths.begin());
    constexpr std::array<std::string_view, 1> kPools = {"avg"};
    args.choice("global_pool", top.choice("global_pool", 0, kPools), kPools);
  }

  static TimmConfig write_timm(const ModelSpec&, const ResNetConfig& c) {
    return {.architecture = timm_name(c),
            .pool = "avg",
            .model_args = model_args(c).dump(),
            .first = "conv1",
            .classifiers = {"fc"}};
  }

  static void read_hf(const JsonKeys& keys, ResNetConfig& c) {
    constexpr std::array<std::string_view, 2> kTypes = {"basic", "bottleneck"};
    const std::array<JsonKeys::Fixed, 3> only = {{{"hidden_act", "\"relu\""},
                                                  {"downsample_in_first_stage", "false"},
                                                  {"downsample_in_bottleneck", "false"}}};
    keys.require(only);
    c.bottleneck = keys.choice("layer_type", 1, kTypes) == 1;
    c.channels = keys.integer("num_channels", 3, kSides);
    c.width = keys.integer("embedding_size", 64, {1, 1 << 12});
    const std::vector<int64_t> depths = keys.integers("depths", {1, kDepths.high}),
                               sizes = keys.integers("hidden_sizes", kWidths);
    c.depths = {3, 4, 6, 3};
    if (!depths.empty() && depths.size() != 4)
      fail_input("{}: depths must be 4 numbers", keys.where());
    std::copy(depths.begin(), depths.end(), c.depths.begin());
    for (size_t i = 0; i < sizes.size(); ++i)
      if (sizes.size() != 4 || sizes[i] != c.expansion() * c.width << i)
        fail_input("{}: hidden_sizes must be {} and doubles of it", keys.where(),
                   c.expansion() * c.width);
  }

  static std::string write_hf(const ResNetConfig& c, const std::string& dtype) {
    Json sizes = Json::array();
    for (int64_t i = 0; i < 4; ++i) sizes.push_back(c.expansion() * c.width << i);
    const Json json = {
        {"architectures", {c.classes > 0 ? "ResNetForImageClassification" : "ResNetModel"}},
        {"depths", c.depths},
        {"downsample_in_bottleneck", false},
        {"downsample_in_first_stage", false},
        {"dtype", dtype},
        {"embedding_size", c.width},
        {"hidden_act", "relu"},
        {"hidden_sizes", sizes},
        {"layer_type", c.bottleneck ? "bottleneck" : "basic"},
        {"model_type", "resnet"},
        {"num_channels", c.channels}};
    return json.dump();
  }

  static std::string_view hf_base(const ResNetConfig&) { return "resnet"; }

  static void read_preprocessor(const ConfigText& stated, ModelSpec& spec) {
    read_convnext_preprocessor(stated, spec);
  }

  static LayoutSizes layout_sizes(const ResNetConfig&) { return {}; }  // stored as it is everywhere
  static ResNetConfig stored_sizes(ResNetConfig c, const Dialect&, const StoredDims& dims) {
    const std::vector<int64_t> head = dims("fc.weight", 2), conv = dims("conv1.weight", 4);
    c.classes = !head.empty() && head[1] == c.features() ? head[0] : 0;
    c.head_bias = c.classes == 0 || !dims("fc.bias", 1).empty();
    if (!conv.empty() && conv[0] == c.width) c.channels = std::max<int64_t>(conv[1], 1);
    return c;
  }

  // torchvision's files, whose names timm's share.
  static void as_published(const Dialect&, ResNetConfig& c, Preprocessing& p) {
    if (c.image_h == 224) center_crop(p, "bilinear", 256);
  }

  static void take_stored(ResNetConfig&, const ResNetConfig&) {}
  static std::unique_ptr<Adapter> adapt(const ResNetConfig& stored, const ResNetConfig& wanted,
                                        PositionRule) {
    return std::make_unique<ChannelAdapter>(
        ChannelAdapter::FirstLayer{"conv1.weight", "first convolution", stored.width},
        stored.channels, wanted.channels);
  }

  static void require_plain(const Dialect& dialect, const ResNetConfig& c) {
    if (dialect.name == "timm") return;
    const RequirePlain require{dialect, "ResNet"};
    require(!c.small_stem, "with a stem for small images");
  }

  static void give_biases(const Dialect&, ResNetConfig& c) { c.head_bias = true; }

  static std::vector<std::string> notes(const Dialect& dialect, const ResNetConfig& c, bool) {
    if (c.eps == dialect.eps) return {};
    return {fmt::format("{} computes batch norm with eps {}, the model with {}", dialect.title,
                        dialect.eps, c.eps)};
  }

  static bool two_heads(const ResNetConfig&) { return false; }
  static std::vector<BesideTensor> beside(const Dialect&, const ResNetConfig&) { return {}; }
};

}  // namespace

extern constinit const WeightFamily kResNetWeights = family<ResNet>("resnet");

}  // namespace vitrum
