// config.json of a model directory, to and from text. Internal to weights/.
#pragma once
#include <array>
#include <string>
#include <string_view>

#include "vitrum/weights/json_keys.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

// `path` is for messages. The text is not trusted: types, ranges, nesting and total size are
// checked.
ModelSpec parse_model_config(const JsonKeys& config);
inline ModelSpec parse_model_config(const std::string& text, const std::string& path) {
  return parse_model_config(JsonKeys(text, path));
}
std::string model_config_text(const ModelSpec& spec);

// ---- transformers' layout ----

struct ConfigText {
  std::string text, path;
};
// Whether config.json is transformers' (it has a model_type) and not timm's.
bool is_hf_config(const JsonKeys& config);
// config.json and preprocessor_config.json ("{}": what transformers has for a ViT without one).
ModelSpec parse_hf_config(const JsonKeys& config, const ConfigText& preprocessor);
std::string hf_config_text(const ModelSpec& spec, const std::string& dtype = "float32");
// A config.json with what compressed-tensors asks for beside weights of eight bits: linear layers
// but `floats`, rows of activations rounded as they come.
std::string with_quantization(const std::string& config, const std::vector<std::string>& floats,
                              DType eight_bits = DType::kI8);
std::string hf_preprocessor_text(const ModelSpec& spec);

// Fails, naming the file, where a model cannot be or is too large to be meant.
void check_config(const ModelConfig& config, const std::string& path);
void check_size(const ModelConfig& config, const std::string& path);

// ---- what reading and writing share ----

// The double that prints as the float does: 1e-06, not 9.999999974752427e-07.
double tidy(float x);
// The preset with these sizes, or "" where there is none.
std::string preset_name(const ModelConfig& config);
// mean and std as the model uses them, one a channel; fails naming `where` on numbers that do not
// fit.
void set_normalization(Preprocessing& p, std::vector<float> mean, std::vector<float> std,
                       int64_t channels, const std::string& where);

inline constexpr std::array<std::string_view, 6> kActNames = {"none", "gelu",       "gelu_tanh",
                                                              "relu", "quick_gelu", "silu"};
inline constexpr std::array<std::string_view, 6> kPoolNames = {
    "token", "mean", "token_and_mean", "normed_mean", "map", "bare_mean"};
inline constexpr std::array<std::string_view, 3> kRopeNames = {"none", "eva", "dinov3"};
inline constexpr std::array<std::string_view, 3> kDistanceBiasNames = {"none", "each", "shared"};
inline constexpr std::array<std::string_view, 2> kPatchOrderNames = {"channel_first",
                                                                     "channel_last"};
inline constexpr std::array<std::string_view, 5> kInitNames = {"timm", "minvit", "notes", "lesson",
                                                               "mnist"};

inline constexpr IntRange kSides{1, 1 << 14}, kWidths{1, 1 << 16}, kDepths{0, 1024},
    kClasses{0, 10'000'000}, kPatchCounts{0, 1 << 16};

}  // namespace vitrum
