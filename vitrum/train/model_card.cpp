#include "vitrum/train/model_card.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "vitrum/core/error.h"
#include "vitrum/core/join.h"
#include "vitrum/core/json_text.h"
#include "vitrum/infer/tta.h"
#include "vitrum/weights/convert.h"
#include "vitrum/weights/model_config.h"

namespace vitrum {
namespace {

constexpr size_t kNamedClasses = 50;

// "mnist" of "mnist:DIR"; of the user's own files the name of folder or table.
std::string data_name(const std::string& data) {
  const size_t colon = data.find(':');
  const std::string kind = data.substr(0, colon);
  if (colon == data.npos || (kind != "folder" && kind != "csv")) return kind;
  std::filesystem::path path(data.substr(colon + 1));
  if (!path.has_filename()) path = path.parent_path();
  const std::string name = path.stem().string();
  return name.empty() || name == "." ? kind : name;
}

// What timm has no name for is written under one of our own.
bool timm_loads(const ModelSpec& model) {
  return model_config_text(model).find("\"architecture\": \"vitrum_") == std::string::npos;
}

bool transformers_loads(const ModelSpec& model) {
  try {
    require_hf(model);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// A double-quoted scalar of YAML is a string of JSON.
std::string yaml(const std::string& text) { return json_string(text); }

bool pretrained(const ModelCard& c) { return c.recipe.task == Task::kMae; }
bool mirrors(const ModelCard& c) { return c.recipe.eval_tta == Tta::kFlip; }

std::string front_matter(const ModelCard& c, const EpochMetrics* row) {
  const std::string data = yaml(data_name(c.recipe.data));
  const char* use = pretrained(c) ? "image-feature-extraction" : "image-classification";
  std::string text = fmt::format(
      "---\nlibrary_name: {}\npipeline_tag: {}\ntags:\n- {}\n- vitrum\n- {}\ndatasets:\n- {}\n",
      timm_loads(c.model) ? "timm" : "vitrum", use, use, family_of(c.model.config), data);
  if (!pretrained(c)) text += "metrics:\n- accuracy\n";
  if (row && !pretrained(c))
    text += fmt::format(
        "model-index:\n- name: {}\n  results:\n  - task:\n      type: image-classification\n"
        "    dataset:\n      name: {}\n      type: {}\n      split: {}\n    metrics:\n"
        "    - type: accuracy\n      value: {}\n",
        yaml(c.model.architecture), data, data, c.held_out ? "holdout" : "test", row->test_acc);
  return text + "---\n\n";
}

// What masked pretraining says of itself.
std::string masked_facts(const ModelCard& c, const EpochMetrics* row) {
  const ModelConfig& m = c.model.config;
  std::string text = fmt::format(
      "- **Data**: {}: {} images, without their labels\n"
      "- **Input**: {} x {} x {} (channels, height, width)\n"
      "- **Method**: masked autoencoder, {} of the patches not seen; this is the encoder, without "
      "a "
      "head\n",
      data_name(c.recipe.data), c.train_images, m.channels(), m.image_h(), m.image_w(),
      c.recipe.mask_ratio);
  if (row)
    text += fmt::format("- **Loss** on {} other images: {:.4f} after epoch {}\n", c.test_images,
                        row->test_loss, row->epoch);
  return text;
}

std::string facts(const ModelCard& c, const EpochMetrics* row) {
  if (pretrained(c)) return masked_facts(c, row);
  const ModelConfig& m = c.model.config;
  std::vector<std::string> names(
      c.classes.begin(),
      c.classes.begin() + static_cast<ptrdiff_t>(std::min(c.classes.size(), kNamedClasses)));
  if (names.size() < c.classes.size())
    names.push_back(fmt::format("and {} more", c.classes.size() - names.size()));
  const char* held = c.held_out ? "held-out" : "test";
  std::string text = fmt::format(
      "- **Data**: {}: {} training and {} {} images\n- **Classes** ({}): {}\n"
      "- **Input**: {} x {} x {} (channels, height, width)\n",
      data_name(c.recipe.data), c.train_images, c.test_images, held, c.classes.size(),
      join(names, ", "), m.channels(), m.image_h(), m.image_w());
  text += row ? fmt::format(
                    "- **Accuracy**: {:.2f} % of the {} images (top-5 {:.2f} %), loss {:.4f}, "
                    "after epoch {}{}\n",
                    100 * row->test_acc, held, 100 * row->test_top5, row->test_loss, row->epoch,
                    mirrors(c) ? "; of the mean of each image's logits and its mirror image's" : "")
              : std::string("- **Accuracy**: not measured yet\n");
  if (!c.recipe.weights.empty())
    text += fmt::format("- **Started from**: `{}`\n", c.recipe.weights);
  return text;
}

std::string usage(const ModelCard& c) {
  std::string text = "\n## Use\n\nDIR is the directory of this file.\n\n";
  if (pretrained(c))
    text +=
        "    vitrum finetune --weights DIR --data DATA\n"
        "    vitrum embed photo.jpg --model DIR --output features.npy\n"
        "    vitrum pretrain --method mae --weights DIR --data DATA\n"
        "\ndecoder.safetensors is the part that guesses hidden patches: `vitrum convert DIR DIR-hf "
        "--to hf --with-decoder` gives a ViTMAEForPreTraining, without it an encoder.\n";
  else
    text += fmt::format(
        "    vitrum classify photo.jpg --model DIR\n    vitrum eval --model DIR --data {}{}\n",
        c.recipe.data, mirrors(c) ? " --tta flip" : "");
  if (timm_loads(c.model))
    text +=
        "\nWith timm:\n\n```python\nimport timm\n"
        "model = timm.create_model(\"local-dir:DIR\", pretrained=True).eval()\n```\n";
  const char* auto_class = pretrained(c) ? "AutoModel" : "AutoModelForImageClassification";
  if (transformers_loads(c.model))
    text += fmt::format(
        "\nWith transformers, after `vitrum convert DIR DIR-hf --to hf`:\n\n```python\n"
        "from transformers import {0}\nmodel = {0}.from_pretrained(\"DIR-hf\")\n```\n",
        auto_class);
  return text;
}

std::string training(const ModelCard& c) {
  const char* verb = pretrained(c)              ? "pretrain"
                     : c.recipe.teacher         ? "distill"
                     : c.recipe.weights.empty() ? "train"
                                                : "finetune";
  return fmt::format(
      "\n## Training\n\n    vitrum {} --recipe recipe.toml\n\nwith this as `recipe.toml`:\n\n"
      "```toml\n{}```\n",
      verb, to_toml(c.recipe));
}

// The value behind `key` in a line of YAML, without the quotes of a plain string.
std::optional<std::string> yaml_value(std::string_view line, std::string_view key) {
  const size_t at = line.find_first_not_of(" -");
  if (at == line.npos || !line.substr(at).starts_with(key)) return std::nullopt;
  std::string_view value = line.substr(at + key.size());
  value.remove_prefix(std::min(value.find_first_not_of(' '), value.size()));
  if (value.size() >= 2 && value.front() == '"' && value.back() == '"')
    value = value.substr(1, value.size() - 2);
  return std::string(value);
}

}  // namespace

// Line by line: all that is looked for are three keys that follow each other.
std::optional<StatedAccuracy> stated_accuracy(std::string_view text) {
  constexpr std::string_view kFence = "---\n", kIndex = "\nmodel-index:\n";
  if (!text.starts_with(kFence)) return std::nullopt;
  text = text.substr(0, text.find("\n---", kFence.size()));
  const size_t index = text.find(kIndex);
  if (index == text.npos) return std::nullopt;
  StatedAccuracy found;
  std::string section, metric;
  for (text.remove_prefix(index + kIndex.size()); !text.empty();) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (yaml_value(line, "dataset:")) section = "dataset";
    if (yaml_value(line, "metrics:")) section = "metrics";
    if (auto name = yaml_value(line, "name:"); name && section == "dataset") found.data = *name;
    if (auto type = yaml_value(line, "type:"); type && section == "metrics") metric = *type;
    const auto value = yaml_value(line, "value:");
    if (!value || metric != "accuracy") continue;
    const char* end = value->data() + value->size();
    const auto [read, problem] = std::from_chars(value->data(), end, found.accuracy);
    if (problem == std::errc() && read == end && found.accuracy >= 0 && found.accuracy <= 1)
      return found;
  }
  return std::nullopt;
}

std::string to_markdown(const ModelCard& c, const EpochMetrics* row) {
  return front_matter(c, row) +
         fmt::format("# {} on {}\n\n", c.model.architecture, data_name(c.recipe.data)) +
         facts(c, row) + usage(c) + training(c);
}

}  // namespace vitrum
