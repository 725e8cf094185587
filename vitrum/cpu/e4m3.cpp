// Layers of e4m3 on a processor, which has no products of them: operands are widened to f32, which
// holds them exactly. For models that are meant for a card, to see what rounding costs; no faster
// than f32.
#include "vitrum/core/e4m3.h"

#include <array>

#include "vitrum/cpu/backend.h"

namespace vitrum::cpu {
namespace {

// What the bytes stand for.
const std::array<float, 256>& numbers() {
  static const std::array<float, 256> all = [] {
    std::array<float, 256> n{};
    for (size_t i = 0; i < n.size(); ++i) n[i] = from_e4m3(static_cast<uint8_t>(i));
    return n;
  }();
  return all;
}

float element(const TensorView& from, int64_t i) {
  return from.dtype == DType::kBF16 ? from_bf16(from.bf16()[i]) : from.f32()[i];
}

// Rows of weights as they are multiplied: each rounded, whatever they come as.
void widen_weights(CpuBackend& cpu, const TensorView& w, std::span<const float> scales, float* to) {
  const int64_t width = w.shape[1];
  for_chunks(cpu, chunk_rows(w.shape[0], width), [&](int64_t first, int64_t last, int64_t, int) {
    std::vector<float> row(static_cast<size_t>(width));
    std::vector<uint8_t> bytes(row.size());
    for (int64_t i = first; i < last; ++i) {
      float scale = 0;
      const uint8_t* from = bytes.data();
      if (w.dtype == DType::kE4M3) {
        scale = scales[static_cast<size_t>(i)];
        from = static_cast<const uint8_t*>(w.data) + i * width;
      } else {
        for (int64_t k = 0; k < width; ++k) row[static_cast<size_t>(k)] = element(w, i * width + k);
        scale = round_weights_e4m3(row, bytes.data());
      }
      for (int64_t k = 0; k < width; ++k) to[i * width + k] = numbers()[from[k]] * scale;
    }
  });
}

class E4M3Layer final : public Kernel {
 public:
  E4M3Layer(CpuBackend& cpu, const QLinear& op, const Operands& io)
      : cpu_(cpu), x_(io.in[QLinear::kX]), y_(io.out[QLinear::kY]) {
    const auto& [act, scale] = op;
    scale_ = scale;
    const TensorView& w = io.in[QLinear::kWeight];
    const TensorView bias = io.in.size() > QLinear::kBias ? io.in[QLinear::kBias] : TensorView{};
    const auto make = [&](std::byte* to) {
      const std::span<const float> scales =
          w.dtype == DType::kE4M3 ? io.packed->scales(w.data) : std::span<const float>();
      widen_weights(cpu, w, scales, reinterpret_cast<float*>(to));
    };
    TensorView weights{nullptr, w.shape, DType::kF32};
    // Weights that may change are those of tests: they do not.
    if (io.packed)
      weights.data = const_cast<std::byte*>(
          io.packed->copy(w.data, PackedParams::Layout::kRows, weights.bytes(), make));
    if (!weights.data) {
      own_ = cpu.allocate(weights.bytes());
      make(own_.data());
      weights.data = own_.data();
    }
    wide_ = cpu.allocate(x_.bytes() * sizeof(float));
    if (y_.dtype != DType::kF32)
      sums_ = cpu.allocate(static_cast<size_t>(y_.shape.numel()) * sizeof(float));
    wide_y_ = {y_.dtype == DType::kF32 ? static_cast<std::byte*>(y_.data) : sums_.data(), y_.shape,
               DType::kF32};
    const Operands floats{.in = {{wide_.data(), x_.shape, DType::kF32}, weights, bias},
                          .out = {wide_y_}};
    product_ = cpu.lower(Linear{.act = y_.dtype == DType::kF32 ? act : Act::kNone}, floats);
    if (y_.dtype != DType::kF32 && act != Act::kNone)
      activation_ = cpu.lower(Activation{.act = act}, {.in = {y_}, .out = {y_}});
  }

  void launch() override {
    const auto* from = static_cast<const uint8_t*>(x_.data);
    auto* to = reinterpret_cast<float*>(wide_.data());
    const int64_t width = x_.shape[-1];
    for_chunks(cpu_, chunk_rows(x_.shape.rows(), width),
               [&](int64_t first, int64_t last, int64_t, int) {
                 for (int64_t i = first * width; i < last * width; ++i)
                   to[i] = numbers()[from[i]] * scale_;
               });
    product_->launch();
    if (y_.dtype == DType::kF32) return;
    for_chunks(cpu_, chunk_rows(y_.shape.rows(), y_.shape[-1]),
               [&](int64_t first, int64_t last, int64_t, int) {
                 const int64_t n = y_.shape[-1];
                 for (int64_t i = first * n; i < last * n; ++i)
                   y_.bf16()[i] = to_bf16(wide_y_.f32()[i]);
               });
    if (activation_) activation_->launch();
  }

 private:
  CpuBackend& cpu_;
  TensorView x_, y_, wide_y_;
  float scale_ = 1;
  Buffer own_, wide_, sums_;
  KernelPtr product_, activation_;
};

}  // namespace

KernelPtr lower_e4m3(CpuBackend& cpu, const QLinear& op, const Operands& io) {
  return std::make_unique<E4M3Layer>(cpu, op, io);
}

KernelPtr lower(CpuBackend& cpu, const ToE4M3& op, const Operands& io) {
  const auto& [scale] = op;
  const TensorView &x = io.in[ToE4M3::kX], &y = io.out[ToE4M3::kY];
  return make_kernel([&cpu, x, y, inverse = 1 / scale] {
    const int64_t width = x.shape[-1];
    for_chunks(cpu, chunk_rows(x.shape.rows(), width),
               [&](int64_t first, int64_t last, int64_t, int) {
                 auto* to = static_cast<uint8_t*>(y.data);
                 for (int64_t i = first * width; i < last * width; ++i)
                   to[i] = to_e4m3(element(x, i) * inverse);
               });
  });
}

}  // namespace vitrum::cpu
