// Linear layers: cuBLASLt for the products, with the bias in its epilogue; activation and dropout
// in one pass of ours over the result (cuBLASLt's GELU is the tanh form only).
#include <cassert>

#include "vitrum/cuda/activate.cuh"
#include "vitrum/cuda/columns.cuh"
#include "vitrum/cuda/device.cuh"

namespace vitrum::cuda {
namespace {

__global__ void __launch_bounds__(256) convert(Mixed from, Mixed to, int64_t count) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x;
  if (i < count) to.store(i, from.load(i));
}
void launch_convert(const TensorView& from, const TensorView& to, cudaStream_t stream) {
  const int64_t count = from.shape.numel();
  convert<<<blocks_for(count, 256), 256, 0, stream>>>(mixed(from), mixed(to), count);
}

class LinearKernel final : public Kernel {
 public:
  LinearKernel(CudaBackend& cuda, const Linear& op, const Operands& io)
      : x_(io.in[0]),
        w_(io.in[1]),
        bias_(operand(io.in, 2)),
        y_(io.out[0]),
        // The product lands where it is saved for the backward pass, or where the result will be.
        pre_(operand(io.out, 1) ? io.out[1] : y_),
        act_(op.act),
        drop_(drop_site(operand(io.in, 3), op.drop, op.site)),
        stream_(cuda.stream()) {
    // Features that are handed out are f32 also where weights are not: then so is their product.
    if (x_.dtype != w_.dtype)
      laid_ = {cuda.scratch(static_cast<size_t>(w_.shape.numel()) * size_of(x_.dtype)), w_.shape,
               x_.dtype};
    const TensorView w = laid_ ? laid_ : w_;
    const GemmShape shape{.m = x_.shape.rows(),
                          .n = w_.shape[0],
                          .k = w_.shape[1],
                          .b_transposed = true,
                          .in = x_.dtype,
                          .out = pre_.dtype,
                          .bias = static_cast<bool>(bias_)};
    gemm_ = cuda.gemms().prepare(shape, common_alignment({x_, w, pre_, bias_}));
  }

  void launch() override {
    if (laid_) launch_convert(w_, laid_, stream_);
    gemm_.launch(x_.data, laid_ ? laid_.data : w_.data, pre_.data, bias_.data);
    if (y_ && (act_ != Act::kNone || drop_.rng || pre_.data != y_.data))
      launch_activation(pre_.data, y_.data, y_.shape.numel(), y_.dtype, act_, drop_, stream_);
  }

 private:
  TensorView x_, w_, bias_, y_, pre_, laid_;
  Act act_;
  DropSite drop_;
  cudaStream_t stream_;
  Gemm gemm_;
};

class LinearBwdKernel final : public Kernel {
 public:
  LinearBwdKernel(CudaBackend& cuda, const LinearBwd& op, const Operands& io)
      : dy_(io.in[0]),
        x_(io.in[1]),
        w_(io.in[2]),
        dx_(io.out[0]),
        dw_(operand(io.out, 1)),
        dbias_(operand(io.out, 2)),
        stream_(cuda.stream()) {
    const int64_t rows = dy_.shape.rows(), n = w_.shape[0], k = w_.shape[1];
    const bool plain = op.act == Act::kNone && op.drop == 0;
    narrows_ = dy_.dtype != w_.dtype;  // the gradient of logits that are f32 beside bf16 weights
    assert(plain || !narrows_);
    // One block of scratch: the gradient behind the activation, then the partial column sums.
    const size_t own = plain && !narrows_ ? 0 : (dy_.bytes() + 255) / 256 * 256;
    auto* scratch = static_cast<std::byte*>(cuda.scratch(own + column_scratch_bytes(rows, n)));
    d_ = own == 0 ? dy_ : TensorView{scratch, dy_.shape, w_.dtype};
    partials_ = reinterpret_cast<float*>(scratch + own);
    pre_ = {.dy = dy_.data,
            .saved = operand(io.in, 3).data,
            .d = plain ? nullptr : d_.data,
            .dbias = dbias_.f32(),
            .rows = rows,
            .columns = n,
            .dtype = dy_.dtype,
            .act = op.act,
            // The output of ReLU is positive exactly where it was active and kept: the kernel needs
            // the factor only, no draw.
            .drop = drop_site(operand(io.in, 4), op.drop, op.site)};
    if (dx_)
      to_dx_ = cuda.gemms().prepare({.m = rows, .n = k, .k = n, .in = d_.dtype, .out = dx_.dtype},
                                    common_alignment({d_, w_, dx_}));
    if (dw_)
      to_dw_ = cuda.gemms().prepare({.m = n,
                                     .n = k,
                                     .k = rows,
                                     .a_transposed = true,
                                     .in = d_.dtype,
                                     .out = dw_.dtype,
                                     .accumulate = true},
                                    common_alignment({d_, x_, dw_}));
  }

  void launch() override {
    if (pre_.d || pre_.dbias) launch_pre_activation(pre_, partials_, stream_);
    if (narrows_) launch_convert(dy_, d_, stream_);
    if (dx_) to_dx_.launch(d_.data, w_.data, dx_.data);
    if (dw_) to_dw_.launch(d_.data, x_.data, dw_.data);
  }

 private:
  TensorView dy_, x_, w_, dx_, dw_, dbias_, d_;
  PreActivation pre_;
  bool narrows_ = false;
  float* partials_ = nullptr;
  cudaStream_t stream_;
  Gemm to_dx_, to_dw_;
};

}  // namespace

KernelPtr lower(CudaBackend& cuda, const Linear& op, const Operands& io) {
  return std::make_unique<LinearKernel>(cuda, op, io);
}

KernelPtr lower(CudaBackend& cuda, const LinearBwd& op, const Operands& io) {
  return std::make_unique<LinearBwdKernel>(cuda, op, io);
}

}  // namespace vitrum::cuda
