#pragma once
#include "vitrum/cpu/backend.h"

namespace vitrum::cpu {

// Whether a linear layer has so few rows that its weights are better left as they lie.
bool has_few_rows(const Operands& io);
KernelPtr lower_few_rows(CpuBackend& cpu, const Linear& op, const Operands& io);

}  // namespace vitrum::cpu
