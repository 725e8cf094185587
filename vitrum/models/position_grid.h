// Positions of the patches of a square, for images of any other shape.
#pragma once
#include <cstdint>
#include <vector>

namespace vitrum {

// A table of side * side positions is resized to rows * columns by a product with this matrix,
// (rows * columns, side * side): bilinear and antialiased, as Pillow and PyTorch resize.
std::vector<float> grid_resize(int64_t side, int64_t rows, int64_t columns);

}  // namespace vitrum
