#include "vitrum/weights/open_clip.h"

#include <array>
#include <cmath>
#include <filesystem>
#include <tuple>
#include <vector>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/shown.h"
#include "vitrum/models/registry.h"
#include "vitrum/weights/model_config.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using enum Layout;

constexpr size_t kMaxConfig = 16 << 20;  // bytes
constexpr const char* kConfigFile = "open_clip_config.json";
constexpr std::array kWeightFiles = {"open_clip_model.safetensors", "open_clip_pytorch_model.bin"};

// ---- names ----

#define BLOCK "text.blocks.{i}."
#define THEIRS "transformer.resblocks.{i}."
constexpr NameRule kBlocks[] = {{"text.token_embedding", "token_embedding"},
                                {"text.pos_embed", "positional_embedding", {}, kSqueezed},
                                {BLOCK "norm1", THEIRS "ln_1"},
                                {BLOCK "attn.qkv.weight", THEIRS "attn.in_proj_weight"},
                                {BLOCK "attn.qkv.bias", THEIRS "attn.in_proj_bias"},
                                {BLOCK "attn.proj", THEIRS "attn.out_proj"},
                                {BLOCK "norm2", THEIRS "ln_2"},
                                {BLOCK "mlp.fc1", THEIRS "mlp.c_fc"},
                                {BLOCK "mlp.fc2", THEIRS "mlp.c_proj"},
                                {"text.norm", "ln_final"}};
#undef THEIRS
#undef BLOCK
// A layer where it has a bias, else a matrix.
constexpr NameRule kLayer[] = {{"text.proj", "text_projection"}};
constexpr NameRule kMatrix[] = {{"text.proj.weight", "text_projection", {}, kKernel}};
constexpr auto kWithLayer = joined(kBlocks, kLayer), kWithMatrix = joined(kBlocks, kMatrix);

// The image tower, and numbers of both; the text tower has a prefix of its own or none.
constexpr std::string_view kIgnored[] = {"visual.",          "^visual.",       "logit_scale",
                                         "^logit_scale",     "logit_bias",     "^logit_bias",
                                         "input_resolution", "context_length", "vocab_size"};
constexpr Dialect dialect(std::span<const NameRule> rules) {
  return {"vit", "open_clip", "OpenCLIP", rules, kIgnored, {}, {}, {}, 1e-5f, Act::kGelu};
}
constexpr Dialect kLayerText = dialect(kWithLayer), kMatrixText = dialect(kWithMatrix);

// ---- configs ----

// Switches of its own blocks that no model here has, as JSON.
const std::vector<JsonKeys::Fixed> kOnly = {
    {"ls_init_value", "null"},     {"qk_norm", "false"},    {"scaled_cosine_attn", "false"},
    {"scale_heads", "false"},      {"scale_attn", "false"}, {"scale_fc", "false"},
    {"scale_attn_inner", "false"}, {"block_type", "null"},  {"final_ln_after_pool", "false"}};
const std::vector<JsonKeys::Fixed> kOnlyVision = {{"attentional_pool", "false"},
                                                  {"no_ln_pre", "false"},
                                                  {"pos_embed_type", "\"learnable\""},
                                                  {"pool_type", "\"tok\""}};
const std::vector<JsonKeys::Fixed> kOnlyText = {
    {"hf_model_name", "null"}, {"embed_cls", "false"}, {"proj_type", "\"linear\""}};

JsonKeys read_config(const std::string& dir) {
  const std::string path = (fs::path(dir) / kConfigFile).string();
  return {read_file(path, kMaxConfig), path};
}

int64_t mlp_width(const JsonKeys& keys, int64_t width) {
  const double ratio = keys.number("mlp_ratio", 4, 0, 64);
  return static_cast<int64_t>(static_cast<double>(width) * ratio);
}

float eps_of(const JsonKeys& keys) {
  return static_cast<float>(keys.object("norm_kwargs").number("eps", 1e-5, 0, 1));
}

Act act_of(const JsonKeys& model, const JsonKeys& tower) {
  constexpr std::array<std::string_view, 2> kForms = {"none", "tanh"};
  const bool tanh = tower.object("act_kwargs").choice("approximate", 0, kForms) == 1;
  if (model.boolean("quick_gelu", false)) return Act::kQuickGelu;
  return tanh ? Act::kGeluTanh : Act::kGelu;
}

ViTConfig read_own_tower(const JsonKeys& model, const JsonKeys& v, int64_t space) {
  v.require(kOnly);
  v.require(kOnlyVision);
  ViTConfig c;
  c.width = v.integer("width", 768, kWidths);
  c.depth = v.integer("layers", 12, kDepths);
  const int64_t head = v.integer("head_width", 64, kWidths);
  if (c.width % head != 0)
    fail_input("{}: width {} is not divisible by heads of {}", v.where(), c.width, head);
  c.heads = c.width / head;
  c.mlp_width = mlp_width(v, c.width);
  std::tie(c.patch_h, c.patch_w) = v.pair("patch_size", {16, 16}, kSides);
  c.act = act_of(model, v), c.eps = eps_of(v);
  c.norm_pre = true, c.patch_bias = c.head_bias = false;
  c.classes = space;
  return c;
}

