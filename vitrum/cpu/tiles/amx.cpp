// Tiles of bf16 multiplied by AMX.
#define VITRUM_AMX_DOT(sums, left, right) _tile_dpbf16ps(sums, left, right)
#include "vitrum/cpu/tiles/amx_block.h"

namespace vitrum::cpu {

constinit const TileUnit kTilesAmx = {.name = "amx", .multiply = multiply<Amx, float>};

}  // namespace vitrum::cpu
