// Which kernel computes an attention: a function of shape, type, extras and card. Host only. Each
// kernel declares what it takes; tests/cuda/choose_test.cpp holds choices against that over a grid
// of shapes, and docs/kernels.md has the table.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <string_view>

#include "vitrum/core/dtype.h"
#include "vitrum/core/philox.h"
#include "vitrum/cuda/host/card_info.h"

namespace vitrum::cuda {

struct AttentionTask {
  int64_t images = 1, tokens = 1, heads = 1, size = 64;  // size of a head
  DType dtype = DType::kBF16;
  bool backward = false;
  bool drop = false, bias = false, mask = false;
  bool writes = true;   // y, or dqkv; where not: lse, or the bias' gradient, alone
  bool aligned = true;  // every address to 16 bytes; before memory is planned it is taken to be

  int64_t all_heads() const { return images * heads; }
};

enum class AttentionKernel : uint8_t {
  kOneTile,
  kShort,
  kSmem,
  kChunked,
  kWgmma,
  kMmaSync,
  kPlain
};

constexpr std::string_view name_of(AttentionKernel kernel) {
  constexpr std::string_view kNames[] = {"one_tile", "short",    "smem", "chunked",
                                         "wgmma",    "mma_sync", "plain"};
  return kNames[static_cast<size_t>(kernel)];
}

// ---- what each takes ----

// Extras, one bit each.
enum AttentionExtra : uint32_t {
  kTakesF32 = 1,
  kTakesDrop = 2,
  kTakesBias = 4,  // and the bias' gradient
  kTakesMask = 8,
  kTakesUnaligned = 16,
  kTakesNoResult = 32,
};
struct AttentionLimits {
  int64_t min_tokens = 1, max_tokens = INT32_MAX;
  int64_t min_size = 1, max_size = 256, size_step = 1;
  bool needs_tma_wgmma = false;
  size_t shared_memory = 0;  // bytes; of the others a plan says how much
  uint32_t takes = 0;
  bool adds_columns = false;  // backward: a CTA has all rows of a head, and adds up their columns
};

constexpr size_t kShortBytes = 97'280;  // the most that attention/short.cu asks for

constexpr AttentionLimits limits_of(AttentionKernel kernel, bool backward) {
  switch (kernel) {
    case AttentionKernel::kOneTile:
      return {.min_tokens = 17,
              .max_tokens = 65,
              .min_size = 64,
              .max_size = 64,
              .needs_tma_wgmma = true,
              .takes = backward ? 0u : kTakesNoResult,
              .adds_columns = true};
    case AttentionKernel::kShort:
      return {.max_tokens = 80,
              .min_size = 8,
              .max_size = 64,
              .size_step = 8,
              .shared_memory = kShortBytes,
              .takes = kTakesBias | kTakesMask | kTakesNoResult,
              .adds_columns = true};
    case AttentionKernel::kSmem:
      return {.min_tokens = 81,
              .max_tokens = 208,
              .min_size = 32,
              .max_size = 64,
              .size_step = 32,
              .needs_tma_wgmma = true,
              .takes = 0,
              .adds_columns = true};
    case AttentionKernel::kChunked:
      // Forward, each of three warpgroups needs a tile of queries.
      return {.min_tokens = backward ? 209 : 129,
              .max_tokens = backward ? 600 : 1 << 15,
              .min_size = 64,
              .max_size = backward ? 64 : 80,
              .size_step = backward ? 1 : 8,
              .needs_tma_wgmma = true,
              .takes = backward ? 0u : kTakesBias,
              .adds_columns = true};
    case AttentionKernel::kWgmma:
      return {.min_tokens = 97,
              .min_size = 64,
              .max_size = 64,
              .needs_tma_wgmma = true,
              .takes = kTakesNoResult};
    case AttentionKernel::kMmaSync:
      return {.min_size = 8,
              .max_size = 192,
              .size_step = 8,
              .takes = kTakesDrop | kTakesBias | kTakesMask | kTakesNoResult};
    case AttentionKernel::kPlain: break;
  }
  return {.takes =
              kTakesF32 | kTakesDrop | kTakesBias | kTakesMask | kTakesUnaligned | kTakesNoResult};
}

inline uint32_t extras_of(const AttentionTask& task) {
  return (task.dtype != DType::kBF16 ? kTakesF32 : 0u) | (task.drop ? kTakesDrop : 0u) |
         (task.bias ? kTakesBias : 0u) | (task.mask ? kTakesMask : 0u) |
         (!task.aligned ? kTakesUnaligned : 0u) | (!task.writes ? kTakesNoResult : 0u);
}

// Whether the kernel computes the task at all, however fast.
inline bool takes(AttentionKernel kernel, const CardInfo& card, const AttentionTask& task) {
  const AttentionLimits limits = limits_of(kernel, task.backward);
  return (extras_of(task) & ~limits.takes) == 0 && task.tokens >= limits.min_tokens &&
         task.tokens <= limits.max_tokens && task.size >= limits.min_size &&
         task.size <= limits.max_size && task.size % limits.size_step == 0 &&
         card.shared_memory >= limits.shared_memory &&
         (card.has_tma_wgmma || !limits.needs_tma_wgmma);
}

// ---- plans: what a launch needs, where shared memory allows it ----

// attention/wgmma.cu: how many warpgroups a CTA has, and over how many CTAs a head is divided.
struct WgmmaPlan {
  int keys = 0;              // forward: of a product
  bool splits_keys = false;  // forward: two warpgroups have the same queries and half of the keys
  int groups = 0;
  unsigned blocks_a_head = 1;
  size_t bytes = 0;  // of shared memory
};

namespace wgmma_limits {
constexpr int64_t kTile = 64, kRowBytes = 128, kHalf = 112;
constexpr size_t kTileBytes = kTile * kRowBytes, kSlack = 1024;  // slack: to align the first matrix
}  // namespace wgmma_limits

// As many warpgroups on an SM as registers allow (`most`), one a CTA where shared memory lets as
// many CTAs in.
inline std::optional<WgmmaPlan> spread_warpgroups(const CardInfo& card, int most, int64_t all_heads,
                                                  int64_t tiles, size_t shared, size_t per_group) {
  WgmmaPlan plan;
  for (int groups = 1; groups <= most && plan.groups == 0; ++groups) {
    const size_t bytes = shared + static_cast<size_t>(groups) * per_group;
    const bool all_fit =
        static_cast<size_t>(most) * bytes <= static_cast<size_t>(groups) * card.shared_memory;
    if (bytes <= card.shared_memory && (groups == most || all_fit)) plan.groups = groups;
  }
  if (plan.groups == 0) return {};
  const bool few = all_heads < card.processors;
  plan.groups = few ? 1 : static_cast<int>(std::min<int64_t>(plan.groups, tiles));
  plan.bytes = shared + static_cast<size_t>(plan.groups) * per_group;
  plan.blocks_a_head = few ? static_cast<unsigned>(tiles) : 1;
  return plan;
}

inline std::optional<WgmmaPlan> plan_wgmma(const CardInfo& card, const AttentionTask& task) {
  using namespace wgmma_limits;
  const auto padded = [&](int64_t n) { return (task.tokens + n - 1) / n * n; };
  const int64_t tiles = padded(kTile) / kTile, heads = task.all_heads();
  if (task.backward) {
    const size_t terms = 2 * sizeof(float) * static_cast<size_t>(tiles * kTile);
    return spread_warpgroups(card, 2, heads, tiles,
                             static_cast<size_t>(2 * padded(16) * kRowBytes) + terms + kSlack,
                             2 * kTileBytes);
  }
  if (task.tokens > kHalf && task.tokens <= 2 * kHalf && heads < card.processors)
    return WgmmaPlan{.keys = kHalf, .splits_keys = true, .groups = 2};
  const int keys = padded(208) <= padded(144) ? 208 : 144;
  auto plan =
      spread_warpgroups(card, 3, heads, tiles,
                        static_cast<size_t>(2 * padded(keys) * kRowBytes) + kSlack, kTileBytes);
  if (plan) plan->keys = keys;
  return plan;
}

// attention/mma_sync.cu: rows of the two resident matrices, all or as many as fit.
struct MmaSyncPlan {
  int rows = 0, tokens16 = 0;
  size_t bytes = 0;  // of shared memory
};

inline std::optional<MmaSyncPlan> plan_mma_sync(const CardInfo& card, const AttentionTask& task) {
  constexpr int64_t kChunk = 64, kPad = 8;
  MmaSyncPlan plan;
  plan.tokens16 = static_cast<int>((task.tokens + 15) / 16 * 16);
  // Heads of 97 to 128 values have one instantiation, those of more another.
  const int64_t width = task.size > 128 ? 192 : task.size > 96 ? 128 : (task.size + 15) / 16 * 16;
  const size_t bits = task.drop ? static_cast<size_t>(task.tokens * draws_per_row(task.tokens)) : 0;
  const size_t row = static_cast<size_t>(2 * (width + kPad)) * sizeof(uint16_t);
  const size_t rest =
      bits + (task.backward ? 2 * sizeof(float) * static_cast<size_t>(plan.tokens16) : 0);
  const size_t room = card.shared_memory > rest ? (card.shared_memory - rest) / row : 0;
  plan.rows = static_cast<int>(
      std::min<int64_t>(plan.tokens16, static_cast<int64_t>(room) / kChunk * kChunk));
  if (plan.rows == 0) return {};  // the dropout bits of a very long sequence
  plan.bytes = static_cast<size_t>(plan.rows) * row + rest;
  return plan;
}

// attention/mma_sync_wide.cu, 32 queries a warp: enough queries and heads, of usual sizes.
inline bool is_wide_mma_sync(const CardInfo& card, const AttentionTask& task) {
  const int64_t steps = (task.size + 15) / 16;
  return !task.backward && !task.drop && task.writes && task.tokens >= 128 &&
         (steps == 2 || steps == 4 || steps == 5) && task.all_heads() >= 2 * card.processors &&
         task.all_heads() <= INT32_MAX;
}

// ---- the choice ----

struct AttentionChoice {
  AttentionKernel kernel = AttentionKernel::kPlain;
  int keys = 0;  // of a product, where there is a choice: smem, chunked and wgmma
  bool splits_keys = false;
  bool adds_columns = false;
};

// Enough heads to give every SM one, of few enough kinds that a CTA can stay with one.
inline bool has_many_heads(const CardInfo& card, const AttentionTask& task) {
  return task.all_heads() >= card.processors && 2 * task.heads <= card.processors &&
         task.images < INT32_MAX;
}

inline int keys_of_smem(int64_t tokens, int64_t size) {
  return tokens > 200 ? 208 : tokens > 144 || size < 64 ? 200 : 144;
}
// As few as possible beyond the last token; up to 600 tokens, a head's chunks in the three slots.
// Heads of more than 64 values: what there is room for.
inline int keys_of_chunk(int64_t tokens, int64_t size) {
  if (size > 64) return 136;
  const auto padded = [&](int64_t n) { return (tokens + n - 1) / n * n; };
  const bool needs_large = tokens > 3 * 144 && tokens <= 600;
  return needs_large || padded(200) <= padded(144) ? 200 : 144;
}
// How often they are brought: once, or for every three tiles of 64 queries.
inline int rounds_of_chunks(int64_t tokens, int64_t chunks) {
  return chunks <= 3 ? 1 : static_cast<int>((tokens + 3 * 64 - 1) / (3 * 64));
}

inline AttentionChoice choose_attention(const CardInfo& card, const AttentionTask& task) {
  using enum AttentionKernel;
  const auto chosen = [&](AttentionKernel kernel, int keys = 0, bool splits_keys = false) {
    return AttentionChoice{kernel, keys, splits_keys,
                           limits_of(kernel, task.backward).adds_columns};
  };
  const auto can = [&](AttentionKernel kernel) { return takes(kernel, card, task); };
  if (can(kOneTile)) return chosen(kOneTile);
  if (can(kShort)) return chosen(kShort);
  if (can(kSmem) && has_many_heads(card, task))
    return chosen(kSmem, keys_of_smem(task.tokens, task.size));
  if (can(kChunked) && has_many_heads(card, task))
    return chosen(kChunked, keys_of_chunk(task.tokens, task.size));
  if (can(kWgmma))
    if (const auto plan = plan_wgmma(card, task))
      return chosen(kWgmma, plan->keys, plan->splits_keys);
  if (can(kMmaSync) && plan_mma_sync(card, task)) return chosen(kMmaSync);
  return chosen(kPlain);
}

}  // namespace vitrum::cuda
