#include "vitrum/weights/mae_decoder.h"

#include <fmt/format.h>

#include <filesystem>

#include "vitrum/core/all_finite.h"
#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/weights/checkpoint.h"
#include "vitrum/weights/convert_floats.h"
#include "vitrum/weights/family.h"
#include "vitrum/weights/hf_config.h"
#include "vitrum/weights/open_tensors.h"

namespace vitrum {
namespace {

constexpr size_t kMaxConfig = 16 << 20;  // bytes
constexpr const char* kOwn = "decoder_embed.weight";
constexpr const char* kPositions = "decoder_pos_embed";
constexpr const char* kTheirs = "decoder.decoder_embed.weight";

constexpr NameRule kHuggingFace[] = {
    {"decoder_embed", "decoder.decoder_embed"},
    {"mask_token", "decoder.mask_token"},
    {"decoder_pos_embed", "decoder.decoder_pos_embed"},
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
    {"decoder_norm", "decoder.decoder_norm"},
    {"decoder_pred", "decoder.decoder_pred"},
};
constexpr NameRule kAuthors[] = {{"", ""}};

// The encoder, and positions.
constexpr std::string_view kIgnored[] = {"vit.", "decoder.decoder_pos_embed"};
constexpr std::string_view kAuthorsIgnored[] = {
    "patch_embed.", "cls_token", "pos_embed", "blocks.",
    "norm.",        "fc_norm.",  "head.",     "decoder_pos_embed"};
constexpr Dialect kDecoderHf{"vit", "hf", "Hugging Face transformers", kHuggingFace, kIgnored,
                             {},    {},   PositionRule::kBicubic,      1e-12f,       Act::kGelu};
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
  return {&kDecoderHf, file.find("decoder.decoder_layers.0.mlp.fc1.weight") != nullptr, {}};
}

// transformers' class has these numbers where a config does not say.
MaeConfig sizes_in(const std::string& config) {
  const JsonKeys keys(read_file(config, kMaxConfig), config);
  MaeConfig mae;
  mae.width = keys.integer("decoder_hidden_size", mae.width, kWidths);
  mae.depth = keys.integer("decoder_num_hidden_layers", mae.depth, kDepths);
  mae.heads = keys.integer("decoder_num_attention_heads", mae.heads, kWidths);
  mae.mlp_width = keys.integer("decoder_intermediate_size", mae.mlp_width, {1, 1 << 20});
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

std::optional<MaeConfig> stored_decoder(const std::string& model) {
  const auto file = open_tensors(weights_path(model));
  if (file->find(kOwn)) return sizes_of(*file);
  if (!file->find(kTheirs) || !is_model_dir(model)) return {};
  return sizes_in((std::filesystem::path(model) / "config.json").string());
}

void load_decoder(const std::string& model, const ModelSpec& spec, ParamStore& store) {
  const std::string path = weights_path(model);
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

}  // namespace vitrum
