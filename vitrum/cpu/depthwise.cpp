// Convolution of every channel with a window of its own.
#include "vitrum/cpu/simd/depthwise.h"

#include "vitrum/cpu/backend.h"

namespace vitrum::cpu {
namespace {

// (channels, places) -> (places, channels), which is how sixteen channels are loaded at once; with
// `turned`, the window is turned round by half.
void pack(const float* w, int64_t channels, int64_t places, bool turned, float* to) {
  for (int64_t p = 0; p < places; ++p)
    for (int64_t c = 0; c < channels; ++c)
      to[p * channels + c] = w[c * places + (turned ? places - 1 - p : p)];
}

DepthwiseArgs args_of(const TensorView& x, const TensorView& y, int64_t kernel, int64_t padding) {
  return {.x = floats(x),
          .y = floats(y),
          .w = nullptr,
          .bias = nullptr,
          .height = x.shape[1],
          .width = x.shape[2],
          .down = y.shape[1],
          .across = y.shape[2],
          .channels = x.shape[3],
          .kernel = kernel,
          .padding = padding};
}

// A few lines a task: what the windows of neighbouring lines share is read once.
Chunks lines_of(const DepthwiseArgs& g, int64_t images) {
  constexpr int64_t kTasks = 16;
  return {images * g.down,
          std::max<int64_t>(1, std::min(g.down, ceil_div(images * g.down, kTasks)))};
}

}  // namespace

KernelPtr lower(CpuBackend& cpu, const DepthwiseConv& op, const Operands& io) {
  const auto& [padding] = op;
  const TensorView w = io.in[DepthwiseConv::kWeight];
  DepthwiseArgs args =
      args_of(io.in[DepthwiseConv::kX], io.out[DepthwiseConv::kY], w.shape[2], padding);
  args.bias = f32_only(operand(io.in, DepthwiseConv::kBias));
  const float* weights = f32_only(w);
  const int64_t places = w.shape[2] * w.shape[3];
  const size_t bytes = static_cast<size_t>(w.shape.numel()) * sizeof(float);
  const std::byte* packed = nullptr;
  if (io.packed)
    packed = io.packed->copy(w.data, PackedParams::Layout::kPanels, bytes, [&](std::byte* to) {
      pack(weights, args.channels, places, false, reinterpret_cast<float*>(to));
    });
  if (!packed) cpu.reserve_shared(bytes);
  const Chunks lines = lines_of(args, io.out[DepthwiseConv::kY].shape[0]);
  return make_kernel([&cpu, args, weights, places, packed, lines]() mutable {
    if (!packed)
      pack(weights, args.channels, places, false, reinterpret_cast<float*>(cpu.shared_scratch()));
    args.w = reinterpret_cast<const float*>(packed ? packed : cpu.shared_scratch());
    for_chunks(cpu, lines, [&](int64_t first, int64_t last, int64_t, int) {
      cpu.simd().depthwise->forward(args, first, last);
    });
  });
}

// The image's gradient is a convolution of dy with the window turned round. Of the weights' every
// chunk of lines has sums of its own, added up in order.
KernelPtr lower(CpuBackend& cpu, const DepthwiseConvBwd& op, const Operands& io) {
  const auto& [padding] = op;
  const TensorView dy = io.in[DepthwiseConvBwd::kDy], x = io.in[DepthwiseConvBwd::kX],
                   w = io.in[DepthwiseConvBwd::kWeight], dx = io.out[DepthwiseConvBwd::kDx];
  const int64_t kernel = w.shape[2], places = kernel * kernel, channels = x.shape[3];
  float *dw = f32_only(operand(io.out, DepthwiseConvBwd::kDweight)),
        *dbias = f32_only(operand(io.out, DepthwiseConvBwd::kDbias));
  DepthwiseArgs back = args_of(dy, dx ? dx : x, kernel, kernel - 1 - padding);
  const DepthwiseArgs sums_of = args_of(x, dy, kernel, padding);
  const Chunks lines = lines_of(back, x.shape[0]),
               parts = chunk_rows(dy.shape[0] * dy.shape[1], dy.shape[2] * channels, /*most=*/32);
  const int64_t part = (places + 1) * channels;
  const size_t of_sums = dw || dbias ? static_cast<size_t>(parts.count() * part) : 0,
               of_weights = static_cast<size_t>(places * channels);
  cpu.reserve_shared(std::max(of_sums, of_weights) * sizeof(float));
  return make_kernel([&cpu, back, sums_of, lines, parts, part, places, channels, dw, dbias,
                      writes_dx = static_cast<bool>(dx), weights = f32_only(w)]() mutable {
    auto* scratch = reinterpret_cast<float*>(cpu.shared_scratch());
    if (writes_dx) {
      pack(weights, channels, places, true, scratch);
      back.w = scratch;
      for_chunks(cpu, lines, [&](int64_t first, int64_t last, int64_t, int) {
        cpu.simd().depthwise->forward(back, first, last);
      });
    }
    if (!dw && !dbias) return;
    for_chunks(cpu, parts, [&](int64_t first, int64_t last, int64_t chunk, int) {
      cpu.simd().depthwise->weights_bwd(sums_of, first, last, scratch + chunk * part);
    });
    if (parts.count() > 1)
      cpu.simd().elementwise->accumulate(scratch, scratch + part, parts.count() - 1, part, part);
    for (int64_t c = 0; dw && c < channels; ++c)
      for (int64_t p = 0; p < places; ++p) dw[c * places + p] += scratch[p * channels + c];
    for (int64_t c = 0; dbias && c < channels; ++c) dbias[c] += scratch[places * channels + c];
  });
}

}  // namespace vitrum::cpu
