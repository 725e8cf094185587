// Model directories of OpenCLIP: open_clip_config.json, and both towers in one file.
#pragma once
#include <memory>
#include <string>

#include "vitrum/models/text.h"
#include "vitrum/weights/dialect.h"
#include "vitrum/weights/json_keys.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

// Whether such a config is there; timm's and transformers' may be beside it.
bool has_open_clip_config(const std::string& dir);

// The image tower. Nothing in the config is trusted; what is wrong is an error that names the key.
ModelSpec parse_open_clip(const JsonKeys& config);
ModelSpec read_open_clip(const std::string& dir);

struct OpenClipText {
  TextConfig config;
  bool canonical = false;  // texts lose their punctuation before they are cut into tokens
};
OpenClipText parse_open_clip_text(const JsonKeys& config);
OpenClipText read_open_clip_text(const std::string& dir);

// Where both towers are; fails where they are not.
std::string open_clip_weights(const std::string& dir);
// How the text tower's tensors are called in that file.
Naming open_clip_text_naming(const TensorSource& file, const TextConfig& config);
// How they are written: beside a tower of timm's they have a prefix.
Naming open_clip_text_naming(const TextConfig& config, bool beside_timm);
// The text of open_clip_config.json.
std::string open_clip_config(const std::string& dir);

}  // namespace vitrum
