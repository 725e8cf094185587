#include "vitrum/cpu/byte_layer.h"

#include <algorithm>

#include "vitrum/core/ceil_div.h"

namespace vitrum::cpu {

static_assert(kByteColumns % kBand == 0 && kBand % kByteRowsAtOnce == 0);
static_assert(sizeof(uint32_t) == sizeof(float) && sizeof(int32_t) == sizeof(float));

PackedBytes::PackedBytes(int64_t lines, int64_t depth)
    : depth_(depth), words_(packed_byte_words(lines, depth)), lines_(round_up(lines, kBand)) {}

void PackedBytes::fill(CpuBackend& cpu, const TensorView& w, std::span<const float> scales,
                       std::byte* packed) const {
  const ByteKernels& kernels = *cpu.simd().bytes;
  std::ranges::copy(scales, weights(packed, 0).scale);
  for_chunks(cpu, {w.shape[0], kBand}, [&](int64_t first, int64_t last, int64_t, int) {
    if (w.dtype == DType::kI8)
      return kernels.pack_bytes(static_cast<const int8_t*>(w.data), first, last - first, depth_,
                                const_cast<uint32_t*>(band(packed, first)),
                                weights(packed, first).sum);
    kernels.pack_weights(floats(w), first, last - first, depth_,
                         const_cast<uint32_t*>(band(packed, first)), weights(packed, first));
  });
}

ByteLayer::ByteLayer(CpuBackend& cpu, const QLinear& op, const Operands& io)
    : cpu_(cpu),
      x_(io.in[QLinear::kX]),
      w_(io.in[QLinear::kWeight]),
      y_(io.out[QLinear::kY]),
      bias_(f32_only(operand(io.in, QLinear::kBias))),
      act_(op.act),
      packed_(w_.shape[0], w_.shape[1]),
      kept_(kept(io)) {}

const std::byte* ByteLayer::kept(const Operands& io) {
  const std::byte* copy =
      io.packed ? io.packed->copy(w_.data, PackedParams::Layout::kBytes, packed_.bytes(),
                                  [&](std::byte* to) {
                                    packed_.fill(cpu_, w_, io.packed->scales(w_.data), to);
                                  })
                : nullptr;
  if (!copy) own_ = allocate_host(packed_.bytes());
  return copy;
}

int64_t ByteLayer::rows_words(int64_t rows) const {
  return packed_byte_words(rows, depth()) + 2 * round_up(rows, kBand);
}

int64_t ByteLayer::sums_words(int64_t rows) {
  return round_up(rows, kByteRowsAtOnce) * kByteColumns + 16;
}

ByteRows ByteLayer::byte_rows(const uint32_t* packed, int64_t rows, int64_t row) const {
  auto* scales =
      reinterpret_cast<float*>(const_cast<uint32_t*>(packed)) + packed_byte_words(rows, depth());
  return {scales + row, reinterpret_cast<int32_t*>(scales) + round_up(rows, kBand) + row};
}

void ByteLayer::pack(Array x, int64_t from, int64_t count, uint32_t* packed, int64_t rows,
                     int64_t to) const {
  cpu_.simd().bytes->pack_rows(x, from, count, depth(),
                               packed + to / kBand * byte_band_words(depth()),
                               byte_rows(packed, rows, to));
}

void ByteLayer::multiply(const uint32_t* packed, int64_t rows, Array y, int64_t row, int64_t first,
                         int64_t last, int32_t* sums) const {
  const ByteEpilogueArgs epilogue{.y = y, .bias = bias_, .act = act_, .width = columns()};
  std::byte* weights = kept_ ? const_cast<std::byte*>(kept_) : const_cast<std::byte*>(own_.data());
  for (int64_t j = first; j < last; j += kByteColumns) {
    const int64_t width = std::min(kByteColumns, last - j);
    // Whole blocks, whose edges are zeros: there is room for their sums.
    cpu_.bytes().multiply({.a = packed,
                           .b = packed_.band(weights, j),
                           .c = sums,
                           .ldc = kByteColumns,
                           .rows = round_up(rows, kByteRowsAtOnce),
                           .columns = round_up(width, kBand),
                           .depth = depth(),
                           .accumulate = false});
    cpu_.simd().bytes->epilogue(epilogue, sums, kByteColumns, row, rows, j, width,
                                byte_rows(packed, rows, 0), packed_.weights(weights, j));
  }
}

}  // namespace vitrum::cpu
