// A linear layer of eight bits, block by block: its weights packed once, rows that become bytes,
// and their products. What the kernel of one layer shares with that of a chain of them.
#pragma once
#include <span>

#include "vitrum/cpu/backend.h"
#include "vitrum/cpu/simd/bytes.h"

namespace vitrum::cpu {

inline constexpr int64_t kByteColumns = 128;   // of a product before its epilogue
inline constexpr int64_t kByteRowsAtOnce = 8;  // of which every unit computes whole groups

// Weights as they are multiplied: the bytes of whole bands, then of every line its scale and its
// sum of bytes.
class PackedBytes {
 public:
  PackedBytes(int64_t lines, int64_t depth);
  size_t bytes() const { return static_cast<size_t>(words_ + 2 * lines_) * sizeof(uint32_t); }
  const uint32_t* band(const std::byte* packed, int64_t line) const {
    return reinterpret_cast<const uint32_t*>(packed) + line / kBand * byte_band_words(depth_);
  }
  ByteWeights weights(std::byte* packed, int64_t line) const {
    auto* scales = reinterpret_cast<float*>(packed) + words_;
    return {scales + line, reinterpret_cast<int32_t*>(scales) + lines_ + line};
  }
  // `scales` are of weights that are bytes already.
  void fill(CpuBackend& cpu, const TensorView& w, std::span<const float> scales,
            std::byte* packed) const;

 private:
  int64_t depth_, words_, lines_;
};

class ByteLayer {
 public:
  ByteLayer(CpuBackend& cpu, const QLinear& op, const Operands& io);

  int64_t columns() const { return w_.shape[0]; }
  int64_t depth() const { return w_.shape[1]; }
  const TensorView& x() const { return x_; }
  const TensorView& y() const { return y_; }

  // At every launch, before anything else: weights that may change are packed.
  void begin() {
    if (!kept_) packed_.fill(cpu_, w_, {}, own_.data());
  }

  // Words of so many packed rows: bytes, then scales and zeros.
  int64_t rows_words(int64_t rows) const;
  // Rows [from, from + count) of x become rows [to, ..) of `packed`, which has `rows`; to is a
  // multiple of kBand, count at most that.
  void pack(Array x, int64_t from, int64_t count, uint32_t* packed, int64_t rows, int64_t to) const;
  // Columns [first, last) of rows [row, row + rows) of y, from rows that are packed. sums:
  // sums_words(rows).
  void multiply(const uint32_t* packed, int64_t rows, Array y, int64_t row, int64_t first,
                int64_t last, int32_t* sums) const;
  static int64_t sums_words(int64_t rows);

 private:
  ByteRows byte_rows(const uint32_t* packed, int64_t rows, int64_t row) const;
  const std::byte* kept(const Operands& io);

  CpuBackend& cpu_;
  TensorView x_, w_, y_;
  const float* bias_;
  Act act_;
  PackedBytes packed_;
  Buffer own_;             // weights that may change, packed at each launch
  const std::byte* kept_;  // those that never do; null: own_
};

// A chain of layers and norms in which a row depends on no other: how many nodes of it are one
// kernel here, 1 where they are better left apart.
size_t byte_chain(std::span<const ChainNode> chain, int threads);
KernelPtr lower_byte_chain(CpuBackend& cpu, std::span<const ChainNode> joined);

}  // namespace vitrum::cpu
