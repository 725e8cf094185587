// Matrix products, the inner part. C (rows, width <= 80) is a block of the result; B has rows of at
// least `width` columns, rounded up to 16, `ldb` apart: kPanel in a packed panel. Every element of
// C is one chain of fused multiply-adds in the order of k, whatever the block it falls into:
// results do not depend on rows, position, threads or instruction set.
#pragma once
#include <cstdint>

namespace vitrum::cpu {

inline constexpr int64_t kPanel = 64;      // columns of a packed panel of B
inline constexpr int64_t kLastPanel = 80;  // of one that takes a short rest along
inline constexpr int64_t kStrip = 6;       // rows of a packed strip of A

inline constexpr int64_t kSliceFloats = 128 * kPanel;

struct GemmKernels {
  // C (rows, width) = A (rows, k) B + (accumulate ? C : 0). A is row-major with stride lda.
  void (*panel)(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
                int64_t rows, int64_t k, int64_t width, bool accumulate);
  // C (rows, width <= kPanel) = A (rows, k) W^T, W being `width` rows of f32 or bf16, `ldw` apart,
  // that are read where they lie; what lies behind them is asked for meanwhile. slice:
  // kSliceFloats.
  void (*turned)(const float* a, int64_t lda, const void* w, bool bf16, int64_t ldw, float* c,
                 int64_t ldc, int64_t rows, int64_t k, int64_t width, float* slice);
  // As panel with A packed in strips: a[(strip * k + i) * kStrip + r].
  void (*strips)(const float* a, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t rows,
                 int64_t k, int64_t width, bool accumulate);
  // The same with A given as its transpose (k, rows), row-major with stride lda, read in place:
  // better than packing it where there are few panels to use it for.
  void (*columns)(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
                  int64_t rows, int64_t k, int64_t width, bool accumulate);
  // Packs columns [0, width) of a row-major (k, ..) matrix, or rows of its transpose (.., k), as k
  // x stride (kPanel or kLastPanel); the columns past `width` are zero.
  void (*pack_panel)(const void* b, bool bf16, int64_t ldb, bool transposed, int64_t k,
                     int64_t width, float* out, int64_t stride);
  // Packs columns [0, rows) of a (k, ..) matrix as the strips of its transpose; missing rows are
  // zero.
  void (*pack_strips)(const float* a, int64_t lda, int64_t k, int64_t rows, float* out);
  void (*widen)(const uint16_t* from, int64_t n, float* to);  // bf16 -> f32
};

// How `columns` are cut into panels: 64 each, but where at most 16 would be left, the last one has
// them too. ViT's 197 tokens are 64 + 64 + 69.
struct PanelCut {
  int64_t columns = 0;
  int64_t count() const {
    const int64_t whole = columns / kPanel, rest = columns % kPanel;
    return whole + (rest > kLastPanel - kPanel || (rest > 0 && whole == 0));
  }
  int64_t first(int64_t p) const { return p * kPanel; }
  int64_t width(int64_t p) const { return p + 1 == count() ? columns - first(p) : kPanel; }
  int64_t stride(int64_t p) const { return width(p) > kPanel ? kLastPanel : kPanel; }
};

}  // namespace vitrum::cpu
