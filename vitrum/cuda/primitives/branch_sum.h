// The end of a residual branch in one pass.
#pragma once
#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {

// y = skip + the branch, scaled by channel (gamma may be absent) and dropped by sample.
struct BranchSum {
  TensorView branch, skip, y, gamma;
  DropSite drop = {};
};
KernelPtr lower_branch_sum(CudaBackend& cuda, const BranchSum& sum);

}  // namespace vitrum::cuda
