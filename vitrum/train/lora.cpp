#include "vitrum/train/lora.h"

#include <algorithm>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/core/json_text.h"
#include "vitrum/core/nearest.h"
#include "vitrum/infer/model_program.h"
#include "vitrum/runtime/backends.h"
#include "vitrum/weights/safetensors.h"

namespace vitrum {
namespace {

constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight";

// "blocks.0.attn.qkv" of "blocks.0.attn.qkv.lora_A.weight"; empty where it is no adapter's A.
std::string layer_of(const ParamSpec& p) {
  return p.name.ends_with(kA) ? p.name.substr(0, p.name.size() - kA.size()) : "";
}

std::vector<std::string> adapted_layers(const std::vector<ParamSpec>& params) {
  std::vector<std::string> layers;
  for (const ParamSpec& p : params)
    if (const std::string layer = layer_of(p); !layer.empty()) layers.push_back(layer);
  return layers;
}

// Names that could have been meant: the last part of every matrix in a block.
std::vector<std::string> possible_targets(const std::vector<ParamSpec>& params) {
  std::vector<std::string> names;
  for (const ParamSpec& p : params) {
    if (p.shape.rank() != 2 || !in_block(p.name) || !p.name.ends_with(".weight")) continue;
    const std::string layer = p.name.substr(0, p.name.rfind('.'));
    const std::string name = layer.substr(layer.rfind('.') + 1);
    if (!name.starts_with("lora_") && std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name);
  }
  return names;
}

// w (rows, columns) += scale * b (rows, rank) a (rank, columns), in f64.
void merge(std::vector<float>& w, const std::vector<float>& a, const std::vector<float>& b,
           size_t rank, double scale) {
  const size_t columns = a.size() / rank;
  std::vector<double> row(columns);
  for (size_t i = 0; i < b.size() / rank; ++i) {
    std::fill(row.begin(), row.end(), 0.0);
    for (size_t k = 0; k < rank; ++k) {
      const double factor = scale * static_cast<double>(b[i * rank + k]);
      for (size_t j = 0; j < columns; ++j)
        row[j] += factor * static_cast<double>(a[k * columns + j]);
    }
    for (size_t j = 0; j < columns; ++j)
      w[i * columns + j] = static_cast<float>(static_cast<double>(w[i * columns + j]) + row[j]);
  }
}

std::vector<float> merged(ParamStore& store, const std::string& name, const LoraSpec& lora,
                          Arena which) {
  std::vector<float> w = store.read(static_cast<size_t>(store.index(name)), which);
  if (!name.ends_with(".weight")) return w;
  const std::string layer = name.substr(0, name.size() - std::string_view(".weight").size());
  const int a = store.index(layer + std::string(kA)), b = store.index(layer + std::string(kB));
  if (a >= 0)
    merge(w, store.read(static_cast<size_t>(a), which), store.read(static_cast<size_t>(b), which),
          static_cast<size_t>(lora.rank), static_cast<double>(lora.scale()));
  return w;
}

std::string adapter_config(const ModelSpec& model, const std::vector<ParamSpec>& params) {
  std::vector<std::string> heads;
  for (const ParamSpec& p : params)
    if (in_head(model.config, p.name)) heads.push_back(p.name.substr(0, p.name.rfind('.')));
  heads.erase(std::unique(heads.begin(), heads.end()), heads.end());
  JsonWriter json;
  const auto list = [&](std::string_view key, const std::vector<std::string>& names) {
    json.key(key).begin_array();
    for (const std::string& name : names) json.value(name);
    json.end_array();
  };
  json.begin_object().field("peft_type", "LORA").field("r", model.lora.rank);
  json.field("base_model_name_or_path", model.architecture);
  json.field("lora_alpha", model.lora.alpha).field("lora_dropout", model.lora.drop);
  list("target_modules", adapted_layers(params));
  list("modules_to_save", heads);
  json.field("bias", "none").field("inference_mode", true).end_object();
  return json.str() + "\n";
}

// Adapters and head under peft's names.
void save_adapter(const std::string& dir, const ModelSpec& model, ParamStore& store, Arena which) {
  ensure_directory(dir);
  remove_stale_temporaries(dir);
  std::vector<std::vector<float>> values;
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < store.specs().size(); ++i) {
    const ParamSpec& p = store.specs()[i];
    if (!p.name.ends_with(kA) && !p.name.ends_with(kB) && !in_head(model.config, p.name)) continue;
    values.push_back(store.read(i, which));
    tensors.push_back({"base_model.model." + p.name, {values.back().data(), p.shape, DType::kF32}});
  }
  write_safetensors(dir + "/adapter_model.safetensors", tensors, {{"format", "pt"}});
  write_file_atomic(dir + "/adapter_config.json", adapter_config(model, store.specs()));
}

}  // namespace

LoraSpec lora_of(const Recipe& recipe) {
  if (recipe.lora == 0) return {};
  const auto rank = static_cast<double>(recipe.lora);
  return {.rank = recipe.lora,
          .alpha = static_cast<float>(recipe.lora_alpha.value_or(rank)),
          .drop = static_cast<float>(recipe.lora_dropout),
          .targets = recipe.lora_targets};
}

void freeze_all_but_adapters(std::vector<ParamSpec>& params, const ModelSpec& model) {
  if (model.lora.rank == 0) return;
  const std::vector<std::string> layers = adapted_layers(params);
  for (const std::string& target : model.lora.targets) {
    LoraSpec alone = model.lora;
    alone.targets = {target};
    if (std::none_of(layers.begin(), layers.end(),
                     [&](const std::string& layer) { return alone.adapts(layer); }))
      fail_usage("lora_targets: no linear layer in a block of {} is named '{}'{}",
                 model.architecture, target, did_you_mean(target, possible_targets(params)));
  }
  for (ParamSpec& p : params)
    p.trainable = p.trainable &&
                  (p.name.ends_with(kA) || p.name.ends_with(kB) || in_head(model.config, p.name));
}

void save_adapted_model(const std::string& dir, const ModelSpec& model, ParamStore& store,
                        Arena which) {
  ModelSpec plain = model;
  plain.lora = {};
  const std::unique_ptr<Backend> host = make_backend({.device = "reference"});
  Graph g;
  trace(g, plain, 1);
  ParamStore all(g, *host);
  for (size_t i = 0; i < all.specs().size(); ++i)
    all.write(i, merged(store, all.specs()[i].name, model.lora, which));
  save_model_dir(dir, plain, all);
  save_adapter(dir + "/adapter", model, store, which);
}

}  // namespace vitrum
