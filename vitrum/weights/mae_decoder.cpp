#include "vitrum/weights/mae_decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "vitrum/core/all_finite.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/weights/checkpoint.h"
#include "vitrum/weights/convert_floats.h"
#include "vitrum/weights/family.h"
#include "vitrum/weights/hf_config.h"
#include "vitrum/weights/open_tensors.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr size_t kMaxConfig = 16 << 20;  // bytes
constexpr const char* kOwn = "decoder_embed.weight";
constexpr const char* kPositions = "decoder_pos_embed";
constexpr const char* kTheirs = "decoder.decoder_embed.weight";

constexpr NameRule kHeads[] = {
    {"decoder_embed", "decoder.decoder_embed"},         {"mask_token", "decoder.mask_token"},
    {"decoder_pos_embed", "decoder.decoder_pos_embed"}, {"decoder_norm", "decoder.decoder_norm"},
    {"decoder_pred", "decoder.decoder_pred"},
};
// As the hub has it, and every version reads it.
#define THEIRS "decoder.decoder_layers.{i}."
constexpr NameRule kHubBlocks[] = {
    {"decoder_blocks.{i}.norm1", THEIRS "layernorm_before"},
    {"decoder_blocks.{i}.attn.qkv", THEIRS "attention.attention.{query,key,value}"},
    {"decoder_blocks.{i}.attn.proj", THEIRS "attention.output.dense"},
    {"decoder_blocks.{i}.norm2", THEIRS "layernorm_after"},
    {"decoder_blocks.{i}.mlp.fc1", THEIRS "intermediate.dense"},
    {"decoder_blocks.{i}.mlp.fc2", THEIRS "output.dense"},
};
#undef THEIRS
// As version 5 saves it, and as its modules are called.
constexpr NameRule kSavedBlocks[] = {
    {"decoder_blocks.{i}.norm1", "decoder.decoder_encoder.layer.{i}.layernorm_before",
     "decoder.decoder_layers.{i}.layernorm_before"},
    {"decoder_blocks.{i}.attn.qkv",
     "decoder.decoder_encoder.layer.{i}.attention.attention.{query,key,value}",
     "decoder.decoder_layers.{i}.attention.{q,k,v}_proj"},
    {"decoder_blocks.{i}.attn.proj", "decoder.decoder_encoder.layer.{i}.attention.output.dense",
     "decoder.decoder_layers.{i}.attention.o_proj"},
    {"decoder_blocks.{i}.norm2", "decoder.decoder_encoder.layer.{i}.layernorm_after",
     "decoder.decoder_layers.{i}.layernorm_after"},
    {"decoder_blocks.{i}.mlp.fc1", "decoder.decoder_encoder.layer.{i}.intermediate.dense",
     "decoder.decoder_layers.{i}.mlp.fc1"},
    {"decoder_blocks.{i}.mlp.fc2", "decoder.decoder_encoder.layer.{i}.output.dense",
     "decoder.decoder_layers.{i}.mlp.fc2"},
};
constexpr auto kHub = joined(kHeads, kHubBlocks), kSaved = joined(kHeads, kSavedBlocks);
constexpr NameRule kAuthors[] = {{"", ""}};

// The encoder, and positions.
constexpr std::string_view kIgnored[] = {"vit.", "decoder.decoder_pos_embed"};
constexpr std::string_view kAuthorsIgnored[] = {
    "patch_embed.", "cls_token", "pos_embed", "blocks.",
    "norm.",        "fc_norm.",  "head.",     "decoder_pos_embed"};
constexpr Dialect hf_dialect(std::span<const NameRule> rules) {
  return {"vit", "hf", "Hugging Face transformers", rules,  kIgnored,
          {},    {},   PositionRule::kBicubic,      1e-12f, Act::kGelu};
}
constexpr Dialect kDecoderHub = hf_dialect(kHub), kDecoderSaved = hf_dialect(kSaved);
constexpr Dialect kDecoderAuthors{"vit", "timm", "the authors",          kAuthors, kAuthorsIgnored,
                                  {},    {},     PositionRule::kBicubic, 1e-6f,    Act::kGelu};

