#include "vitrum/weights/text_tower.h"

#include <cmath>
#include <filesystem>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/sha.h"
#include "vitrum/weights/convert_floats.h"
#include "vitrum/weights/family.h"
#include "vitrum/weights/hf_config.h"
#include "vitrum/weights/open_clip.h"
#include "vitrum/weights/open_tensors.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using enum Layout;

constexpr size_t kMaxConfig = 16 << 20;  // bytes

// CLIP's projection has no bias, SigLIP's is called head.
#define THEIRS "text_model.encoder.layers.{i}."
constexpr NameRule kBlocks[] = {
    {"text.token_embedding", "text_model.embeddings.token_embedding"},
    {"text.pos_embed", "text_model.embeddings.position_embedding.weight", {}, kSqueezed},
    {"text.blocks.{i}.norm1", THEIRS "layer_norm1"},
    {"text.blocks.{i}.attn.qkv", THEIRS "self_attn.{q_proj,k_proj,v_proj}"},
    {"text.blocks.{i}.attn.proj", THEIRS "self_attn.out_proj"},
    {"text.blocks.{i}.norm2", THEIRS "layer_norm2"},
    {"text.blocks.{i}.mlp.fc1", THEIRS "mlp.fc1"},
    {"text.blocks.{i}.mlp.fc2", THEIRS "mlp.fc2"},
    {"text.norm", "text_model.final_layer_norm"}};
#undef THEIRS
constexpr NameRule kClipHead[] = {{"text.proj", "text_projection"}},
                   kSiglipHead[] = {{"text.proj", "text_model.head"}};
constexpr auto kClipNames = joined(kBlocks, kClipHead), kSiglipNames = joined(kBlocks, kSiglipHead);

// The image tower, and tables of numbers from 0 on.
constexpr std::string_view kIgnored[] = {"vision_model.", "visual_projection.", "logit_scale",
                                         "logit_bias", "text_model.embeddings.position_ids"};
constexpr Dialect kClipText{"vit", "hf", "Hugging Face transformers", kClipNames, kIgnored,
                            {},    {},   PositionRule::kBicubic,      1e-5f,      Act::kQuickGelu};
constexpr Dialect kSiglipText{
    "vit", "hf", "Hugging Face transformers", kSiglipNames, kIgnored,
    {},    {},   PositionRule::kBicubic,      1e-6f,        Act::kGeluTanh};

std::string config_path(const std::string& model) {
  return (fs::path(model) / "config.json").string();
}

JsonKeys read_config(const std::string& model) {
  const std::string path = config_path(model);
  return {read_file(path, kMaxConfig), path};
}

bool is_siglip(const JsonKeys& keys) {
  const std::string type = keys.text("model_type", {});
  return type == "siglip" || type == "siglip2";
}
bool is_pair(const JsonKeys& keys) {
  return is_hf_config(keys) && !is_hf_class(keys, kOneHead) &&
         (is_siglip(keys) || keys.text("model_type", {}) == "clip");
}

// Sizes that both have, with the defaults of their classes.
TextConfig read_sizes(const JsonKeys& t, TextConfig c) {
  constexpr IntRange kVocabularies{1, 4 << 20}, kContexts{1, 1 << 14};
  c.vocabulary = t.integer("vocab_size", c.vocabulary, kVocabularies);
  c.context = t.integer("max_position_embeddings", c.context, kContexts);
  c.width = t.integer("hidden_size", c.width, kWidths);
  c.depth = t.integer("num_hidden_layers", c.depth, kDepths);
  c.heads = t.integer("num_attention_heads", c.heads, kWidths);
  c.mlp_width = t.integer("intermediate_size", c.mlp_width, {1, 1 << 20});
  c.eps = static_cast<float>(t.number("layer_norm_eps", static_cast<double>(c.eps), 0, 1));
  if (t.has("hidden_act")) c.act = read_hf_act(t);
  return c;
}

TextConfig read_text_config(const JsonKeys& keys) {
  const JsonKeys t = keys.object("text_config");
  if (!is_siglip(keys)) {
    TextConfig c = read_sizes(t, {});
    c.space = keys.integer("projection_dim", 512, {1, kWidths.high});
    return c;
  }
  TextConfig c = read_sizes(t, {.vocabulary = 32000,
                                .context = 64,
                                .width = 768,
                                .depth = 12,
                                .heads = 12,
                                .mlp_width = 3072,
                                .eps = 1e-6f,
                                .act = Act::kGeluTanh,
                                .causal = false,
                                .proj_bias = true});
  c.space = t.integer("projection_size", c.width, {1, kWidths.high});
  return c;
}

