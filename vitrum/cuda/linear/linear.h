// Linear layers: what their lowerings share, and what a fused kernel may take over of a backward
// pass.
#pragma once
#include <functional>

#include "vitrum/cuda/host/backend.h"

namespace vitrum::cuda {

// Whether it is of bf16 and without dropout, and nothing but its result is wanted, on a card with
// TMA and WGMMA. By type and shape: memory is not needed yet.
bool is_plain_bf16(const CudaBackend& cuda, const Linear& op, const Operands& io);
inline bool is_bf16(const TensorView& view) { return view.dtype == DType::kBF16; }
inline bool absent(const TensorView& view) { return view.shape.rank() == 0; }
// Whether so many tiles, each of a cluster's, leave few processors idle in the last round.
bool fills(const CudaBackend& cuda, int64_t tiles, int cluster);

// What takes the place of parts of a LinearBwd.
struct LinearParts {
  // A kernel for some rows of d, the gradient behind the activation, from row `first` on.
  using Lower = std::function<KernelPtr(const TensorView& d, int64_t first, std::byte* scratch)>;
  Lower to_d;          // in place of the pass over dy
  Lower to_dx;         // in place of the product for dx
  size_t scratch = 0;  // bytes that either may use while it runs
};
KernelPtr lower(CudaBackend& cuda, const LinearBwd& op, const Operands& io,
                const LinearParts& instead);

}  // namespace vitrum::cuda
