// What Swin and Swin V2 are both made of. Internal to models/.
#pragma once
#include "vitrum/models/swin.h"

namespace vitrum {

Value swin_embed(Scope s, Value image, const SwinConfig& cfg);  // (B, C, H, W) -> (B, N, width)
// Four neighbours side by side: (B, N, C) -> (B, N / 4, 4C). Their order is timm's: columns first;
// an odd row or column is filled up with zeros.
Value swin_neighbours(Scope s, Value x, int64_t grid_h, int64_t grid_w);
// (B, N, C) -> (B * windows, tokens, C) and back; nothing to do where one window has all.
Value to_windows(Scope s, Value x, const SwinWindows& w);
Value from_windows(Scope s, Value x, const SwinWindows& w);
Value swin_mlp(Scope s, Value x, const SwinConfig& cfg);
// The mask that the blocks of a stage that shift share; absent where none does.
Value swin_mask(Scope s, const SwinWindows& odd, int64_t depth);

}  // namespace vitrum
