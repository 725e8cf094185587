// A card for tests where there is none: the threads of a block, or of the blocks of a cluster,
// take turns on one host thread, with mbarriers, TMA and WGMMA as
// vitrum/cuda's primitives/tma.cuh and primitives/wgmma.cuh have them. Copies arrive late, by
// chance and in any order, and shared memory begins as NaN: a kernel that reads too soon, writes
// too soon or loses count of a barrier's phases gives a wrong result or stops. What it cannot show:
// how fast, and whether the hardware agrees.
//
// For source files that include none of the card's headers: it names things as they do, and folder
// emulated/ has it in their place.
#pragma once
#include "tests/support/emulated_block.h"

namespace vitrum::cuda {
using emulated::card;

// ---- primitives/device.cuh, norm/layer_norm.cuh and primitives/activation.cuh ----
constexpr int kWarp = 32;
struct bf16 {
  uint16_t bits;
};
struct Eight {
  float v[8];
};
template <class T>
struct Raw8 {
  bf16 part[8];
};
template <class T>
float rounded(float x) {
  return from_bf16(to_bf16(x));
}
static inline float to_float(bf16 x) { return from_bf16(x.bits); }
template <class T>
T from_float(float x) {
  return {to_bf16(x)};
}
static inline Eight load8(const float* p) {
  Eight x;
  std::copy_n(p, 8, x.v);
  return x;
}
static inline Raw8<bf16> load_raw(const bf16* p) {
  Raw8<bf16> raw;
  std::copy_n(p, 8, raw.part);
  return raw;
}
static inline void store_if(bool wanted, bf16* to, const Raw8<bf16>& raw) {
  if (wanted) std::copy_n(raw.part, 8, to);
}
static inline void store_raw(bf16* to, const Raw8<bf16>& raw) { store_if(true, to, raw); }
static inline Eight unpack(const Raw8<bf16>& raw) {
  Eight x;
  for (int i = 0; i < 8; ++i) x.v[i] = from_bf16(raw.part[i].bits);
  return x;
}
template <class T>
Raw8<bf16> pack(const Eight& x) {
  Raw8<bf16> raw;
  for (int i = 0; i < 8; ++i) raw.part[i] = {to_bf16(x.v[i])};
  return raw;
}
static inline Eight load8(const bf16* p) { return unpack(load_raw(p)); }
static inline void store8(bf16* p, const Eight& x) { store_if(true, p, pack<bf16>(x)); }
static inline uint32_t pack2(float low, float high) {
  return to_bf16(low) | static_cast<uint32_t>(to_bf16(high)) << 16;
}
static inline Raw8<bf16> add(const Raw8<bf16>& a, const Raw8<bf16>& b) {
  Eight x = unpack(a);
  const Eight y = unpack(b);
  for (int i = 0; i < 8; ++i) x.v[i] += y.v[i];
  return pack<bf16>(x);
}
static inline float warp_sum(float x) {
  for (int i = kWarp / 2; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
  return x;
}
template <int kLanes>
float row_sum(float x) {
  for (int i = kLanes / 2; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffffu, x, i);
  return x;
}
template <Act kAct, class T>
float activate(float x) {
  if (kAct == Act::kNone) return x;
  if (kAct == Act::kGeluTanh)
    return x / (1 + std::exp(-x * (1.595769122f + 0.0713548163f * x * x)));
  if (kAct == Act::kQuickGelu) return x / (1 + std::exp(-1.702f * x));
  return gelu_of(x, std::min(std::abs(x), kGeluEnd), [](float e) { return std::exp2(e); });
}
template <Act, class T>
float activation_derivative(float x) {
  return gelu_derivative_of(x, std::min(std::abs(x), kGeluEnd),
                            [](float e) { return std::exp2(e); });
}
static inline float exp2_approx(float x) { return std::exp2(x); }
static inline void trigger_dependents() {}
static inline void wait_on_previous_grid() {
  if (card.previous) std::exchange(card.previous, nullptr)();
}

// ---- primitives/wgmma.cuh ----
constexpr int kSwizzledRow = 128;
template <int>
void reg_dealloc() {}
template <int>
void reg_alloc() {}
template <int kThreads>
void sync_threads() {
  card.meet(card.kSome - card.rank(), kThreads);
}
static inline void wgmma_fence() {}
static inline void wgmma_commit() {}
template <int>
void wgmma_wait() {}
template <int kCount>
void fence_accumulators(float (&)[kCount]) {}
constexpr int permuted_accumulator(int part, int half, int i) {
  return 16 * part + 4 * (i / 2) + 2 * half + i % 2;
}
// A place in shared memory, as copies and products address it.
static inline size_t offset_of(const void* p) {
  return static_cast<size_t>(static_cast<const std::byte*>(p) - card.memory);
}
static inline std::byte* swizzled_place(size_t at, size_t swizzle = 128) {
  at ^= (at >> 7 & (swizzle / 16 - 1)) << 4;
  if (at + 2 > sizeof card.memory) card.fail("outside of shared memory");
  return card.memory + at;
}
static inline std::byte* swizzled(std::byte* matrix, int row, int piece) {
  return matrix + row * kSwizzledRow + ((piece ^ (row & 7)) << 4);
}
static inline void fence_async_proxy() {}
static inline void sync_warpgroup_2(int group) { card.meet(-10 - group, 128); }
static inline void sync_warpgroup(int group) { card.meet(-20 - group, 128); }
// primitives/turns.cuh
static inline void wait_for_turn(int group) { card.meet(-30 - group, 256); }
static inline void give_turn(int group) { card.arrive(-30 - group, 256); }
// As on the card: 16 bytes apart, with more above.
static inline uint64_t make_descriptor(const std::byte* matrix) { return offset_of(matrix) >> 4; }
// What a description says of the swizzle: rows as wide as that, eight of them a group. Without it
// 128 bytes.
static inline size_t swizzle_of(uint64_t matrix) {
  const uint64_t kind = matrix >> 62;
  const size_t bytes = size_t{256} >> (kind == 0 ? 1 : kind);
  if (kind != 0 && (matrix >> 32 & 0x3fff) != bytes / 2) card.fail("rows and swizzle differ");
  return bytes;
}
static inline float element(uint64_t matrix, int row, int k) {
  const size_t begin = (matrix & 0xffff) << 4, swizzle = swizzle_of(matrix);
  uint16_t bits;
  std::memcpy(&bits,
              swizzled_place(
                  begin + static_cast<size_t>(row) * swizzle + static_cast<size_t>(2 * k), swizzle),
              2);
  return from_bf16(bits);
}
// The sums of this thread, of N columns: + a(row, k) b(k, column).
template <int kCount, class A, class B>
void add_products(float (&d)[kCount], bool add, int row, const A& a, const B& b) {
  const int lane = card.current % kWarp;
  for (int i = 0; i < kCount; ++i) {
    float sum = add ? d[i] : 0;
    for (int k = 0; k < 16; ++k)
      sum += a(row + lane / 4 + i / 2 % 2 * 8, k) * b(k, 8 * (i / 4) + 2 * (lane % 4) + i % 2);
    d[i] = sum;
  }
}
static inline int warp_row() { return card.current % card.block_threads / kWarp % 4 * 16; }
template <int kCount>
void wgmma_ss(float (&d)[kCount], uint64_t a, uint64_t b, bool add) {
  add_products(
      d, add, warp_row(), [=](int row, int k) { return element(a, row, k); },
      [=](int k, int column) { return element(b, column, k); });
}
template <int kCount>
void wgmma_ss_at_bt(float (&d)[kCount], uint64_t a, uint64_t b, bool add) {
  add_products(
      d, add, warp_row(), [=](int row, int k) { return element(a, k, row); },
      [=](int k, int column) { return element(b, k, column); });
}
static inline void wgmma_ss_at(float (&d)[8], uint64_t a, uint64_t b, bool add) {
  add_products(
      d, add, warp_row(), [=](int row, int k) { return element(a, k, row); },
      [=](int k, int column) { return element(b, column, k); });
}
// The same of many columns, faster.
static inline void wgmma_ss_at(float (&d)[128], uint64_t a, uint64_t b, bool add) {
  const int lane = card.current % kWarp, row = card.current / kWarp % 4 * 16 + lane / 4;
  float left[2][16];
  for (int k = 0; k < 16; ++k)
    for (int half = 0; half < 2; ++half) left[half][k] = element(a, k, row + 8 * half);
  if (!add) std::fill_n(d, 128, 0.0f);
  for (int i = 0; i < 128; i += 4)
    for (int side = 0; side < 2; ++side)
      for (int k = 0; k < 16; ++k) {
        const float right = element(b, 2 * i + 2 * (lane % 4) + side, k);
        for (int half = 0; half < 2; ++half) d[i + 2 * half + side] += left[half][k] * right;
      }
}

// ---- primitives/mma.cuh ----
struct FragmentA {
  uint32_t r[4];
};
struct Tile {
  float v[4] = {0, 0, 0, 0};
};
static inline float half_of(uint64_t pair, int which) {
  return from_bf16(static_cast<uint16_t>(pair >> 16 * which));
}
// Element (row, k) of the left operand that a warp's lanes gave.
static inline float left_of(const std::array<uint64_t, 6>* lanes, int row, int k) {
  return half_of(lanes[row % 8 * 4 + k % 8 / 2][static_cast<size_t>(row / 8 + k / 8 * 2)], k % 2);
}
static inline void mma_m16n8k16(Tile& c, const FragmentA& a, uint32_t b0, uint32_t b1) {
  const auto* lanes = card.exchange<6>({a.r[0], a.r[1], a.r[2], a.r[3], b0, b1});
  add_products(
      c.v, true, 0, [=](int row, int k) { return left_of(lanes, row, k); },
      [=](int k, int column) {
        return half_of(lanes[column * 4 + k % 8 / 2][static_cast<size_t>(4 + k / 8)], k % 2);
      });
}
template <int kCount>
void wgmma_rs_bt(float (&d)[kCount], const FragmentA& a, uint64_t b, bool add = true) {
  const auto* lanes = card.exchange<4>({a.r[0], a.r[1], a.r[2], a.r[3]});
  add_products(
      d, add, 0, [=](int row, int k) { return left_of(lanes, row, k); },
      [=](int k, int column) { return element(b, k, column); });
}
// Four 8 x 8 matrices whose rows begin where the lanes say.
struct Four {
  const std::array<uint64_t, 6>* rows;
  explicit Four(const void* p) : rows(card.exchange<1>({reinterpret_cast<uint64_t>(p)})) {}
  uint16_t* at(int matrix, int row, int column) const {
    auto* p = reinterpret_cast<std::byte*>(rows[8 * matrix + row][0]) + 2 * column;
    if (p < card.memory || p + 2 > card.memory + sizeof card.memory)
      card.fail("outside of shared memory");
    return reinterpret_cast<uint16_t*>(p);
  }
  // Calls with this lane's part of every matrix: register, half of it, element.
  template <class Part>
  void parts(bool transposed, const Part& part) const {
    const int lane = card.current % kWarp;
    for (int i = 0; i < 8; ++i) {
      const int row = lane / 4, column = 2 * (lane % 4) + i % 2;
      part(i / 2, 16 * (i % 2), at(i / 2, transposed ? column : row, transposed ? row : column));
    }
  }
};
static inline void load_parts(uint32_t (&r)[4], const void* p, bool transposed) {
  const Four four(p);
  for (uint32_t& x : r) x = 0;
  four.parts(transposed,
             [&](int i, int shift, const uint16_t* from) { r[i] |= uint32_t{*from} << shift; });
}
static inline void store_parts(void* p, const uint32_t (&r)[4], bool transposed) {
  const Four four(p);
  four.parts(transposed,
             [&](int i, int shift, uint16_t* to) { *to = static_cast<uint16_t>(r[i] >> shift); });
}
static inline void ldmatrix_x4(uint32_t (&r)[4], const bf16* p) { load_parts(r, p, false); }
static inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* p) { load_parts(r, p, true); }
static inline void stmatrix_x4(void* p, const uint32_t (&r)[4]) { store_parts(p, r, false); }
static inline void stmatrix_x4_trans(void* p, const uint32_t (&r)[4]) { store_parts(p, r, true); }
static inline void cp_async_16(void* to, const void* from) {
  card.threads[static_cast<size_t>(card.current)].copies.push_back(
      [=] { std::memcpy(to, from, 16); });
}
static inline void cp_async_wait_all() {
  for (const auto& copy : std::exchange(card.threads[static_cast<size_t>(card.current)].copies, {}))
    copy();
}

// ---- primitives/tma.cuh ----
static inline void mbarrier_init(uint64_t* barrier, int arrivals) {
  card.barriers[barrier] = {arrivals, arrivals};
}
static inline void fence_barrier_init() {}
static inline void mbarrier_arrive_expect_tx(uint64_t* barrier, int bytes) {
  emulated::Barrier& b = card.barriers.at(barrier);
  if (b.pending == 0) card.fail("a barrier has more arrivals than it waits for");
  --b.pending, b.bytes += bytes;
  b.complete_phase();
}
static inline void mbarrier_arrive(uint64_t* barrier) { mbarrier_arrive_expect_tx(barrier, 0); }
static inline void mbarrier_wait(uint64_t* barrier, uint32_t parity) {
  const emulated::Barrier& b = card.barriers.at(barrier);
  while ((b.phase & 1) == parity) card.yield();
}
static inline bool mbarrier_test(uint64_t* barrier, uint32_t parity) {
  return (card.barriers.at(barrier).phase & 1) != parity;
}
static inline int fetch_add_shared(int* counter) { return (*counter)++; }
template <int kSize>
struct PipelineState {
  int index = 0;
  uint32_t phase = 0;
  void advance() {
    if (++index == kSize) index = 0, phase ^= 1;
  }
};
// body(element of the tensor or null, where it is in shared memory) for every element of a box.
static inline void for_box(const CUtensorMap& map, size_t begin, const std::vector<int64_t>& from,
                           const auto& body) {
  int64_t count = 1;
  for (int64_t n : map.box) count *= n;
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i, offset = 0;
    bool inside = true;
    for (size_t k = 0; k < map.box.size(); rest /= map.box[k++]) {
      const int64_t at = from[k] + rest % map.box[k];
      inside &= at >= 0 && at < map.sizes[k], offset += at * map.strides[k];
    }
    body(inside ? map.data + offset : nullptr,
         swizzled_place(begin + 2 * static_cast<size_t>(i), map.swizzle));
  }
}
static inline int64_t due() {
  return card.now + 1 + (card.most_late > 0 ? card.chance.below(card.most_late) : 0);
}
// What lies at p here, in block `rank` of the cluster.
template <class T>
T* in_block(T* p, int rank) {
  const auto apart = static_cast<ptrdiff_t>(emulated::kSharedBytes) * (rank - card.rank());
  return reinterpret_cast<T*>(reinterpret_cast<std::byte*>(p) + apart);
}
static inline void load(const CUtensorMap& map, void* to, uint64_t* barrier,
                        const std::vector<int64_t>& from) {
  const auto copy = [=, &map, begin = offset_of(to)] {
    int64_t bytes = 0;
    for_box(map, begin, from, [&](const uint16_t* x, std::byte* at) {
      const uint16_t bits = x ? *x : 0;
      std::memcpy(at, &bits, 2), bytes += 2;
    });
    emulated::Barrier& b = card.barriers.at(barrier);
    b.bytes -= bytes;
    b.complete_phase();
  };
  card.copies.push_back({due(), copy});
}
static inline void tma_load_2d(const CUtensorMap& map, void* to, uint64_t* barrier, int column,
                               int row) {
  load(map, to, barrier, {column, row});
}
static inline void tma_load_5d(const CUtensorMap& map, void* to, uint64_t* barrier, int column,
                               int group) {
  load(map, to, barrier, {column, 0, 0, 0, group});
}

