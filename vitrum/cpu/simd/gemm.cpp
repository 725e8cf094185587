#include "vitrum/cpu/simd/gemm.h"

#include "vitrum/cpu/simd/lanes.h"
#include "vitrum/cpu/simd/simd.h"
#include "vitrum/cpu/simd/transpose.h"

namespace vitrum::cpu::VITRUM_ISA {
namespace {

#ifdef __AVX512F__
using Vec = __m512;
constexpr int kLanes = 16,
              kWide = 4;  // 6 x 4 accumulators, 4 of B and a broadcast: 29 of 32 registers
VITRUM_LANES Vec load_vec(const float* p) { return _mm512_loadu_ps(p); }
VITRUM_LANES void store_vec(float* p, Vec v) { _mm512_storeu_ps(p, v); }
VITRUM_LANES Vec broadcast(float x) { return _mm512_set1_ps(x); }
VITRUM_LANES Vec multiply_add(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
#else
using Vec = __m256;
constexpr int kLanes = 8,
              kWide = 2;  // 6 x 2 accumulators, 2 of B and a broadcast: 15 of 16 registers
VITRUM_LANES Vec load_vec(const float* p) { return _mm256_loadu_ps(p); }
VITRUM_LANES void store_vec(float* p, Vec v) { _mm256_storeu_ps(p, v); }
VITRUM_LANES Vec broadcast(float x) { return _mm256_set1_ps(x); }
VITRUM_LANES Vec multiply_add(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
#endif

// A line into the first-level cache, or into the second.
VITRUM_LANES void fetch_near(const float* p) { _mm_prefetch(p, _MM_HINT_T0); }
VITRUM_LANES void fetch_far(const float* p) { _mm_prefetch(p, _MM_HINT_T1); }

constexpr int64_t kDepth = 128;  // k per pass: a slice of a panel (32 KiB) stays in the first-level
                                 // cache, beside two tiles' rows of A and C
constexpr int64_t kBlock = 16;   // k per line of A

// What the tiles after this one read. Asking for it here hides the second-level cache, and for B
// the memory behind that, behind arithmetic. Addresses past the end of a matrix do no harm.
struct Ahead {
  const float* a;  // rows of the next tile
  const float* c;
  const float* b;    // a part of the next slice of B: rows of it,
  int64_t b_stride;  // so far apart,
  int64_t b_rows;    // so many, a line of each per block of k
};

// How A lies in memory: rows with stride lda; strips of kStrip rows, one column after the other; or
// as its transpose, columns with stride lda.
enum class Layout { kRows, kStrips, kColumns };

// One tile: R rows by V vectors.
template <int R, int V, Layout kA>
void tile(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
          int64_t k, bool accumulate, const Ahead& next) {
  const int64_t next_k = kA == Layout::kRows ? 1 : kA == Layout::kStrips ? kStrip : lda;
  const int64_t next_row = kA == Layout::kRows ? lda : 1;
  Vec acc[R][V];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 5
    for (int v = 0; v < V; ++v) acc[r][v] = accumulate ? load_vec(c + r * ldc + v * kLanes) : Vec{};
  const float* upper = a + 3 * next_row;  // two pointers and one distance reach six rows
  const auto step = [&] {
    Vec bv[V];
#pragma GCC unroll 5
    for (int v = 0; v < V; ++v) bv[v] = load_vec(b + v * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const Vec x = broadcast(r < 3 ? a[r * next_row] : upper[(r - 3) * next_row]);
#pragma GCC unroll 5
      for (int v = 0; v < V; ++v) acc[r][v] = multiply_add(x, bv[v], acc[r][v]);
    }
    // Columns that lie 4 KiB apart share one set of the first-level cache, which has room for these
    // few; what their lines have for the tiles after this one waits in the second level.
    if constexpr (kA == Layout::kColumns) fetch_near(a + 8 * lda), fetch_far(a + 16);
    b += ldb, a += next_k, upper += next_k;
  };
  const float *next_a = next.a, *next_b = next.b, *next_c = next.c;
  int64_t i = 0;
  for (; i + kBlock <= k; i += kBlock) {
    if constexpr (kA != Layout::kColumns) {
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) fetch_near(next_a + r * (kA == Layout::kStrips ? kBlock : lda));
      next_a += kBlock * next_k;
    }
#pragma GCC unroll 5
    for (int v = 0; v < V; ++v) fetch_near(next_c + v * kLanes);
    next_c += ldc;
    for (int64_t r = 0; r < next.b_rows; ++r) fetch_far(next_b + r * next.b_stride);
    next_b += kBlock;
    for (int64_t n = 0; n < kBlock; ++n) step();
  }
  for (; i < k; ++i) step();
  __asm__("" : "+r"(c));  // or its 24 addresses would be kept from above, in registers B needs
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 5
    for (int v = 0; v < V; ++v) store_vec(c + r * ldc + v * kLanes, acc[r][v]);
}

using Tile = void (*)(const float*, int64_t, const float*, int64_t, float*, int64_t, int64_t, bool,
                      const Ahead&);
template <Layout kA, int R>
Tile by_vectors(int v) {
#ifdef __AVX512F__
  static constexpr Tile kTiles[] = {tile<R, 1, kA>, tile<R, 2, kA>, tile<R, 3, kA>, tile<R, 4, kA>,
                                    R <= 5 ? tile < R <= 5 ? R : 1, 5, kA > : nullptr};
#else
  static constexpr Tile kTiles[] = {tile<R, 1, kA>, tile<R, 2, kA>};
#endif
  return kTiles[v - 1];
}
template <Layout kA>
Tile choose(int64_t rows, int v) {
  switch (rows) {
    case 1: return by_vectors<kA, 1>(v);
    case 2: return by_vectors<kA, 2>(v);
    case 3: return by_vectors<kA, 3>(v);
    case 4: return by_vectors<kA, 4>(v);
    case 5: return by_vectors<kA, 5>(v);
    default: return by_vectors<kA, 6>(v);
  }
}

// A tile whose last vector reaches past `width`: computed in a buffer, only the real columns
// copied.
void edge_tile(Tile f, const float* a, int64_t lda, const float* b, int64_t ldb, float* c,
               int64_t ldc, int64_t rows, int64_t k, int64_t width, bool accumulate,
               const Ahead& next) {
  alignas(64) float buffer[kStrip * kLastPanel];
  for (int64_t r = 0; accumulate && r < rows; ++r)
    for (int64_t j = 0; j < kLastPanel; ++j)
      buffer[r * kLastPanel + j] = j < width ? c[r * ldc + j] : 0.f;
  f(a, lda, b, ldb, buffer, kLastPanel, k, accumulate, next);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < width; ++j) c[r * ldc + j] = buffer[r * kLastPanel + j];
}

// What is wanted after a slice of B: kPanel rows of the depth of a slice, or as many floats in a
// run.
struct NextSlice {
  const float* b;
  int64_t stride;
};

// All rows of one panel for one slice of k. Rows of A start `next_row` apart, which packed strips
// know for multiples of six only.
template <Layout kA>
void sweep(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
           int64_t rows, int64_t k, int64_t width, bool accumulate, const NextSlice& slice) {
  constexpr int64_t kColumns = kWide * kLanes, kMostRows = 4;
  const auto divide_up = [](int64_t x, int64_t y) { return (x + y - 1) / y; };
  const int64_t tiles = divide_up(rows, kStrip) * divide_up(width, kColumns);
  const int64_t b_rows = divide_up(ldb, tiles);
  const int64_t next_row = kA == Layout::kColumns ? 1 : lda;
  Ahead next{.a = a,
             .c = c,
             .b = slice.b,
             .b_stride = slice.stride,
             .b_rows = b_rows < kMostRows ? b_rows : kMostRows};
  for (int64_t j = 0, w; j < width; j += w) {
    // A fifth vector is taken along rather than left for a pass of its own: 5 x 5 accumulators.
    const bool all = kWide == 4 && kA == Layout::kRows && width - j <= kLastPanel;
    w = all || width - j < kColumns ? width - j : kColumns;
    const int v = static_cast<int>((w + kLanes - 1) / kLanes);
    const int64_t most = v > 4 ? 5 : kStrip;
    for (int64_t r = 0; r < rows; r += most) {
      const int64_t n = rows - r < most ? rows - r : most;
      const Tile f = choose<kA>(n, v);
      const bool last = r + most >= rows, end = last && j + w >= width;
      next.a = end    ? a + k * (kA == Layout::kStrips ? kStrip : 1)
               : last ? a
                      : a + (r + most) * next_row;
      next.c = last ? c + j + w : c + (r + most) * ldc + j;
      if (w == v * kLanes)
        f(a + r * next_row, lda, b + j, ldb, c + r * ldc + j, ldc, k, accumulate, next);
      else
        edge_tile(f, a + r * next_row, lda, b + j, ldb, c + r * ldc + j, ldc, n, k, w, accumulate,
                  next);
      next.b += next.b_rows * next.b_stride;
    }
  }
}

// Slice by slice, of up to `most` and about alike: 192 is twice 96. `at(i)`: where A has column i.
template <Layout kA, class At>
VITRUM_LANES void slices(const At& at, int64_t lda, const float* b, int64_t ldb, float* c,
                         int64_t ldc, int64_t rows, int64_t k, int64_t width, bool accumulate,
                         int64_t most) {
  const auto divide_up = [](int64_t x, int64_t y) { return (x + y - 1) / y; };
  const int64_t count = k > 0 ? divide_up(k, most) : 1;
  const int64_t each = divide_up(divide_up(k, count), kBlock) * kBlock;
  for (int64_t i = 0; i < k; i += each) {
    const int64_t depth = k - i < each ? k - i : each;
    sweep<kA>(at(i), lda, b + i * ldb, ldb, c, ldc, rows, depth, width, accumulate || i > 0,
              {b + (i + depth) * ldb, depth});
  }
}

void panel(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
           int64_t rows, int64_t k, int64_t width, bool accumulate) {
  slices<Layout::kRows>([&](int64_t i) { return a + i; }, lda, b, ldb, c, ldc, rows, k, width,
                        accumulate, ldb > kPanel ? kDepth * kPanel / kLastPanel : kDepth);
}

void strips(const float* a, const float* b, int64_t ldb, float* c, int64_t ldc, int64_t rows,
            int64_t k, int64_t width, bool accumulate) {
  slices<Layout::kStrips>([&](int64_t i) { return a + i * kStrip; }, k, b, ldb, c, ldc, rows, k,
                          width, accumulate, kDepth);
}

void columns(const float* a, int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc,
             int64_t rows, int64_t k, int64_t width, bool accumulate) {
  slices<Layout::kColumns>([&](int64_t i) { return a + i * lda; }, lda, b, ldb, c, ldc, rows, k,
                           width, accumulate, kDepth);
}

template <class T>
void pack_rows(const T* b, int64_t ldb, int64_t k, int64_t width, float* out, int64_t stride) {
  for (int64_t i = 0; i < k; ++i, b += ldb, out += stride)
    for (int64_t j = 0; j < stride; j += 8) _mm256_storeu_ps(out + j, load8_n(b + j, width - j));
}

// Eight rows of the transpose, k from i to i + depth.
template <class T>
VITRUM_LANES void pack_eight(const T* b, int64_t ldb, int64_t rows, int64_t depth, float* out,
                             int64_t stride) {
  __m256 r[8];
#pragma GCC unroll 8
  for (int y = 0; y < 8; ++y) r[y] = y < rows ? load8_n(b + y * ldb, depth) : _mm256_setzero_ps();
  transpose8(r);
#pragma GCC unroll 8
  for (int x = 0; x < 8; ++x)
    if (x < depth) _mm256_storeu_ps(out + x * stride, r[x]);
}

// The same of whole blocks, sixteen rows by sixteen; returns how much of the depth that is.
#ifdef __AVX512F__
template <class T>
int64_t pack_blocks(const T* b, int64_t ldb, int64_t k, float* out, int64_t stride) {
  int64_t i = 0;
  for (; i + 16 <= k; i += 16, b += 16) {
    __m512 r[16];
    const T* from = b;
#pragma GCC unroll 16
    for (int y = 0; y < 16; ++y, from += ldb) r[y] = load16(from);
    transpose16(r);
#pragma GCC unroll 16
    for (int x = 0; x < 16; ++x, out += stride) _mm512_storeu_ps(out, r[x]);
  }
  return i;
}
#else
template <class T>
int64_t pack_blocks(const T*, int64_t, int64_t, float*, int64_t) {
  return 0;
}
#endif

// Whole lines of the transpose are used up before the next rows are read: where rows lie a multiple
// of 4 KiB apart, a line would not be in the first-level cache any more.
template <class T>
void pack_columns(const T* b, int64_t ldb, int64_t k, int64_t width, float* out, int64_t stride) {
  for (int64_t j = 0; j < stride; j += 16) {
    int64_t i = j + 16 <= width ? pack_blocks(b + j * ldb, ldb, k, out + j, stride) : 0;
    for (; i < k; i += kBlock)
      for (int64_t row = j; row < j + 16 && row < stride; row += 8)
        for (int64_t half = i; half < i + kBlock && half < k; half += 8)
          pack_eight(b + row * ldb + half, ldb, width - row, k - half, out + half * stride + row,
                     stride);
  }
}

template <class T>
void pack(const T* b, int64_t ldb, bool transposed, int64_t k, int64_t width, float* out,
          int64_t stride) {
  transposed ? pack_columns(b, ldb, k, width, out, stride)
             : pack_rows(b, ldb, k, width, out, stride);
}
void pack_panel(const void* b, bool bf16, int64_t ldb, bool transposed, int64_t k, int64_t width,
                float* out, int64_t stride) {
  if (bf16)
    pack(static_cast<const uint16_t*>(b), ldb, transposed, k, width, out, stride);
  else
    pack(static_cast<const float*>(b), ldb, transposed, k, width, out, stride);
}

// A slice of W is turned into the first-level cache, and used up there.
void turned(const float* a, int64_t lda, const void* w, bool bf16, int64_t ldw, float* c,
            int64_t ldc, int64_t rows, int64_t k, int64_t width, float* slice) {
  const int64_t element = bf16 ? 2 : 4;
  const auto at = [&](int64_t i) { return static_cast<const std::byte*>(w) + i * element; };
  for (int64_t i = 0; i < k; i += kDepth) {
    const int64_t depth = k - i < kDepth ? k - i : kDepth;
    pack_panel(at(i), bf16, ldw, /*transposed=*/true, depth, width, slice, kPanel);
    const auto* next =
        reinterpret_cast<const float*>(at(i + kDepth < k ? i + kDepth : kPanel * ldw));
    sweep<Layout::kRows>(a + i, lda, slice, kPanel, c, ldc, rows, depth, width, i > 0,
                         {next, ldw * element / 4});
  }
}

// Eight floats are moved where six are wanted: the two too many land in the next slot of the strip,
// which is written after; only the last slot must not spill.
void pack_strips(const float* a, int64_t lda, int64_t k, int64_t rows, float* out) {
  const __m256i six = _mm256_setr_epi32(-1, -1, -1, -1, -1, -1, 0, 0);
  for (int64_t i = 0; i < k; ++i, a += lda)
    for (int64_t r = 0, s = 0; r < rows; r += kStrip, ++s) {
      const __m256 values =
          rows - r >= 8 ? load8(a + r) : load8_n(a + r, rows - r < kStrip ? rows - r : kStrip);
      float* to = out + (s * k + i) * kStrip;
      if (i + 1 < k)
        _mm256_storeu_ps(to, values);
      else
        _mm256_maskstore_ps(to, six, values);
    }
}

void widen(const uint16_t* from, int64_t n, float* to) {
  for (int64_t i = 0; i < n; i += 8) {
    const __m256 values = load8_n(from + i, n - i);
    if (n - i >= 8)
      _mm256_storeu_ps(to + i, values);
    else
      for (int64_t j = 0; j < n - i; ++j) to[i + j] = values[j];
  }
}

}  // namespace

constinit const GemmKernels kGemm = {.panel = panel,
                                     .turned = turned,
                                     .strips = strips,
                                     .columns = columns,
                                     .pack_panel = pack_panel,
                                     .pack_strips = pack_strips,
                                     .widen = widen};

}  // namespace vitrum::cpu::VITRUM_ISA
