// Configs of models of images and texts: transformers' CLIPModel and SiglipModel, and OpenCLIP's.
#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "vitrum/core/error.h"
#include "vitrum/core/files.h"
#include "vitrum/models/registry.h"
#include "vitrum/text/tokenizer.h"
#include "vitrum/weights/family.h"
#include "vitrum/weights/hf_config.h"
#include "vitrum/weights/open_clip.h"
#include "vitrum/weights/tower_pair.h"

namespace vitrum {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxConfig = 16 << 20;  // bytes
// Where transformers' text_config has this end mark, the largest number of a text is its end.
constexpr int64_t kLargestEnds = 2;

std::string dumped(const Json& json) {
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

int64_t mark(const JsonKeys& keys, const char* name, int64_t fallback) {
  return keys.is_number(name) ? keys.integer(name, -1, {-1, 4 << 20}) : fallback;
}

// As Python's int(width * ratio) gives it back.
double mlp_ratio(int64_t width, int64_t hidden) {
  double ratio = static_cast<double>(hidden) / static_cast<double>(width);
  while (static_cast<int64_t>(static_cast<double>(width) * ratio) < hidden)
    ratio = std::nextafter(ratio, HUGE_VAL);
  return ratio;
}

[[noreturn]] void no_such_open_clip(const std::string& what) {
  fail_input("OpenCLIP has no model {}; --image-only writes the image tower alone", what);
}

void write_act(Json& tower, Act act) {
  if (act == Act::kGeluTanh) tower["act_kwargs"] = {{"approximate", "tanh"}};
}

void write_eps(Json& tower, float eps) {
  if (eps != 1e-5f) tower["norm_kwargs"] = {{"eps", tidy(eps)}};
}

Json side(int64_t height, int64_t width) {
  return height == width ? Json(height) : Json{height, width};
}

Json own_tower(const ViTConfig& c) {
  Json v = {{"image_size", side(c.image_h, c.image_w)},
            {"layers", c.depth},
            {"width", c.width},
            {"head_width", c.width / c.heads},
            {"patch_size", side(c.patch_h, c.patch_w)}};
  if (c.mlp_width != 4 * c.width) v["mlp_ratio"] = mlp_ratio(c.width, c.mlp_width);
  write_act(v, c.act), write_eps(v, c.eps);
  return v;
}

Json timm_tower(const ViTConfig& c) {
  const std::string preset = preset_name(ModelConfig(c));
  if (preset.empty())
    no_such_open_clip("whose image tower pools by attention or means and has no name of timm's");
  return {{"image_size", side(c.image_h, c.image_w)},
          {"timm_model_name", preset},
          {"timm_model_pretrained", false},
          {"timm_pool", c.pool == ViTPool::kMap ? "map" : "avg"},
          {"timm_proj", "none"}};
}

Json text_tower(const TextSpec& spec, const TextMarks& marks) {
  const TextConfig& c = spec.config;
  Json t = {{"context_length", c.context},
            {"vocab_size", c.vocabulary},
            {"width", c.width},
            {"heads", c.heads},
            {"layers", c.depth}};
  if (c.mlp_width != 4 * c.width) t["mlp_ratio"] = mlp_ratio(c.width, c.mlp_width);
  write_act(t, c.act), write_eps(t, c.eps);
  if (!c.causal) t["no_causal_mask"] = true, t["pool_type"] = "last";
  if (c.causal && marks.end != c.vocabulary - 1 && marks.end != kLargestEnds)
    t["pool_type"] = "eos", t["eos_id"] = marks.end;
  if (c.proj_bias) t["proj_bias"] = true;
  return t;
}

Json preprocessing(const ModelSpec& image) {
  const Preprocessing& p = image.preprocess;
  const bool center = p.crop_mode == "center";
  const bool crops = p.resize > 0 ? p.resize != p.height : p.crop_pct != 1;
  if ((!center && p.crop_mode != "squash") || crops)
    no_such_open_clip("that is shown photos with a border, or cropped further than to a square");
  const auto list = [&](const std::vector<float>& values, double fallback) {
    Json all = Json::array();
    for (size_t i = 0; i < 3; ++i)
      all.push_back(values.empty() ? fallback : tidy(values[i % values.size()]));
    return all;
  };
  return {{"mean", list(p.mean, 0)},
          {"std", list(p.std, 1)},
          {"interpolation", p.interpolation},
          {"resize_mode", center ? "shortest" : "squash"}};
}

}  // namespace

TextMarks text_marks(const std::string& model) {
  const TextSpec spec = resolve_text_tower(model);
  if (!spec.from_open_clip) {
    const std::string path = model + "/config.json";
    const JsonKeys t = JsonKeys(read_file(path, kMaxConfig), path).object("text_config");
    // CLIP's class has the end mark of OpenAI's vocabulary where nothing is said.
    constexpr int64_t kOpenAi = 49407;
    return {mark(t, "bos_token_id", -1), mark(t, "eos_token_id", spec.sigmoid ? -1 : kOpenAi),
            mark(t, "pad_token_id", -1)};
  }
  if (tokenizer_files(model).empty()) return {-1, spec.config.vocabulary - 1, -1};
  const Framing framing = open_tokenizer(model)->framing();
  return {framing.before.empty() ? -1 : framing.before.front(), framing.end, framing.pad};
}

std::string hf_pair_config_text(const std::string& vision, const TextSpec& text,
                                const TextMarks& marks, const std::string& dtype) {
  const TextConfig& c = text.config;
  Json image = Json::parse(vision);
  const std::string tower = image["model_type"];  // "siglip2_vision_model"
  const std::string pair = tower.substr(0, tower.find('_'));
  const char* model = pair == "clip"      ? "CLIPModel"
                      : pair == "siglip2" ? "Siglip2Model"
                                          : "SiglipModel";
  image.erase("architectures"), image.erase("dtype");
  Json words = {{"attention_dropout", 0.0},
                {"hidden_act", hf_act_name(c.act)},
                {"hidden_size", c.width},
                {"intermediate_size", c.mlp_width},
                {"layer_norm_eps", tidy(c.eps)},
                {"max_position_embeddings", c.context},
                {"model_type", pair + "_text_model"},
                {"num_attention_heads", c.heads},
                {"num_hidden_layers", c.depth},
                {"vocab_size", c.vocabulary},
                {text.sigmoid ? "projection_size" : "projection_dim", c.space}};
  if (marks.begin >= 0) words["bos_token_id"] = marks.begin;
  if (marks.end >= 0) words["eos_token_id"] = marks.end;
  if (marks.pad >= 0) words["pad_token_id"] = marks.pad;
  Json json = {{"architectures", {model}}, {"dtype", dtype}, {"model_type", pair}};
  if (!text.sigmoid) json["projection_dim"] = c.space;
  json["text_config"] = std::move(words), json["vision_config"] = std::move(image);
  return dumped(json);
}

std::string open_clip_config_text(const ModelSpec& image, const TextSpec& text,
                                  const TextMarks& marks, bool tokenizer) {
  const auto& c = *image.config.as<ViTConfig>();
  const bool timm = find_dialect(image.config, "original").prefix == "visual.trunk.";
  const bool quick = text.config.act == Act::kQuickGelu;
  // One switch is for both towers, but for timm's.
  if (!timm && (c.act == Act::kQuickGelu) != quick)
    no_such_open_clip("with QuickGELU in one tower only");
  for (const Act act : {text.config.act, c.act})
    if (act != Act::kGelu && act != Act::kGeluTanh && act != Act::kQuickGelu)
      no_such_open_clip(fmt::format("with {}", kActNames[static_cast<size_t>(act)]));
  if (c.channels != 3) no_such_open_clip(fmt::format("of {} channels", c.channels));
  Json model = {{"embed_dim", text.config.space}};
  if (quick) model["quick_gelu"] = true;
  if (text.sigmoid) model["init_logit_bias"] = tidy(text.bias);
  if (timm) model["custom_text"] = true;
  model["vision_cfg"] = timm ? timm_tower(c) : own_tower(c);
  Json& words = model["text_cfg"] = text_tower(text, marks);
  // Its own tokenizer is OpenAI's; where another is meant, a name says so, and of a local directory
  // the files are read.
  constexpr int64_t kOpenAiWords = 49408;
  if (tokenizer && text.config.vocabulary != kOpenAiWords) words["hf_tokenizer_name"] = ".";
  if (text.canonical) words["tokenizer_kwargs"] = {{"clean", "canonicalize"}};
  return dumped({{"model_cfg", model}, {"preprocess_cfg", preprocessing(image)}});
}

}  // namespace vitrum
