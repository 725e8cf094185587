// Linear layers: cuBLASLt for the products, with the bias in its epilogue and GELU where that is
// the tanh form and nothing is saved; other activations and dropout in one pass of ours over the
// result. Large layers with GELU have a kernel of their own.
#include <algorithm>
#include <cassert>

#include "vitrum/cuda/host/tensor_map.h"
#include "vitrum/cuda/linear/gelu.h"
#include "vitrum/cuda/primitives/activation.cuh"
#include "vitrum/cuda/primitives/column_sums.cuh"

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

class CublasLinear final : public Kernel {
 public:
  CublasLinear(CudaBackend& cuda, const Linear& op, const Operands& io)
      : x_(io.in[Linear::kX]),
        w_(io.in[Linear::kWeight]),
        bias_(operand(io.in, Linear::kBias)),
        y_(io.out[Linear::kY]),
        // The product lands where it is saved for the backward pass, or where the result will be.
        pre_(operand(io.out, Linear::kSaved) ? io.out[Linear::kSaved] : y_),
        stream_(cuda.stream()) {
    const auto& [act, drop, site] = op;
    act_ = act, drop_ = drop_site(operand(io.in, Linear::kRng), drop, site);
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
                          .bias = static_cast<bool>(bias_),
                          .gelu_tanh = fuses_gelu_tanh(planned_task(op, io))};
    if (shape.gelu_tanh) act_ = Act::kNone;
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
  Act act_ = Act::kNone;
  DropSite drop_{};
  cudaStream_t stream_;
  Gemm gemm_;
};

// The gradient behind the activation is as large as the widest tensor of a model. Where that is
// much of all that the card holds, as with everything recomputed, rows are worked off in parts.
int64_t most_scratch(const CudaBackend& cuda) {
  constexpr int64_t kAlways = 64 << 20, kShare = 16;
  return std::max(kAlways, cuda.bytes_held() / kShare);
}

class LinearBwdKernel final : public Kernel {
 public:
  LinearBwdKernel(CudaBackend& cuda, const LinearBwd& op, const Operands& io,
                  const LinearParts& instead)
      : dy_(io.in[LinearBwd::kDy]),
        x_(io.in[LinearBwd::kX]),
        w_(io.in[LinearBwd::kWeight]),
        dx_(io.out[LinearBwd::kDx]),
        dw_(operand(io.out, LinearBwd::kDweight)),
        saved_(operand(io.in, LinearBwd::kSaved)),
        stream_(cuda.stream()) {
    const auto& [act, drop, site] = op;
    const int64_t rows = dy_.shape.rows(), n = w_.shape[0];
    const bool plain = act == Act::kNone && drop == 0;
    narrows_ = dy_.dtype != w_.dtype;  // the gradient of logits that are f32 beside bf16 weights
    assert(plain || !narrows_);
    // Draws of dropout are counted from the first row on.
    const bool divisible = !plain && drop == 0 && !instead.d;
    const int64_t wanted =
        divisible ? divide_up(static_cast<int64_t>(dy_.bytes()), most_scratch(cuda)) : 1;
    const int64_t most =
        std::min(rows, divide_up(divide_up(rows, wanted), kRowsAligned) * kRowsAligned);
    const int64_t last = rows - (divide_up(rows, most) - 1) * most;
    // One block of scratch: the gradient behind the activation, then the partial column sums.
    const size_t bytes = static_cast<size_t>(most * n) * size_of(w_.dtype);
    const bool outside = (plain && !narrows_) || instead.d;
    const size_t own = outside ? 0 : (bytes + 255) / 256 * 256;
    const size_t sums =
        std::max({column_scratch_bytes(most, n), column_scratch_bytes(last, n), instead.scratch});
    auto* scratch = static_cast<std::byte*>(cuda.scratch(own + sums));
    d_ = outside ? dy_ : TensorView{scratch, dy_.shape, w_.dtype};
    if (instead.d) d_ = instead.d;
    partials_ = reinterpret_cast<float*>(scratch + own);
    pre_ = {.d = plain ? nullptr : d_.data,
            .dbias = operand(io.out, LinearBwd::kDbias).f32(),
            .columns = n,
            .dtype = dy_.dtype,
            .act = act,
            // The output of ReLU is positive exactly where it was active and kept: the kernel needs
            // the factor only, no draw.
            .drop = drop_site(operand(io.in, LinearBwd::kRng), drop, site)};
    for (int64_t first = 0; first < rows; first += most)
      parts_.push_back(prepare(cuda, first, std::min(most, rows - first), instead));
  }

