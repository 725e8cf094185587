// Linear layers: what their lowerings share, and what a fused kernel may take over of a backward
// pass.
#pragma once
#include <functional>

#include "vitrum/cuda/host/backend.h"
#include "vitrum/cuda/linear/choose.h"

namespace vitrum::cuda {

inline bool is_bf16(const TensorView& view) { return view.dtype == DType::kBF16; }
inline bool absent(const TensorView& view) { return view.shape.rank() == 0; }

// What linear/choose.h wants to know of a layer. By type and shape: memory is not needed yet.
LinearTask linear_task(const Linear& op, const Operands& io);
// The same when it is there.
LinearTask planned_task(const Linear& op, const Operands& io);
// Of the product dy w for the gradient of a layer's input.
LinearTask input_gradient_task(const Operands& bwd);

// What takes the place of parts of a LinearBwd.
struct LinearParts {
  // A kernel for some rows of d, the gradient behind the activation, from row `first` on.
  using Lower = std::function<KernelPtr(const TensorView& d, int64_t first, std::byte* scratch)>;
  Lower to_d;          // in place of the pass over dy
  Lower to_dx;         // in place of the product for dx
  size_t scratch = 0;  // bytes that either may use while it runs
  TensorView d = {};   // memory for all of d; null: working memory
};
KernelPtr lower(CudaBackend& cuda, const LinearBwd& op, const Operands& io,
                const LinearParts& instead);

}  // namespace vitrum::cuda