// Of timm's models those that end in their own head, or have none.
ModelConfig read_timm_tower(const JsonKeys& v, int64_t space) {
  const std::string name = v.text("timm_model_name", {});
  const Preset* preset = preset_named(name);
  if (!preset)
    fail_input("{}: timm_model_name '{}' is not supported; `vitrum models` lists what is",
               v.where(), shown(name));
  const std::string proj = v.text("timm_proj", "");
  if (proj == "linear" || proj == "mlp")
    fail_input("{}: timm_proj '{}' is not supported; 'none' and null are", v.where(), proj);
  ModelConfig c = preset->config;
  const ViTConfig* vit = c.as<ViTConfig>();
  const std::string_view own = !vit || vit->pool == ViTPool::kToken ? "token"
                               : vit->pool == ViTPool::kMap         ? "map"
                                                                    : "avg";
  if (const std::string pool = v.text("timm_pool", "avg"); !vit || pool != own)
    fail_input("{}: {} with timm_pool '{}' is not supported", v.where(), name, shown(pool));
  c.set_classes(proj == "none" ? 0 : space);
  return c;
}

void read_preprocessing(const JsonKeys& keys, ModelSpec& spec) {
  constexpr std::array<std::string_view, 2> kFilters = {"bicubic", "bilinear"};
  constexpr std::array<std::string_view, 2> kModes = {"shortest", "squash"};
  Preprocessing& p = spec.preprocess;
  p.height = spec.config.image_h(), p.width = spec.config.image_w();
  p.interpolation = kFilters[keys.choice("interpolation", 0, kFilters)];
  p.crop_mode = keys.choice("resize_mode", 0, kModes) == 0 ? "center" : "squash";
  std::vector<float> mean = {0.48145466f, 0.4578275f, 0.40821073f},
                     std = {0.26862954f, 0.26130258f, 0.27577711f};
  if (keys.has("mean")) mean = keys.floats("mean");
  if (keys.has("std")) std = keys.floats("std");
  set_normalization(p, std::move(mean), std::move(std), spec.config.channels(), keys.where());
}

int64_t space_of(const JsonKeys& model) {
  if (!model.has("embed_dim")) fail_input("{}: has no 'embed_dim'", model.where());
  return model.integer("embed_dim", 512, {1, kWidths.high});
}

}  // namespace

bool has_open_clip_config(const std::string& dir) {
  std::error_code ignored;
  return fs::is_regular_file(fs::path(dir) / kConfigFile, ignored);
}

ModelSpec read_open_clip(const std::string& dir) { return parse_open_clip(read_config(dir)); }

OpenClipText read_open_clip_text(const std::string& dir) {
  return parse_open_clip_text(read_config(dir));
}

ModelSpec parse_open_clip(const JsonKeys& keys) {
  const JsonKeys model = keys.object("model_cfg"), v = model.object("vision_cfg");
  const bool timm = !v.text("timm_model_name", {}).empty();
  ModelSpec spec;
  spec.config = timm ? read_timm_tower(v, space_of(model))
                     : ModelConfig(read_own_tower(model, v, space_of(model)));
  const auto [height, width] = v.pair("image_size", {224, 224}, kSides);
  spec.config.set_image_size(height, width);
  if (auto* c = spec.config.as<ViTConfig>())
    c->floor_patches = height % c->patch_h != 0 || width % c->patch_w != 0;
  check_config(spec.config, v.where());
  const std::string preset = preset_name(spec.config);
  spec.architecture = preset.empty() ? std::string(family_of(spec.config)) : preset;
  read_preprocessing(keys.object("preprocess_cfg"), spec);
  return spec;
}

OpenClipText parse_open_clip_text(const JsonKeys& keys) {
  constexpr IntRange kVocabularies{1, 4 << 20}, kContexts{1, 1 << 14};
  // The largest number is the end mark.
  constexpr std::array<std::string_view, 3> kPools = {"argmax", "last", "eos"};
  constexpr std::array<std::string_view, 4> kCleans = {"", "lower", "whitespace", "canonicalize"};
  const JsonKeys model = keys.object("model_cfg"), t = model.object("text_cfg");
  t.require(kOnly);
  t.require(kOnlyText);
  TextConfig c;
  c.vocabulary = t.integer("vocab_size", 49408, kVocabularies);
  c.context = t.integer("context_length", 77, kContexts);
  c.width = t.integer("width", 512, kWidths), c.heads = t.integer("heads", 8, kWidths);
  c.depth = t.integer("layers", 12, kDepths), c.mlp_width = mlp_width(t, c.width);
  c.space = space_of(model), c.eps = eps_of(t), c.act = act_of(model, t);
  c.causal = !t.boolean("no_causal_mask", false), c.proj_bias = t.boolean("proj_bias", false);
  const size_t pool = t.choice("pool_type", 0, kPools);
  if (c.causal == (pool == 1))
    fail_input("{}: pool_type '{}' {} no_causal_mask is not supported", t.where(), kPools[pool],
               c.causal ? "without" : "with");
  const JsonKeys tokens = t.object("tokenizer_kwargs");
  return {c, tokens.choice("clean", 0, kCleans) == 3};
}

std::string open_clip_weights(const std::string& dir) {
  std::error_code ignored;
  for (const char* name : kWeightFiles)
    if (const fs::path file = fs::path(dir) / name; fs::exists(file, ignored)) return file.string();
  fail_input("{} has neither {} nor {}", dir, kWeightFiles[0], kWeightFiles[1]);
}

Naming open_clip_text_naming(const TensorSource& file, const TextConfig& config) {
  const bool prefixed = file.find("text.token_embedding.weight") != nullptr;
  return {config.proj_bias ? &kLayerText : &kMatrixText, false, prefixed ? "text." : ""};
}

Naming open_clip_text_naming(const TextConfig& config, bool beside_timm) {
  return {config.proj_bias ? &kLayerText : &kMatrixText, false, beside_timm ? "text." : ""};
}

std::string open_clip_config(const std::string& dir) {
  return read_file((fs::path(dir) / kConfigFile).string(), kMaxConfig);
}

}  // namespace vitrum
