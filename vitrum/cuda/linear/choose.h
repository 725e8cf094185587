// Which kernel computes a linear layer, alone or with its neighbours: functions of shape, type,
// extras and card. Host only. Each kernel declares what it takes; tests/cuda/choose_test.cpp holds
// choices against that over a grid of shapes, and docs/kernels.md has the table.
#pragma once
#include <cstdint>
#include <string_view>

#include "vitrum/core/dtype.h"
#include "vitrum/cuda/host/card_info.h"
#include "vitrum/graph/op.h"

namespace vitrum::cuda {

// y (rows, columns) = x (rows, depth) w^T: M, N and K of the GEMM.
struct LinearTask {
  int64_t rows = 1, columns = 1, depth = 1;
  Act act = Act::kNone;
  bool drop = false;
  bool bf16 = true;     // x, w, bias and y
  bool saves = false;   // pre-activations are wanted, too
  bool frozen = false;  // weights never change
  bool writes = true;   // y is wanted
  bool aligned = true;  // every address to 16 bytes; before memory is planned it is taken to be
};

enum class LinearKernel : uint8_t { kSmallM, kSmallK, kTileGelu, kCublas };

constexpr std::string_view name_of(LinearKernel kernel) {
  constexpr std::string_view kNames[] = {"small_m", "small_k", "tile_gelu", "cublas"};
  return kNames[static_cast<size_t>(kernel)];
}

// ---- what each takes ----

enum LinearExtra : uint32_t {
  kTakesNoAct = 1,
  kTakesGelu = 2,
  kTakesOtherAct = 4,
  kTakesDropout = 8,
  kTakesSaved = 16,     // writes pre-activations
  kTakesChanging = 32,  // weights that may change
  kTakesOtherTypes = 64,
  kTakesUnalignedRows = 128,
  kTakesNoY = 256,
  kTakesGeluForms = 512,  // by tanh, and QuickGELU
};
struct LinearLimits {
  int64_t min_rows = 1, max_rows = INT64_MAX, max_columns = INT64_MAX;
  int64_t min_depth = 1, max_depth = INT64_MAX;
  int64_t column_steps[2] = {1, 1};  // either divides the columns
  uint32_t takes = 0;
  bool needs_tma_wgmma = true;
};

constexpr LinearLimits limits_of(LinearKernel kernel) {
  constexpr int64_t kMostRows = INT32_MAX / 2 - 1;
  switch (kernel) {
    // Beyond 512 rows it has not been held against other GEMMs.
    case LinearKernel::kSmallM:
      return {.max_rows = 512, .column_steps = {96, 128}, .takes = kTakesNoAct | kTakesGelu};
    // Fewer rows leave half of the SMs idle; more columns, few CTAs below each other.
    case LinearKernel::kSmallK:
      return {.min_rows = 8192,
              .max_rows = kMostRows,
              .max_columns = 2048,
              .min_depth = 64,
              .max_depth = 256,
              .column_steps = {256, 192},
              .takes = kTakesNoAct | kTakesGelu | kTakesSaved | kTakesChanging};
    // With less depth memory is what takes the time.
    case LinearKernel::kTileGelu:
      return {.max_rows = kMostRows,
              .min_depth = 384,
              .column_steps = {256, 256},
              .takes = kTakesGelu | kTakesGeluForms | kTakesSaved | kTakesChanging};
    case LinearKernel::kCublas: break;
  }
  return {.takes = ~0u, .needs_tma_wgmma = false};
}

constexpr uint32_t extra_of(Act act) {
  switch (act) {
    case Act::kNone: return kTakesNoAct;
    case Act::kGelu: return kTakesGelu;
    case Act::kGeluTanh:
    case Act::kQuickGelu: return kTakesGeluForms;
    default: return kTakesOtherAct;
  }
}

inline uint32_t extras_of(const LinearTask& task) {
  return extra_of(task.act) | (task.drop ? kTakesDropout : 0u) | (task.saves ? kTakesSaved : 0u) |
         (!task.frozen ? kTakesChanging : 0u) | (!task.bf16 ? kTakesOtherTypes : 0u) |
         (!task.writes ? kTakesNoY : 0u) |
         (!task.aligned || task.depth % 8 != 0 || task.columns % 8 != 0 ? kTakesUnalignedRows : 0u);
}

inline bool takes(LinearKernel kernel, const CardInfo& card, const LinearTask& task) {
  const LinearLimits limits = limits_of(kernel);
  const bool columns_fit =
      task.columns % limits.column_steps[0] == 0 || task.columns % limits.column_steps[1] == 0;
  return (extras_of(task) & ~limits.takes) == 0 && columns_fit && task.rows >= limits.min_rows &&
         task.rows <= limits.max_rows && task.columns <= limits.max_columns &&
         task.depth >= limits.min_depth && task.depth <= limits.max_depth &&
         (card.has_tma_wgmma || !limits.needs_tma_wgmma);
}

// ---- plans ----

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Whether so many tiles, each a cluster's, leave few SMs idle in the last wave.
inline bool fills(const CardInfo& card, int64_t tiles, int cluster) {
  constexpr int64_t kMinWaves = 4;
  const int64_t clusters = card.processors / cluster, waves = ceil_div(tiles, clusters);
  return waves >= kMinWaves && 10 * tiles >= 9 * waves * clusters;
}
// For linear/tile.cuh: tiles of 256 x 256 a cluster of two.
inline int64_t cluster_tiles(int64_t rows, int64_t columns) {
  return ceil_div(rows, 256) * ceil_div(columns, 256);
}
inline bool fills_with_tiles(const CardInfo& card, int64_t rows, int64_t columns) {
  return fills(card, cluster_tiles(rows, columns), 2);
}

// linear/small_m.cu: columns of a tile (0: none suits), and split-K.
struct SmallMPlan {
  int columns = 0, splits = 1;
};
// Of so many tiles and steps of 128 bytes of depth.
inline int small_m_splits(const CardInfo& card, int64_t tiles, int64_t steps) {
  constexpr int64_t kMinSteps = 6, kMaxSplits = 4;
  // Clusters of more than two do not come to lie on all SMs, and a split of a few steps wins
  // nothing.
  const auto fits = [&](int splits) {
    const int64_t room = splits > 2 ? card.processors * 3 / 4 : card.processors;
    return splits * tiles <= room && splits * kMinSteps <= steps;
  };
  int splits = 1;
  while (splits < kMaxSplits && fits(splits + 1)) ++splits;
  return splits;
}
inline SmallMPlan plan_small_m(const CardInfo& card, const LinearTask& task) {
  constexpr int64_t kRows = 64, kDepth = 64;
  const int64_t high = ceil_div(task.rows, kRows), steps = ceil_div(task.depth, kDepth);
  const auto tiles = [&](int columns) { return high * (task.columns / columns); };
  // Where there are many tiles, wide ones load less.
  const bool many = 2 * tiles(96) > card.processors;
  const int columns = task.columns % 96 != 0 || (many && task.columns % 128 == 0) ? 128 : 96;
  if (task.columns % columns != 0) return {};
  return {columns, small_m_splits(card, tiles(columns), steps)};
}

// ---- e4m3 ----

// A layer of e4m3 (linear/e4m3.cuh), whose widths 32 divides: few rows as linear/small_m.cuh has
// them, else tiles of linear/tile.cuh, the last of which may lie partly beside the columns.
enum class E4M3Kernel : uint8_t { kNone, kSmallM, kTile };

constexpr std::string_view name_of(E4M3Kernel kernel) {
  constexpr std::string_view kNames[] = {"none", "e4m3 small_m", "e4m3 tile"};
  return kNames[static_cast<size_t>(kernel)];
}
inline E4M3Kernel choose_e4m3(const CardInfo& card, const LinearTask& task) {
  using enum E4M3Kernel;
  if (!card.has_tma_wgmma || task.columns % 32 != 0 || task.depth % 32 != 0 ||
      task.rows >= INT32_MAX / 2)
    return kNone;
  return task.rows <= limits_of(LinearKernel::kSmallM).max_rows && task.columns % 128 == 0 ? kSmallM
                                                                                           : kTile;
}
inline SmallMPlan plan_small_m_e4m3(const CardInfo& card, const LinearTask& task) {
  const int64_t tiles = ceil_div(task.rows, 64) * (task.columns / 128);
  return {128, small_m_splits(card, tiles, ceil_div(task.depth, 128))};
}
// Activations that can be rounded before they leave the product.
constexpr bool leaves_e4m3(Act act) {
  return act == Act::kGelu || act == Act::kGeluTanh || act == Act::kQuickGelu;
}

// ---- choices ----

inline LinearKernel choose_linear(const CardInfo& card, const LinearTask& task) {
  using enum LinearKernel;
  const auto can = [&](LinearKernel kernel) { return takes(kernel, card, task); };
  if (can(kSmallM)) return kSmallM;
  // Columns in steps of 192 only with GELU; without it there is nothing to save beside y.
  const bool plain = task.act == Act::kNone;
  if (can(kSmallK) && !(plain && (task.saves || task.columns % 256 != 0))) return kSmallK;
  if (can(kTileGelu) && fills_with_tiles(card, task.rows, task.columns)) return kTileGelu;
  return kCublas;
}

// The layer's result goes through a residual branch into AddLayerNorm. kNarrow: one kernel for all
// of it (linear/linear_norm.cu). kTile: the residual sum is the GEMM's epilogue, the norm follows.
enum class LinearNormKernel : uint8_t { kNone, kNarrow, kTile };

// What a large GEMM with an epilogue of our own (linear/tile.cuh) asks of its layer.
inline bool takes_tile_epilogue(const CardInfo& card, const LinearTask& task) {
  return card.has_tma_wgmma && !task.drop && !task.saves && task.bf16 && task.depth % 8 == 0 &&
         task.rows < INT32_MAX / 2 && task.columns % 256 == 0 &&
         fills_with_tiles(card, task.rows, task.columns);
}

inline LinearNormKernel choose_linear_norm(const CardInfo& card, const LinearTask& task) {
  constexpr int64_t kMinRows = 8192;  // half of the SMs would be idle with fewer
  if (!card.has_tma_wgmma || task.act != Act::kNone || task.drop || !task.bf16)
    return LinearNormKernel::kNone;
  if ((task.columns == 192 || task.columns == 256) && task.depth % 8 == 0 &&
      task.rows >= kMinRows && task.rows < INT32_MAX / 2)
    return LinearNormKernel::kNarrow;
  return task.columns <= 4 * 256 && takes_tile_epilogue(card, task) ? LinearNormKernel::kTile
                                                                    : LinearNormKernel::kNone;
}

// Two linear layers with the residual sum and its LayerNorm between them, the norm folded into the
// second one's weights, which therefore never change; nobody wants the norm's statistics.
enum class LinearNormLinearKernel : uint8_t { kNone, kSmallM, kTile };

inline LinearNormLinearKernel choose_linear_norm_linear(const CardInfo& card,
                                                        const LinearTask& first,
                                                        const LinearTask& second) {
  constexpr int64_t kMaxTiles = 16;  // of a row that the norm is of
  using enum LinearNormLinearKernel;
  if (first.act != Act::kNone) return kNone;
  if (takes(LinearKernel::kSmallM, card, first) && takes(LinearKernel::kSmallM, card, second) &&
      first.columns <= kMaxTiles * plan_small_m(card, first).columns)
    return kSmallM;
  const bool act_fits = extra_of(second.act) != kTakesOtherAct;
  if (second.frozen && act_fits && first.columns > 256 && first.columns <= 4 * 256 &&
      second.columns <= 4096 && takes_tile_epilogue(card, first) &&
      takes_tile_epilogue(card, second))
    return kTile;
  return kNone;
}

// A layer of queries, keys and values of heads of 64 that rotary positions turn: the rotation is
// the epilogue of linear/tile.cuh.
inline bool fuses_rotation(const CardInfo& card, const LinearTask& task, int64_t head) {
  return head == 64 && task.act == Act::kNone && task.depth >= 384 &&
         takes_tile_epilogue(card, task);
}

// A layer of gates and values, whose gated activation is the epilogue of linear/tile.cuh.
inline bool fuses_gate(const CardInfo& card, const LinearTask& task, Act gate) {
  return gate == Act::kSilu && task.act == Act::kNone && task.depth >= 384 &&
         takes_tile_epilogue(card, task);
}

// cuBLASLt's own epilogue is GELU by tanh, unless what went into it is wanted, too.
inline bool fuses_gelu_tanh(const LinearTask& task) {
  return task.act == Act::kGeluTanh && task.bf16 && !task.drop && !task.saves && task.writes &&
         task.aligned && task.columns % 8 == 0 && task.depth % 8 == 0;
}

// A layer of inference whose result is added to another tensor, scaled by channel before or not, is
// one product of cuBLASLt; smaller ones have kernels without it.
inline bool adds_residual(const CardInfo& card, const LinearTask& task) {
  return task.frozen && task.act == Act::kNone && task.bf16 && !task.drop && !task.saves &&
         task.columns % 8 == 0 && task.depth % 8 == 0 &&
         choose_linear(card, task) == LinearKernel::kCublas;
}

// Backward through linear -> GELU -> linear: d (rows, columns) = dy (rows, depth) w, times GELU's
// derivative; columns and depth are those of that product.
enum class GeluBwdKernel : uint8_t { kNone, kSmallK, kTile };

inline GeluBwdKernel choose_gelu_bwd(const CardInfo& card, const LinearTask& task) {
  if (!card.has_tma_wgmma || !task.bf16 || task.depth % 8 != 0 || task.rows >= INT32_MAX / 2)
    return GeluBwdKernel::kNone;
  if (task.columns % 128 == 0 && task.columns <= 2048 && task.depth >= 64 && task.depth <= 256 &&
      task.rows >= 8192)
    return GeluBwdKernel::kSmallK;
  return task.depth >= 384 && task.columns % 256 == 0 &&
                 fills_with_tiles(card, task.rows, task.columns)
             ? GeluBwdKernel::kTile
             : GeluBwdKernel::kNone;
}

// The gradient of a layer's input, (rows, columns) = dy (rows, depth) w, where that goes to the
// backward pass of a LayerNorm alone: one kernel (linear/linear_norm_bwd.cu)?
inline bool fuses_linear_norm_bwd(const CardInfo& card, const LinearTask& task) {
  constexpr int64_t kMinRows = 8192;  // half of the SMs would be idle with fewer
  const bool narrow = task.columns == 96 || task.columns == 192 || task.columns == 256;
  return card.has_tma_wgmma && narrow && task.bf16 && task.depth % 8 == 0 &&
         task.rows >= kMinRows && task.rows * task.columns <= INT32_MAX;
}

}  // namespace vitrum::cuda
