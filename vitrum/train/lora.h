// Low-rank adapters around training: which parameters learn, and how a trained model is written.
#pragma once
#include <string>
#include <vector>

#include "vitrum/train/recipe.h"
#include "vitrum/weights/model_dir.h"

namespace vitrum {

// What linear() is told; rank 0 where the recipe has none.
LoraSpec lora_of(const Recipe& recipe);

// Of a traced model with adapters: only they and the head learn. Fails, naming it, where a target
// fits no layer.
void freeze_all_but_adapters(std::vector<ParamSpec>& params, const ModelSpec& model);

// The plain model, every adapter added to the weight it stands beside; and the adapters apart, as
// peft reads them, in dir/adapter.
void save_adapted_model(const std::string& dir, const ModelSpec& model, ParamStore& store,
                        Arena which);

}  // namespace vitrum
