// Bytes multiplied by AMX.
#define VITRUM_AMX_DOT(sums, left, right) _tile_dpbusd(sums, left, right)
#include "vitrum/cpu/tiles/amx_block.h"

namespace vitrum::cpu {

constinit const ByteUnit kBytesAmx = {.name = "amx", .multiply = multiply<Amx, int32_t>};

}  // namespace vitrum::cpu
