// Rotary positions, for kernels that turn what they have in hand.
#pragma once
#include "vitrum/cuda/attention/rotate.cuh"

namespace vitrum::cuda {

Rotation rotation_of(const Rotate& op, const Operands& io);

}  // namespace vitrum::cuda
