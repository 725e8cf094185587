// What a tile of a GEMM knows of a row that a LayerNorm is of.
#pragma once

namespace vitrum::cuda {

// Of some columns of it: their mean and the sum of squared deviations from it.
struct alignas(8) RowMoments {
  float mean, squares;
};

}  // namespace vitrum::cuda
