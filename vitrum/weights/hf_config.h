// What families share in reading and writing transformers' configs. Internal to weights/.
#pragma once
#include <array>
#include <string>
#include <string_view>

#include "vitrum/weights/json_keys.h"
#include "vitrum/weights/model_config.h"

namespace vitrum {

Act read_hf_act(const JsonKeys& keys);  // hidden_act
const char* hf_act_name(Act act);
// Whether one of `architectures` ends so: "ForImageClassification".
bool is_hf_class(const JsonKeys& keys, std::string_view ending);
inline constexpr std::string_view kOneHead = "ForImageClassification",
                                  kTwoHeads = "ForImageClassificationWithTeacher";

// Pillow's numbers for its filters.
inline constexpr std::array<std::string_view, 6> kPillowFilters = {"nearest", "lanczos", "bilinear",
                                                                   "bicubic", "box",     "hamming"};

struct HfSize {
  int64_t height = 0, width = 0;
  bool shortest = false;  // height is the shorter edge, the aspect ratio is kept
};
// 224, {"height": 224, "width": 224} or {"shortest_edge": 224}.
HfSize read_hf_size(const JsonKeys& keys, const std::string& key, HfSize fallback,
                    bool number_is_shortest);
// (x * factor - mean) / std of bytes x, as (x / 255 - mean') / std'.
void read_hf_normalization(const JsonKeys& keys, int64_t channels, Preprocessing& p);
// The ViT's processor and its relatives: they resize, may crop, and give the model's image size.
void read_hf_preprocessor(const JsonKeys& keys, const ModelConfig& config, Preprocessing& p);
// The same for models whose framework adapts positions to whatever images come: those of the
// preprocessor are the model's, and spec.stored says what the weights are of.
void read_hf_preprocessor_any_size(const JsonKeys& keys, ModelSpec& spec);
// ConvNeXt's processor, which transformers has for ResNets, too.
void read_convnext_preprocessor(const ConfigText& stated, ModelSpec& spec);

}  // namespace vitrum
