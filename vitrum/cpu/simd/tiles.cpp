#include "vitrum/cpu/simd/tiles.h"

#include "vitrum/cpu/simd/arrays.h"
#include "vitrum/cpu/simd/transpose.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

// Where the words of a tile come from: bf16 rows in memory.
struct Rows {
  const uint16_t* p;
  int64_t stride;
};

// Eight words of row `i` from word 8 * half: elements of one row two by two, or of two rows one by
// one.
template <bool kAlong>
VITRUM_LANES __m256 words8(const Rows& rows, int i, int half) {
  if constexpr (kAlong) {
    const uint16_t* p = rows.p + i * rows.stride + 16 * half;
    return _mm256_castsi256_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  } else {
    const auto load = [&](int row) {
      const uint16_t* p = rows.p + row * rows.stride + 8 * half;
      return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    };
    return _mm256_castsi256_ps(
        _mm256_or_si256(load(2 * i), _mm256_slli_epi32(load(2 * i + 1), 16)));
  }
}

#ifdef __AVX512F__
// Words 4 * quarter to + 3 of rows i, 4 + i, 8 + i and 12 + i, loaded to where a transpose within
// quarters leaves them in order.
VITRUM_LANES __m512 words_of_four_rows(const Rows& rows, int i, int quarter) {
  const auto load = [&](int row) {
    const uint16_t* p = rows.p + row * rows.stride + 8 * quarter;
    return _mm_castsi128_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  };
  __m512 v = _mm512_castps128_ps512(load(i));
  v = _mm512_mask_broadcast_f32x4(v, 0x00f0, load(4 + i));
  v = _mm512_mask_broadcast_f32x4(v, 0x0f00, load(8 + i));
  return _mm512_mask_broadcast_f32x4(v, 0xf000, load(12 + i));
}
#endif

template <bool kAlong>
VITRUM_LANES void transpose_tile(const Rows& rows, uint32_t* to) {
  auto* out = reinterpret_cast<float*>(to);
#ifdef __AVX512F__
  if constexpr (kAlong) {
#pragma GCC unroll 4
    for (int quarter = 0; quarter < 4; ++quarter) {
      __m512 r[4];
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) r[i] = words_of_four_rows(rows, i, quarter);
      transpose_quarters(r);
#pragma GCC unroll 4
      for (int i = 0; i < 4; ++i) _mm512_storeu_ps(out + (4 * quarter + i) * kTile, r[i]);
    }
    return;
  }
#endif
  for (int row = 0; row < 16; row += 8)
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half) {
      __m256 r[8];
#pragma GCC unroll 8
      for (int y = 0; y < 8; ++y) r[y] = words8<kAlong>(rows, row + y, half);
      transpose8(r);
#pragma GCC unroll 8
      for (int y = 0; y < 8; ++y) _mm256_storeu_ps(out + (8 * half + y) * kTile + row, r[y]);
    }
}

// Row `i` of words: elements of one row two by two, or of two rows one by one.
template <bool kAlong>
VITRUM_LANES void copy_tile(const Rows& rows, uint32_t* to) {
#pragma GCC unroll 16
  for (int i = 0; i < kTile; ++i)
    if constexpr (kAlong) {
      const auto* words = reinterpret_cast<const uint32_t*>(rows.p + i * rows.stride);
      store_words(to + i * kTile, load_words(words));
    } else {
      const auto upper = [&](int row) { return as_bits(load(rows.p + row * rows.stride)); };
      store_words(to + i * kTile, shift_right<16>(upper(2 * i)) | upper(2 * i + 1));
    }
}

// A tile that is not whole, or not bf16, with zeros where there is nothing.
template <bool kAlong, class T>
Rows gathered(const T* p, int64_t stride, int64_t lines, int64_t depth, uint16_t* buffer) {
  const int64_t rows = kAlong ? kTile : kStepDepth, width = kAlong ? kStepDepth : kTile;
  const int64_t real_rows = kAlong ? lines : depth, real_width = kAlong ? depth : lines;
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < width; j += 16) {
      const int64_t left = i < real_rows ? real_width - j : 0;
      const Vf v = left >= 16 ? load(p + i * stride + j)
                   : left > 0 ? load_n(p + i * stride + j, static_cast<int>(left))
                              : zero();
      store(buffer + i * width + j, v);
    }
  return {buffer, width};
}