// To several blocks: each block's copy arrives when it does.
static inline void tma_load_2d(const CUtensorMap& map, void* to, uint64_t* barrier, int column,
                               int row, uint16_t blocks) {
  for (int rank = 0; rank < card.cluster; ++rank)
    if (blocks >> rank & 1) load(map, in_block(to, rank), in_block(barrier, rank), {column, row});
}
static inline void tma_load_5d(const CUtensorMap& map, void* to, uint64_t* barrier, int column,
                               int group, uint16_t blocks) {
  for (int rank = 0; rank < card.cluster; ++rank)
    if (blocks >> rank & 1)
      tma_load_5d(map, in_block(to, rank), in_block(barrier, rank), column, group);
}
static inline void tma_load_3d(const CUtensorMap& map, void* to, uint64_t* barrier, int column,
                               int row, int image) {
  load(map, to, barrier, {column, row, image});
}
static inline void tma_load_4d(const CUtensorMap& map, void* to, uint64_t* barrier, int channel,
                               int column, int line, int image) {
  load(map, to, barrier, {channel, column, line, image});
}
static inline void store(const CUtensorMap& map, const void* from, const std::vector<int64_t>& to) {
  emulated::Thread& thread = card.threads[static_cast<size_t>(card.current)];
  const auto copy = [=, &map, &thread, begin = offset_of(from)] {
    for_box(map, begin, to, [](const uint16_t* x, const std::byte* at) {
      if (x) std::memcpy(const_cast<uint16_t*>(x), at, 2);
    });
    --thread.stores;
  };
  ++thread.stores;
  card.copies.push_back({due(), copy});
}
static inline void tma_store_2d(const CUtensorMap& map, const void* from, int column, int row) {
  store(map, from, {column, row});
}
static inline void tma_store_3d(const CUtensorMap& map, const void* from, int column, int row,
                                int image) {
  store(map, from, {column, row, image});
}
static inline void tma_store_4d(const CUtensorMap& map, const void* from, int channel, int column,
                                int line, int image) {
  store(map, from, {channel, column, line, image});
}
static inline void tma_store_wait() {
  while (card.threads[static_cast<size_t>(card.current)].stores > 0) card.yield();
}
static inline int cluster_rank() { return card.rank(); }
static inline void sync_cluster() {
  card.meet(card.kCluster, static_cast<int>(card.threads.size()));
}
static inline void mbarrier_arrive_cluster(uint64_t* barrier, int rank) {
  mbarrier_arrive(in_block(barrier, rank));
}
static inline void store4_cluster(float* to, int rank, const float* v) {
  std::copy_n(v, 4, in_block(to, rank));
}

}  // namespace vitrum::cuda
