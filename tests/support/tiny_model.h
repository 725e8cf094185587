// A model directory with a ViT of two blocks for RGB images of 32 x 32 pixels, random weights.
#pragma once
#include <string>

#include "vitrum/weights/model_dir.h"

namespace vitrum::test {

ModelSpec tiny_rgb_model();  // seven classes with labels, timm's preprocessing with a crop
// Parameters of `dtype` in the file: f32, or bf16.
void write_tiny_model(const std::string& dir, const ModelSpec& spec, DType dtype = DType::kF32);

}  // namespace vitrum::test
