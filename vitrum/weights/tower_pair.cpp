#include "vitrum/weights/tower_pair.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/models/registry.h"
#include "vitrum/text/tokenizer.h"
#include "vitrum/weights/family.h"
#include "vitrum/weights/open_clip.h"
#include "vitrum/weights/open_tensors.h"

namespace vitrum {
namespace {

namespace fs = std::filesystem;

// Files beside the weights that say how texts become numbers; frameworks read some that we do not.
constexpr std::array kTokenizerFiles = {
    "spiece.model",          "tokenizer.json",          "vocab.json",        "merges.txt",
    "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model"};

bool is_kind(const ModelConfig& image, std::string_view model_type) {
  return std::ranges::count(weights_of(image).model_types, model_type) > 0;
}

// Of one image size, or any shape.
bool is_siglip(const ModelConfig& image) {
  return is_kind(image, "siglip") || is_kind(image, "siglip2");
}

// A tower that OpenCLIP has by a name of timm's.
bool named_by_timm(const Dialect& dialect) { return dialect.prefix == "visual.trunk."; }

Naming text_naming(const Dialect& dialect, const ModelSpec& image, const TextSpec& text) {
  if (dialect.original) return open_clip_text_naming(text.config, named_by_timm(dialect));
  return {&hf_text_dialect(is_siglip(image.config)), false, {}};
}

}  // namespace

bool TowerPair::holds_texts(const Dialect& dialect) {
  return dialect.name == "hf" || dialect.name == "open_clip";
}

TowerPair::TowerPair(const std::string& source, const Dialect& image_dialect,
                     const ModelSpec& image)
    : source_(source),
      open_clip_(image_dialect.original),
      image_(image.config),
      spec_(resolve_text_tower(source)),
      file_(text_file(source).path, text_file(source).naming),
      params_(text_params(spec_.config)),
      naming_(text_naming(image_dialect, image, spec_)),
      written_(image_, naming_) {
  if (!open_clip_) require_hf_pair(image);
  const int64_t seen = image_.classes() > 0 ? image_.classes() : feature_width(image_);
  if (seen != spec_.config.space)
    fail_input("{}: images have vectors of {} numbers, texts of {}", source, seen,
               spec_.config.space);
  file_.check(params_, image_, /*head=*/true);
  for (const ParamSpec& param : params_) {
    std::vector<std::byte> scratch;
    std::span<const std::byte> bytes = file_.read(param, image_, scratch);
    if (!scratch.empty()) bytes = written_.keep(std::move(scratch));
    written_.add(param, file_.dtype(param, image_), bytes);
  }
  add_number("logit_scale");
  if (spec_.sigmoid) add_number("logit_bias");
}

// The classes there are: CLIP's texts end in a mark that sees what is before it, SigLIP's tokens
// see all, and their projection has a bias.
void TowerPair::require_hf_pair(const ModelSpec& image) const {
  const TextConfig& text = spec_.config;
  const auto require = [&](bool has, const char* kind, const char* what) {
    if (!has)
      fail_input("{}: transformers has no {} {}; --image-only writes the image tower alone",
                 source_, kind, what);
  };
  if (is_kind(image.config, "clip")) {
    require(image.config.classes() > 0, "CLIPModel", "whose image tower ends without a projection");
    require(text.causal && !text.proj_bias, "CLIPModel",
            "whose texts are read as a whole, or projected with a bias");
    return require(!spec_.sigmoid, "CLIPModel", "with logit_bias, which SigLIP's loss trains");
  }
  require(is_siglip(image.config), "model of texts and", "images of this kind");
  const auto* vit = image.config.as<ViTConfig>();
  require(vit && vit->pool == ViTPool::kMap && vit->classes == 0, "SiglipModel",
          "whose image tower does not pool by attention");
  require(!text.causal && text.proj_bias, "SiglipModel",
          "whose texts are read word by word, or projected without a bias");
  require(spec_.sigmoid, "SiglipModel", "without logit_bias");
}

// One number, which transformers' SiglipModel has as a vector of one.
void TowerPair::add_number(const char* name) {
  const auto tensors = open_tensors(file_.path());
  const TensorInfo& t = tensors->at(name);
  const auto bytes = tensors->bytes(t);
  written_.add_plain(name, spec_.sigmoid && !open_clip_ ? Shape{1} : Shape{}, t.dtype,
                     written_.keep({bytes.begin(), bytes.end()}));
}

std::string TowerPair::image_prefix() const {
  if (!open_clip_) return "vision_model.";
  return std::string(find_dialect(image_, "original").prefix);
}

const char* TowerPair::weights_name() const {
  return open_clip_ ? "open_clip_model.safetensors" : "model.safetensors";
}
const char* TowerPair::config_name() const {
  return open_clip_ ? "open_clip_config.json" : "config.json";
}

void TowerPair::require_room(const fs::path& dir) const {
  std::error_code ignored;
  const auto refuse = [&](const char* name) {
    if (fs::exists(dir / name, ignored))
      fail_usage("{} holds {} of another model, which would be read, too; write to an empty folder",
                 dir.string(), name);
  };
  if (open_clip_)
    refuse("config.json");
  else
    refuse("open_clip_config.json");
  for (const char* name : kTokenizerFiles)
    if (!fs::exists(fs::path(source_) / name, ignored)) refuse(name);
}

std::string TowerPair::config_text(const ModelSpec& image, const std::string& dtype) const {
  if (open_clip_ && spec_.from_open_clip) return open_clip_config(source_);
  const bool tokenizer = !tokenizer_files(source_).empty();
  if (open_clip_) return open_clip_config_text(image, spec_, text_marks(source_), tokenizer);
  return hf_pair_config_text(weights_of(image.config).write_hf(image.config, dtype), spec_,
                             text_marks(source_), dtype);
}

void TowerPair::copy_tokenizer(const fs::path& dir) const {
  std::error_code ignored;
  for (const char* name : kTokenizerFiles)
    if (const fs::path from = fs::path(source_) / name; fs::is_regular_file(from, ignored))
      write_file_atomic((dir / name).string(), read_file(from.string()));
}

// Of timm's towers only the name is said.
bool TowerPair::says_eps(const ModelSpec& image) const {
  const Dialect& dialect = find_dialect(image.config, open_clip_ ? "original" : "hf");
  if (!named_by_timm(dialect)) return true;
  const Preset* preset = preset_named(preset_name(image.config));
  const auto* theirs = preset ? preset->config.as<ViTConfig>() : nullptr;
  const auto* ours = image.config.as<ViTConfig>();
  return theirs && ours && theirs->eps == ours->eps && theirs->act == ours->act;
}

std::vector<std::string> TowerPair::notes() const {
  if (!spec_.canonical || open_clip_) return {};
  return {
      "OpenCLIP takes punctuation out of texts and reads _ as a blank (\"clean\": "
      "\"canonicalize\"); transformers does what its tokenizer does"};
}

}  // namespace vitrum
