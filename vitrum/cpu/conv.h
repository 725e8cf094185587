#pragma once
#include "vitrum/cpu/backend.h"

namespace vitrum::cpu {

// For windows of one pixel, without padding.
KernelPtr lower_pixels(CpuBackend& cpu, const Conv2dBwd& op, const Operands& io);

}  // namespace vitrum::cpu