// Those of an image of another size are a table again.
bool has_positions(const TensorSource& file, const Shape& shape) {
  for (const std::string& name : {std::string(kPositions), fmt::format("decoder.{}", kPositions)})
    if (const TensorInfo* found = file.find(name); found && found->shape == shape) return true;
  return false;
}

Naming naming_of(const TensorSource& file) {
  if (file.find(kOwn)) return {&kDecoderAuthors, false, {}};
  if (file.find("decoder.decoder_layers.0.intermediate.dense.weight"))
    return {&kDecoderHub, false, {}};
  return {&kDecoderSaved, file.find("decoder.decoder_layers.0.mlp.fc1.weight") != nullptr, {}};
}

// transformers' class has these numbers where a config does not say.
MaeConfig sizes_in(const std::string& config) {
  const JsonKeys keys(read_file(config, kMaxConfig), config);
  MaeConfig mae;
  mae.width = keys.integer("decoder_hidden_size", mae.width, kWidths);
  mae.depth = keys.integer("decoder_num_hidden_layers", mae.depth, kDepths);
  mae.heads = keys.integer("decoder_num_attention_heads", mae.heads, kWidths);
  mae.mlp_width = keys.integer("decoder_intermediate_size", mae.mlp_width, {1, 1 << 20});
  mae.mask_ratio = keys.number("mask_ratio", mae.mask_ratio, 0, 1);
  mae.norm_pix = keys.boolean("norm_pix_loss", false);
  return mae;
}

// As the tensors have them: the authors' decoders have heads of 32 values.
MaeConfig sizes_of(const TensorSource& file) {
  constexpr int64_t kHead = 32;
  MaeConfig mae;
  const auto rows = [&](const char* name) {
    const TensorInfo* t = file.find(name);
    return t && t->shape.rank() == 2 ? t->shape[0] : 0;
  };
  mae.width = rows(kOwn);
  mae.heads = mae.width % kHead == 0 ? std::max<int64_t>(1, mae.width / kHead) : 1;
  mae.depth = 0;
  while (file.find(fmt::format("decoder_blocks.{}.norm1.weight", mae.depth))) ++mae.depth;
  mae.mlp_width = mae.depth > 0 ? rows("decoder_blocks.0.mlp.fc1.weight") : 4 * mae.width;
  return mae;
}

}  // namespace

// The file that holds it: one of its own, or the model's.
static std::string decoder_path(const std::string& model) {
  const fs::path own = fs::path(model) / kDecoderFile;
  std::error_code ignored;
  return fs::is_regular_file(own, ignored) ? own.string() : weights_path(model);
}

// What our own file says beside the sizes of tensors.
static MaeConfig sizes_in_own(const std::string& path) {
  const SafetensorsFile file(path);
  MaeConfig mae = sizes_of(file);
  const auto said = [&](const char* key) {
    const auto it = file.metadata().find(key);
    return it == file.metadata().end() ? std::string() : it->second;
  };
  const std::string heads = said("heads"), ratio = said("mask_ratio");
  if (const auto [end, error] =
          std::from_chars(heads.data(), heads.data() + heads.size(), mae.heads);
      error != std::errc() || end != heads.data() + heads.size() || mae.heads < 1)
    fail_input("{}: says nothing of 'heads', which a decoder of ours does", path);
  std::from_chars(ratio.data(), ratio.data() + ratio.size(), mae.mask_ratio);
  mae.norm_pix = said("norm_pix") != "false";
  return mae;
}

std::optional<MaeConfig> stored_decoder(const std::string& model) {
  if (const std::string path = decoder_path(model); path.ends_with(kDecoderFile))
    return sizes_in_own(path);
  const auto file = open_tensors(weights_path(model));
  if (file->find(kOwn)) return sizes_of(*file);
  if (!file->find(kTheirs) || !is_model_dir(model)) return {};
  return sizes_in((fs::path(model) / "config.json").string());
}

