// Elements between a file's layout of a tensor and ours, whatever their width.
#pragma once
#include <cstddef>
#include <span>

#include "vitrum/weights/dialect.h"

namespace vitrum {

// Whether both hold the same bytes in the same order.
bool same_memory(Layout layout);

// `rows` x `columns` is ours, of one tensor. `from` and `to` have that many elements of `element`
// bytes (2, 4 or 8).
struct Matrix {
  int64_t rows, columns;
  size_t element;
};
void to_ours(Layout layout, const Matrix& m, const ModelConfig& config,
             std::span<const std::byte> from, std::span<std::byte> to);
void from_ours(Layout layout, const Matrix& m, const ModelConfig& config,
               std::span<const std::byte> from, std::span<std::byte> to);

}  // namespace vitrum
