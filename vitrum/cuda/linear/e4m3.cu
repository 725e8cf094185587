// Layers of e4m3: their weights on the card, which kernel computes them, and their neighbours.
#include <algorithm>
#include <cassert>
#include <optional>

#include "vitrum/core/e4m3.h"
#include "vitrum/cuda/attention/attention.cuh"
#include "vitrum/cuda/linear/e4m3_launch.cuh"
#include "vitrum/cuda/norm/layer_norm.cuh"

namespace vitrum::cuda {
namespace {

using namespace e4m3;

LinearTask task_of(const Operands& io) {
  const TensorView &x = io.in[QLinear::kX], &w = io.in[QLinear::kWeight];
  return {.rows = x.shape.rows(), .columns = w.shape[0], .depth = w.shape[1]};
}

// A layer as it is launched, and memory that it has beside the store's.
struct Layer {
  Buffer rounded, scales;
  Product product;
  E4M3Kernel kernel = E4M3Kernel::kNone;
  int splits = 1;
};

__global__ void __launch_bounds__(256) widen(const bf16* from, float* to, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * 256 + threadIdx.x;
  if (i < count) to[i] = to_float(from[i]);
}

// Weights that come as floats, which those of a store of files never do.
std::vector<float> floats_of(CudaBackend& cuda, const TensorView& w) {
  std::vector<float> values(static_cast<size_t>(w.shape.numel()));
  if (w.dtype == DType::kF32) {
    cuda.download(values.data(), w);
    return values;
  }
  std::vector<uint16_t> narrow(values.size());
  cuda.download(narrow.data(), w);
  std::ranges::transform(narrow, values.begin(), from_bf16);
  return values;
}

std::shared_ptr<Layer> prepare(CudaBackend& cuda, const QLinear& op, const Operands& io) {
  const auto& [act, scale] = op;
  const LinearTask task = task_of(io);
  auto layer = std::make_shared<Layer>();
  layer->kernel = choose_e4m3(cuda.card(), task);
  assert(layer->kernel != E4M3Kernel::kNone);
  if (layer->kernel == E4M3Kernel::kSmallM)
    layer->splits = plan_small_m_e4m3(cuda.card(), task).splits;
  TensorView w = io.in[QLinear::kWeight];
  std::vector<float> scales;
  if (w.dtype == DType::kE4M3) {
    const std::span<const float> stored = io.packed->scales(w.data);
    scales.assign(stored.begin(), stored.end());
  } else {
    const std::vector<float> values = floats_of(cuda, w);
    std::vector<uint8_t> bytes(values.size());
    const auto width = static_cast<size_t>(task.depth);
    for (size_t i = 0; i < values.size(); i += width)
      scales.push_back(round_weights_e4m3(std::span(values).subspan(i, width), &bytes[i]));
    layer->rounded = to_card(cuda, bytes);
    w = {layer->rounded.data(), w.shape, DType::kE4M3};
  }
  for (float& s : scales) s *= scale;
  layer->scales = to_card(cuda, scales);
  layer->product = {.x = io.in[QLinear::kX],
                    .w = w,
                    .scale = reinterpret_cast<const float*>(layer->scales.data()),
                    .bias = operand(io.in, QLinear::kBias).f32()};
  // A kernel may look at weights before it waits for anything.
  check(cudaStreamSynchronize(cuda.stream()), "sending weights");
  return layer;
}

template <class End>
KernelPtr multiply(CudaBackend& cuda, std::shared_ptr<Layer> layer, const End& end) {
  std::shared_ptr<Kernel> product = layer->kernel == E4M3Kernel::kSmallM
                                        ? launch_few(cuda, layer->product, layer->splits, end)
                                        : launch_tiles(cuda, layer->product, end);
  return make_kernel([layer, product] { product->launch(); });
}

KernelPtr multiply_to_e4m3(CudaBackend& cuda, const QLinear& op, const Operands& io,
                           const TensorView& y, float y_scale) {
  const auto& [act, scale] = op;
  std::shared_ptr<Layer> layer = prepare(cuda, op, io);
  const auto end = [&](auto kind) -> KernelPtr {
    constexpr Act kAct = decltype(kind)::value;
    return multiply(
        cuda, layer,
        ActToE4M3<kAct>{
            .y = y.e4m3(), .columns = static_cast<int>(y.shape[-1]), .inverse = 1 / y_scale});
  };
  if (act == Act::kGeluTanh) return end(std::integral_constant<Act, Act::kGeluTanh>{});
  if (act == Act::kQuickGelu) return end(std::integral_constant<Act, Act::kQuickGelu>{});
  return end(std::integral_constant<Act, Act::kGelu>{});
}

// ---- neighbours ----

template <class T>
const T* op_at(std::span<const ChainNode> chain, size_t i) {
  return i < chain.size() ? std::get_if<T>(chain[i].op) : nullptr;
}

// Which node of a chain is what.
struct Found {
  std::optional<size_t> layer, scale, norm, attention, rounded;
  size_t count = 0;
};

// Whether node i reads nothing but this result of the one before it, as this operand.
bool follows(std::span<const ChainNode> chain, size_t i, size_t result, size_t operand) {
  return chain[i].only && chain[i].result == result && chain[i].operand == operand;
}

// A norm of rows that are read once, whose statistics nobody wants.
bool is_plain_norm(const TensorView& x, const Operands& io, size_t mean, size_t rstd) {
  return is_bf16(x) && row_fits(x.shape[-1], x.dtype) && x.shape.rows() < INT32_MAX &&
         absent(operand(io.out, mean)) && absent(operand(io.out, rstd));
}
bool is_plain_norm(std::span<const ChainNode> chain, size_t i) {
  if (i >= chain.size()) return false;
  const Operands& io = chain[i].io;
  if (op_at<LayerNorm>(chain, i))
    return is_plain_norm(io.in[LayerNorm::kX], io, LayerNorm::kMean, LayerNorm::kRstd);
  return op_at<AddLayerNorm>(chain, i) && is_bf16(io.in[AddLayerNorm::kB]) &&
         is_plain_norm(io.in[AddLayerNorm::kA], io, AddLayerNorm::kMean, AddLayerNorm::kRstd);
}

AttentionTask attention_task(const Attention& op, const Operands& io) {
  const auto& [heads, drop, site] = op;
  const TensorView& qkv = io.in[Attention::kQkv];
  return {.images = qkv.shape[0],
          .tokens = qkv.shape[1],
          .heads = heads,
          .size = qkv.shape[2] / 3 / heads,
          .dtype = qkv.dtype,
          .drop = drop != 0,
          .bias = !absent(operand(io.in, Attention::kBias)),
          .mask = !absent(operand(io.in, Attention::kMask))};
}

Found find(const CudaBackend& cuda, std::span<const ChainNode> chain) {
  Found found;
  if (!cuda.card().has_tma_wgmma || chain.size() < 2) return {};
  size_t i = 0, result = 0;
  if (const auto* layer = op_at<QLinear>(chain, 0)) {
    const auto& [act, scale] = *layer;
    if (scale == 0 || !is_bf16(chain[0].io.out[QLinear::kY])) return {};
    found.layer = i++;
    if (act != Act::kNone) {
      const auto* rounding = op_at<ToE4M3>(chain, i);
      if (!leaves_e4m3(act) || !rounding) return {};
      if (act == Act::kGelu && !gelu_fits_f16(1 / rounding->scale)) return {};
    } else {
      if (op_at<ChannelScale>(chain, i) && follows(chain, i, 0, ChannelScale::kX))
        found.scale = i++;
      if (!op_at<AddLayerNorm>(chain, i) || !follows(chain, i, 0, AddLayerNorm::kB) ||
          !is_plain_norm(chain, i) || absent(chain[i].io.out[AddLayerNorm::kSum]))
        return {};
      result = AddLayerNorm::kY, found.norm = i++;
    }
  } else if (is_plain_norm(chain, 0)) {
    result = op_at<LayerNorm>(chain, 0) ? int{LayerNorm::kY} : int{AddLayerNorm::kY};
    found.norm = i++;
  } else if (const auto* attention = op_at<Attention>(chain, 0)) {
    const AttentionTask task = attention_task(*attention, chain[0].io);
    if (!absent(operand(chain[0].io.out, Attention::kLse)) || task.size != 64 ||
        choose_attention(cuda.card(), task).kernel != AttentionKernel::kSmem)
      return {};
    found.attention = i++;
  } else {
    return {};
  }
  if (op_at<ToE4M3>(chain, i) && follows(chain, i, result, ToE4M3::kX)) found.rounded = i++;
  // A layer and the sum behind it are worth it by themselves; a norm is not.
  if (!found.rounded && !(found.layer && found.norm)) return {};
  found.count = i;
  return found;
}

// The norm of what `io` says, to e4m3 where it is rounded.
template <class Op>
KernelPtr normalise(CudaBackend& cuda, const Op& op, const Operands& io,
                    std::span<const ChainNode> joined, const Found& found) {
  if (!found.rounded) return lower(cuda, op, io);
  const auto& [scale] = std::get<ToE4M3>(*joined[*found.rounded].op);
  return lower_norm_e4m3(cuda, op, io, joined[*found.rounded].io.out[ToE4M3::kY], scale);
}

KernelPtr multiply_and_add(CudaBackend& cuda, std::span<const ChainNode> joined,
                           const Found& found) {
  const auto& norm = std::get<AddLayerNorm>(*joined[*found.norm].op);
  const auto& [eps] = norm;
  const Operands& io = joined[*found.norm].io;
  const TensorView& sum = io.out[AddLayerNorm::kSum];
  const ToSum end{
      .skip = static_cast<const bf16*>(io.in[AddLayerNorm::kA].data),
      .sum = static_cast<bf16*>(sum.data),
      .gamma = found.scale ? joined[*found.scale].io.in[ChannelScale::kGamma].f32() : nullptr,
      .rows = static_cast<int>(sum.shape.rows()),
      .columns = static_cast<int>(sum.shape[-1])};
  std::shared_ptr<Kernel> add_up =
      multiply(cuda, prepare(cuda, std::get<QLinear>(*joined[0].op), joined[0].io), end);
  if (absent(operand(io.out, AddLayerNorm::kY))) return make_kernel([add_up] { add_up->launch(); });
  const Operands of_sum{
      .in = {sum, io.in[AddLayerNorm::kWeight], operand(io.in, AddLayerNorm::kBias)},
      .out = {operand(io.out, AddLayerNorm::kY)}};
  std::shared_ptr<Kernel> norm_kernel =
      normalise(cuda, LayerNorm{.eps = eps}, of_sum, joined, found);
  return make_kernel([add_up, norm_kernel] { add_up->launch(), norm_kernel->launch(); });
}

}  // namespace

KernelPtr lower_e4m3(CudaBackend& cuda, const QLinear& op, const Operands& io) {
  const auto& [act, scale] = op;
  const TensorView& wanted = io.out[QLinear::kY];
  // What is handed out is f32: the product of a layer is not, and is widened.
  const auto count = wanted.shape.numel();
  const TensorView y = is_bf16(wanted)
                           ? wanted
                           : TensorView{cuda.scratch_of<bf16>(count), wanted.shape, DType::kBF16};
  const std::shared_ptr<Layer> layer = prepare(cuda, op, io);
  const std::string_view name = name_of(layer->kernel);
  std::shared_ptr<Kernel> product =
      multiply(cuda, layer,
               ToRows{.y = static_cast<bf16*>(y.data), .columns = static_cast<int>(y.shape[-1])});
  return named(name, make_kernel([=, act = act, stream = cuda.stream()] {
                 product->launch();
                 if (act != Act::kNone)
                   launch_activation(y.data, y.data, count, y.dtype, act, {}, stream);
                 if (y.data != wanted.data)
                   widen<<<blocks_for(count, 256), 256, 0, stream>>>(
                       static_cast<const bf16*>(y.data), wanted.f32(), count);
               }));
}

size_t joins_e4m3(const CudaBackend& cuda, std::span<const ChainNode> chain) {
  return std::max<size_t>(find(cuda, chain).count, 1);
}

KernelPtr lower_joined_e4m3(CudaBackend& cuda, std::span<const ChainNode> joined) {
  const Found found = find(cuda, joined);
  assert(found.count == joined.size());
  if (found.layer && found.norm)
    return named("e4m3, residual", multiply_and_add(cuda, joined, found));
  const Operands& first = joined[0].io;
  const auto& [scale] = std::get<ToE4M3>(*joined[*found.rounded].op);
  const TensorView& y = joined[*found.rounded].io.out[ToE4M3::kY];
  if (found.layer)
    return named("e4m3, to e4m3",
                 multiply_to_e4m3(cuda, std::get<QLinear>(*joined[0].op), first, y, scale));
  if (found.attention)
    return named("smem, to e4m3",
                 lower_attention_e4m3(cuda, std::get<Attention>(*joined[0].op), first, y, scale));
  if (const auto* norm = op_at<LayerNorm>(joined, 0))
    return named("norm to e4m3", normalise(cuda, *norm, first, joined, found));
  return named("norm to e4m3",
               normalise(cuda, std::get<AddLayerNorm>(*joined[0].op), first, joined, found));
}

}  // namespace vitrum::cuda