void load_decoder(const std::string& model, const ModelSpec& spec, ParamStore& store) {
  const std::string path = decoder_path(model);
  const auto tensors = open_tensors(path);
  const Checkpoint file(path, naming_of(*tensors));
  std::vector<ParamSpec> own;
  for (const ParamSpec& p : store.specs())
    if (in_decoder(p.name) && (p.name != kPositions || has_positions(*tensors, p.shape)))
      own.push_back(p);
  file.check(own, spec.config, /*head=*/true);
  std::vector<std::byte> scratch;
  for (const ParamSpec& p : own) {
    const std::vector<float> values =
        to_floats(file.read(p, spec.config, scratch), file.dtype(p, spec.config));
    if (!all_finite(values))
      fail_input("weights '{}': {} holds NaN or infinite numbers", model, p.name);
    store.write(static_cast<size_t>(store.index(p.name)), values);
  }
  file.check_intact();
  store.refresh_compute();
}

// ---- writing ----

static std::map<std::string, std::string> metadata_of(const MaeConfig& mae) {
  return {{"format", "pt"},
          {"heads", fmt::format("{}", mae.heads)},
          {"mask_ratio", fmt::format("{}", mae.mask_ratio)},
          {"norm_pix", mae.norm_pix ? "true" : "false"}};
}

void save_decoder(const std::string& dir, const MaeConfig& mae, ParamStore& store, Arena which) {
  ensure_directory(dir);
  std::deque<std::vector<float>> values;
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < store.specs().size(); ++i) {
    const ParamSpec& p = store.specs()[i];
    if (!in_decoder(p.name)) continue;
    values.push_back(store.read(i, which));
    tensors.push_back({p.name, {values.back().data(), p.shape, DType::kF32}});
  }
  write_safetensors((fs::path(dir) / kDecoderFile).string(), tensors, metadata_of(mae));
}

static MaeConfig require_decoder(const std::string& model) {
  if (const auto mae = stored_decoder(model)) return *mae;
  fail_usage("{} has no decoder of a masked autoencoder; leave --with-decoder out", model);
}

static Naming decoder_naming(const Dialect& encoder) {
  return {encoder.name == "hf" ? &kDecoderHub : &kDecoderAuthors, false, {}};
}

// Directories of ours hold what any ViT was pretrained with; others' autoencoders are plain ViTs.
static const ViTConfig& masked_encoder(const std::string& model, const ModelSpec& spec,
                                       const Dialect& dialect) {
  const auto* vit = spec.config.as<ViTConfig>();
  const bool plain = vit && std::ranges::count(weights_of(spec.config).model_types, "vit_mae") &&
                     vit->class_token && !vit->distilled && vit->layer_scale == 0;
  const bool theirs = plain && (dialect.name == "hf" || dialect.original);
  if (!vit || vit->classes > 0 || !(theirs || dialect.name == "timm"))
    fail_input("{}: {} has no masked autoencoder of such a model; leave --with-decoder out", model,
               dialect.title);
  return *vit;
}

DecoderCopy::DecoderCopy(const std::string& model, const ModelSpec& spec, const Dialect& dialect)
    : config_(spec.config),
      mae_(require_decoder(model)),
      file_(decoder_path(model), naming_of(*open_tensors(decoder_path(model)))),
      naming_(decoder_naming(dialect)),
      written_(config_, naming_) {
  const std::vector<ParamSpec> params = decoder_params(masked_encoder(model, spec, dialect), mae_);
  file_.check(params, config_, /*head=*/true);
  for (const ParamSpec& p : params) {
    std::vector<std::byte> scratch;
    std::span<const std::byte> bytes = file_.read(p, config_, scratch);
    if (!scratch.empty()) bytes = written_.keep(std::move(scratch));
    written_.add(p, file_.dtype(p, config_), bytes);
  }
}

std::string DecoderCopy::hf_config(const std::string& encoder) const {
  Json json = Json::parse(encoder);
  json["architectures"] = {"ViTMAEForPreTraining"};
  json["model_type"] = "vit_mae";
  json["decoder_hidden_size"] = mae_.width, json["decoder_num_hidden_layers"] = mae_.depth;
  json["decoder_num_attention_heads"] = mae_.heads;
  json["decoder_intermediate_size"] = mae_.mlp_width;
  json["mask_ratio"] = mae_.mask_ratio, json["norm_pix_loss"] = mae_.norm_pix;
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

void DecoderCopy::write_file(const std::string& dir) const {
  write_safetensors((fs::path(dir) / kDecoderFile).string(), tensors(), metadata_of(mae_),
                    [&] { check_intact(); });
}

}  // namespace vitrum