  void launch() override {
    for (const Part& part : parts_) {
      pre_.dy = row(dy_, part.first), pre_.saved = row(saved_, part.first), pre_.rows = part.rows;
      if (part.to_d)
        part.to_d->launch();
      else if (pre_.d || pre_.dbias)
        launch_pre_activation(pre_, partials_, stream_);
      if (narrows_) launch_convert(dy_, d_, stream_);
      if (dx_) part.to_dx.launch(d_.data, w_.data, row(dx_, part.first));
      if (dw_) part.to_dw.launch(d_.data, row(x_, part.first), dw_.data);
      // Last: what it leaves in the card's cache is read next.
      if (part.own_dx) part.own_dx->launch();
    }
  }

 private:
  static constexpr int64_t kRowsAligned = 128;  // a part has so many, or a multiple
  struct Part {
    int64_t first, rows;
    Gemm to_dx, to_dw;
    KernelPtr to_d, own_dx;
  };

  static std::byte* row(const TensorView& view, int64_t i) {
    if (!view) return nullptr;
    return static_cast<std::byte*>(view.data) +
           static_cast<size_t>(i * view.shape[-1]) * size_of(view.dtype);
  }

  Part prepare(CudaBackend& cuda, int64_t first, int64_t rows, const LinearParts& instead) const {
    Part part{first, rows, {}, {}, {}, {}};
    const int64_t n = w_.shape[0], k = w_.shape[1];
    const TensorView d{d_.data, {rows, n}, d_.dtype};
    auto* const scratch = reinterpret_cast<std::byte*>(partials_);
    if (instead.to_d) part.to_d = instead.to_d(d, first, scratch);
    if (instead.to_dx) part.own_dx = instead.to_dx(d, first, scratch);
    if (dx_)
      part.to_dx =
          cuda.gemms().prepare({.m = rows, .n = k, .k = n, .in = d_.dtype, .out = dx_.dtype},
                               common_alignment({d_, w_, dx_}));
    if (dw_)
      part.to_dw = cuda.gemms().prepare({.m = n,
                                         .n = k,
                                         .k = rows,
                                         .a_transposed = true,
                                         .in = d_.dtype,
                                         .out = dw_.dtype,
                                         .accumulate = true},
                                        common_alignment({d_, x_, dw_}));
    return part;
  }

  TensorView dy_, x_, w_, dx_, dw_, saved_, d_;
  PreActivation pre_;
  bool narrows_ = false;
  float* partials_ = nullptr;
  cudaStream_t stream_;
  std::vector<Part> parts_;
};

}  // namespace

LinearTask linear_task(const Linear& op, const Operands& io) {
  const auto& [act, drop, site] = op;
  const TensorView &x = io.in[Linear::kX], &w = io.in[Linear::kWeight],
                   bias = operand(io.in, Linear::kBias);
  return {.rows = x.shape.rows(),
          .columns = w.shape[0],
          .depth = w.shape[1],
          .act = act,
          .drop = drop != 0,
          .bf16 = is_bf16(x) && is_bf16(w) && is_bf16(io.out[Linear::kY]) &&
                  (absent(bias) || is_bf16(bias)),
          .saves = !absent(operand(io.out, Linear::kSaved)),
          .frozen = io.packed != nullptr};
}

LinearTask planned_task(const Linear& op, const Operands& io) {
  LinearTask task = linear_task(op, io);
  task.writes = static_cast<bool>(io.out[Linear::kY]);
  task.aligned =
      common_alignment({io.in[Linear::kX], io.in[Linear::kWeight], io.out[Linear::kY],
                        operand(io.out, Linear::kSaved), operand(io.in, Linear::kBias)}) == 16;
  return task;
}

LinearTask input_gradient_task(const Operands& bwd) {
  const TensorView &dy = bwd.in[LinearBwd::kDy], &w = bwd.in[LinearBwd::kWeight];
  return {.rows = dy.shape.rows(),
          .columns = w.shape[1],
          .depth = w.shape[0],
          .bf16 = is_bf16(dy) && is_bf16(w)};
}

static KernelPtr lower_to(LinearKernel kernel, CudaBackend& cuda, const Linear& op,
                          const Operands& io) {
  switch (kernel) {
    case LinearKernel::kSmallM: return lower_small_m(cuda, op, io);
    case LinearKernel::kSmallK: return lower_small_k(cuda, op, io);
    case LinearKernel::kTileGelu: return lower_gelu_tile(cuda, op, io);
    case LinearKernel::kCublas: break;
  }
  return std::make_unique<CublasLinear>(cuda, op, io);
}

KernelPtr lower(CudaBackend& cuda, const Linear& op, const Operands& io) {
  const LinearKernel kernel = choose_linear(cuda.card(), planned_task(op, io));
  return named(name_of(kernel), lower_to(kernel, cuda, op, io));
}

KernelPtr lower(CudaBackend& cuda, const LinearBwd& op, const Operands& io) {
  return lower(cuda, op, io, {});
}

KernelPtr lower(CudaBackend& cuda, const LinearBwd& op, const Operands& io,
                const LinearParts& instead) {
  return std::make_unique<LinearBwdKernel>(cuda, op, io, instead);
}

}  // namespace vitrum::cuda
