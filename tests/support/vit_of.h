// The config of a model that a test knows to be a ViT.
#pragma once
#include "vitrum/models/registry.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

inline ViTConfig& vit_of(ModelSpec& spec) { return *spec.config.as<ViTConfig>(); }
inline const ViTConfig& vit_of(const ModelSpec& spec) { return *spec.config.as<ViTConfig>(); }
inline const ViTConfig& vit_of(const Preset& preset) { return *preset.config.as<ViTConfig>(); }

}  // namespace vitrum
