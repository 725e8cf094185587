// What configs of Swin and Swin V2 have in common, in timm's and transformers' words.
#pragma once
#include "vitrum/models/swin.h"
#include "vitrum/weights/json_keys.h"

namespace vitrum {

// timm's model_args; `top` is the config around them.
void read_swin_timm(const JsonKeys& top, const JsonKeys& args, SwinConfig& c);
void read_swin_hf(const JsonKeys& keys, SwinConfig& c);

}  // namespace vitrum
