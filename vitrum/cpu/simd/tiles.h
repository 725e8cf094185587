// Products of bf16 operands, summed in f32, in the layout of AMX. Both operands are packed in bands
// of 32 lines (rows of the left one, columns of the right one). A band goes step by step through
// the depth, 32 elements at a time; a step is two tiles of 16 lines, a tile 16 x 16 words, a word
// two neighbours in depth: [line][pair] on the left, [pair][line] on the right. Missing lines and
// depth are zero, so the inner loops know no edges.
#pragma once
#include <cstdint>

#include "vitrum/cpu/simd/simd.h"

namespace vitrum::cpu {

inline constexpr int64_t kTile = 16, kTileWords = kTile * kTile;
inline constexpr int64_t kBand = 2 * kTile, kStepDepth = 32, kStepWords = 2 * kTileWords;
// Of operands of bytes a word is four neighbours in depth, and all else is the same.
inline constexpr int64_t kByteStepDepth = 64;

constexpr int64_t tile_steps(int64_t depth) { return (depth + kStepDepth - 1) / kStepDepth; }
constexpr int64_t band_words(int64_t depth) { return tile_steps(depth) * kStepWords; }
constexpr int64_t bands_of(int64_t lines) { return (lines + kBand - 1) / kBand; }
constexpr int64_t packed_words(int64_t lines, int64_t depth) {
  return bands_of(lines) * band_words(depth);
}

// An operand as it lies in memory; f32 is rounded to bf16 on the way.
struct TileSource {
  Array x;
  int64_t at;      // element number of line 0 at depth 0
  int64_t stride;  // from line to line where `along`, else from depth to depth
  bool along;      // neighbours in depth are neighbours in memory
};
enum class TileSide { kLeft, kRight };

struct TilePacking {
  // Writes band_words(depth) words for each band; bands are `band` words apart, so that a part of
  // the depth can be packed on its own.
  void (*pack)(const TileSource&, TileSide, int64_t lines, int64_t depth, uint32_t* to,
               int64_t band);
};

// C (rows, columns) = A B + (accumulate ? C : 0), A and B packed from the first row and column.
template <class Sum>
struct ProductOf {
  const uint32_t *a, *b;
  Sum* c;
  int64_t ldc, rows, columns, depth;
  bool accumulate;
  int64_t b_band = 0;  // words from band to band of B, where it was packed deeper than this product
};
using TileProduct = ProductOf<float>;
using ByteProduct = ProductOf<int32_t>;  // of unsigned bytes on the left and signed on the right

// Every element is one chain of sums in the order of depth, whatever block it falls into: results
// depend on the unit, but not on rows, position or threads.
struct TileUnit {
  const char* name;
  void (*multiply)(const TileProduct&);
};
extern const TileUnit kTilesPortable, kTilesAvx512Bf16, kTilesAmx;
// Sums of bytes are exact: all units give the same.
struct ByteUnit {
  const char* name;
  void (*multiply)(const ByteProduct&);
};
extern const ByteUnit kBytesPortable, kBytesAvx2, kBytesAvxVnni, kBytesAvx512Vnni, kBytesAmx;

}  // namespace vitrum::cpu
