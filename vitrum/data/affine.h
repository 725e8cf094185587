// Image.transform(size, AFFINE, matrix) of Pillow, byte for byte: the output pixel whose centre is
// (x, y) comes from (m0 x + m1 y + m2, m3 x + m4 y + m5).
#pragma once
#include <array>
#include <cstdint>

#include "vitrum/data/image.h"
#include "vitrum/data/resize.h"

namespace vitrum {

using AffineMatrix = std::array<double, 6>;
using ByteColour = std::array<uint8_t, 3>;

// Pillow's Image.rotate: counter-clockwise, round the centre.
AffineMatrix rotation(double degrees, int height, int width);

// Nearest and bilinear as such, every other filter as bicubic. What comes from outside is `fill`.
// `out` gets the size of `in` and must be another image.
void transform_affine(const Image& in, const AffineMatrix& matrix, Filter filter,
                      const ByteColour& fill, Image& out);

}  // namespace vitrum