template <bool kAlong, class T>
VITRUM_LANES Rows tile_rows(const T* p, int64_t stride, int64_t lines, int64_t depth,
                            uint16_t* buffer) {
  if constexpr (sizeof(T) == sizeof(uint16_t))
    if (lines >= kTile && depth >= kStepDepth) return {p, stride};
  return gathered<kAlong>(p, stride, lines < kTile ? lines : kTile,
                          depth < kStepDepth ? depth : kStepDepth, buffer);
}

// Weights come from memory in as many streams as a band has lines, more than the hardware follows.
template <class T>
VITRUM_LANES void prefetch_ahead(const T* p, int64_t stride, int64_t lines) {
  constexpr int64_t kAhead = 8 * kStepDepth;
  for (int64_t i = 0; i < lines && i < kTile; ++i)
    __builtin_prefetch(p + i * stride + kAhead, /*write=*/0, /*locality=*/2);
}

template <bool kAlong, bool kTransposed, class T>
VITRUM_LANES void pack_tile(const T* p, int64_t stride, int64_t lines, int64_t depth,
                            uint32_t* to) {
  alignas(64) uint16_t buffer[kStepDepth * kTile];
  if constexpr (kAlong && kTransposed) prefetch_ahead(p, stride, lines);
  // What is gathered along lines already is a tile of the left operand.
  auto* tile = reinterpret_cast<uint16_t*>(to);
  const Rows rows =
      tile_rows<kAlong>(p, stride, lines, depth, kAlong && !kTransposed ? tile : buffer);
  if constexpr (kTransposed)
    transpose_tile<kAlong>(rows, to);
  else if (rows.p != tile)
    copy_tile<kAlong>(rows, to);
}

// Band by band where that reads memory in order, else step by step.
template <bool kAlong, bool kTransposed, class T>
void pack_as(const T* p, int64_t stride, int64_t lines, int64_t depth, uint32_t* to, int64_t band) {
  const auto pack_step = [&](int64_t first, int64_t d) {
    uint32_t* tile = to + first / kBand * band + d / kStepDepth * kStepWords;
    for (int64_t line = first; line < first + kBand; line += kTile, tile += kTileWords)
      if (line < lines)
        pack_tile<kAlong, kTransposed>(p + (kAlong ? line * stride + d : d * stride + line), stride,
                                       lines - line, depth - d, tile);
      else
        for (int64_t i = 0; i < kTileWords; ++i) tile[i] = 0;
  };
  if constexpr (kAlong) {
    for (int64_t first = 0; first < lines; first += kBand)
      for (int64_t d = 0; d < depth; d += kStepDepth) pack_step(first, d);
  } else {
    for (int64_t d = 0; d < depth; d += kStepDepth)
      for (int64_t first = 0; first < lines; first += kBand) pack_step(first, d);
  }
}

template <class T>
void pack_from(const TileSource& s, TileSide side, int64_t lines, int64_t depth, uint32_t* to,
               int64_t band) {
  const T* p = static_cast<const T*>(s.x.data) + s.at;
  const bool right = side == TileSide::kRight;
  if (s.along)
    right ? pack_as<true, true>(p, s.stride, lines, depth, to, band)
          : pack_as<true, false>(p, s.stride, lines, depth, to, band);
  else
    right ? pack_as<false, false>(p, s.stride, lines, depth, to, band)
          : pack_as<false, true>(p, s.stride, lines, depth, to, band);
}

void pack(const TileSource& s, TileSide side, int64_t lines, int64_t depth, uint32_t* to,
          int64_t band) {
  s.x.dtype == DType::kBF16 ? pack_from<uint16_t>(s, side, lines, depth, to, band)
                            : pack_from<float>(s, side, lines, depth, to, band);
}

}  // namespace

constinit const TilePacking kTilePacking = {.pack = pack};

}  // namespace vitrum::cpu::VITRUM_ISA