// A config is not trusted.
void check_size(const TextConfig& c, const std::string& where) {
  const auto real = [](int64_t n) { return static_cast<double>(n); };
  const double block = real(c.width) * (4 * real(c.width) + 2 * real(c.mlp_width));
  const double total = real(c.depth) * block +
                       real(c.width) * (real(c.vocabulary) + real(c.context) + real(c.space));
  if (total > kMaxParameters)
    fail_input("{}: a text tower of {:.3g} parameters is too large to be meant", where, total);
  try {
    validate(c);
  } catch (const Error& e) {  // a usage error on the command line, bad input here
    fail_input("{}: {}", where, e.what());
  }
}

// One number, whatever its shape.
float read_number(const TensorSource& file, const char* name) {
  const TensorInfo& t = file.at(name);
  if (t.shape.numel() != 1 || !is_float(t.dtype))
    fail_input("{}: {} is {} {}, expected one floating-point number", file.path(), name,
               t.shape.str(), name_of(t.dtype));
  const float x = to_floats(file.bytes(t), t.dtype)[0];
  if (!std::isfinite(x)) fail_input("{}: {} is not finite", file.path(), name);
  return x;
}

}  // namespace

// transformers' own; OpenCLIP's may be beside it.
static bool has_pair(const std::string& model) {
  std::error_code ignored;
  return fs::exists(config_path(model), ignored) && is_pair(read_config(model));
}

bool has_text_tower(const std::string& model) {
  return has_pair(model) || has_open_clip_config(model);
}

static std::string text_weights(const std::string& model) {
  return has_pair(model) ? weights_path(model) : open_clip_weights(model);
}

static TextSpec read_text_spec(const std::string& model) {
  if (has_pair(model)) {
    const JsonKeys keys = read_config(model);
    TextSpec spec{.config = read_text_config(keys), .sigmoid = is_siglip(keys)};
    check_size(spec.config, keys.where());
    return spec;
  }
  const OpenClipText theirs = read_open_clip_text(model);
  check_size(theirs.config, model + "/open_clip_config.json");
  return {.config = theirs.config, .canonical = theirs.canonical, .from_open_clip = true};
}

TextSpec resolve_text_tower(const std::string& model) {
  if (!has_text_tower(model))
    fail_usage(
        "{} has no words: a model directory of transformers' CLIPModel or SiglipModel, or of "
        "OpenCLIP, has, such as `vitrum download openai/clip-vit-base-patch32` fetches",
        model);
  TextSpec spec = read_text_spec(model);
  const auto file = open_tensors(text_weights(model));
  spec.scale = std::exp(read_number(*file, "logit_scale"));
  // Of OpenCLIP's, those were trained with SigLIP's loss that have one.
  if (!has_pair(model)) spec.sigmoid = file->find("logit_bias") != nullptr;
  if (spec.sigmoid) spec.bias = read_number(*file, "logit_bias");
  if (!std::isfinite(spec.scale)) fail_input("{}: logit_scale is too large", file->path());
  return spec;
}

std::string text_digest(const std::string& model) {
  const std::string config =
      has_pair(model) ? config_path(model) : model + "/open_clip_config.json";
  std::string all = sha256(read_file(config, kMaxConfig));
  const auto file = open_tensors(text_weights(model));
  for (const TensorInfo& t : file->tensors()) {
    const std::string_view name = t.name;
    const bool few = t.shape.rank() < 2 || name.find("position_embedding") != name.npos ||
                     name.find("positional_embedding") != name.npos ||
                     name.find("projection") != name.npos || name.find(".head.") != name.npos;
    if (name.starts_with("vision_model.") || name.starts_with("visual") || !few) continue;
    const auto bytes = file->bytes(t);
    all += t.name;
    all += sha256({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  }
  file->check_intact();
  return sha256(all);
}

const Dialect& hf_text_dialect(bool siglip) { return siglip ? kSiglipText : kClipText; }

TextFile text_file(const std::string& model) {
  const std::string path = text_weights(model);
  if (has_pair(model)) return {path, {&hf_text_dialect(is_siglip(read_config(model))), false, {}}};
  return {path, open_clip_text_naming(*open_tensors(path), read_open_clip_text(model).config)};
}

std::vector<ParamSpec> text_params(const TextConfig& config) {
  Graph g(Mode::kInference);
  const Value ids = g.input("ids", {1, config.context}, DType::kI32);
  const Value ends = config.causal ? g.input("ends", {1}, DType::kI32) : Value();
  text_features(Scope(g, "text"), ids, ends, config);
  return g.params;
}

std::unique_ptr<FrozenWeights> open_text_weights(const std::string& model, const Graph& g,
                                                 Backend& backend) {
  const TextFile file = text_file(model);
  return std::make_unique<FrozenWeights>(file.path, file.naming, g, backend);
}

}  // namespace vitrum
