// The threads of a block, or of the blocks of a cluster, where there is no card: see
// support/emulated_card.h.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "vitrum/core/dtype.h"
#include "vitrum/core/philox.h"
#include "vitrum/cuda/primitives/gelu.h"
#include "vitrum/graph/op.h"

#define __device__
#define __host__
#define __shared__
#define __align__(bytes)
#define __forceinline__ inline
#define __CUDA_ARCH_FEAT_SM90_ALL

namespace vitrum::emulated {

constexpr size_t kSharedBytes = 232'448;  // of a block
constexpr int kMaxBlocks = 4;             // of a cluster
}  // namespace vitrum::emulated
namespace vitrum::cuda {
// As kernels call shared memory.
alignas(1024) inline std::byte tiles[emulated::kMaxBlocks * emulated::kSharedBytes];
}  // namespace vitrum::cuda

namespace vitrum::emulated {

// A barrier in shared memory: `pending` arrivals and `bytes` are missing in this phase.
struct Barrier {
  int arrivals = 0, pending = 0;
  int64_t bytes = 0, phase = 0;
  void complete_phase() {
    if (pending == 0 && bytes == 0) ++phase, pending = arrivals;
  }
};
struct Meeting {
  int here = 0;
  int64_t times = 0;
};
struct Thread {
  ucontext_t context;
  std::vector<char> stack;
  bool done = false;
  int stores = 0;                             // of boxes whose source has not been read
  std::vector<std::function<void()>> copies;  // by cp.async: done when it waits for them
};
struct Copy {
  int64_t due;
  std::function<void()> arrive;
};

struct Card {
  std::byte (&memory)[kMaxBlocks * kSharedBytes] = cuda::tiles;
  std::vector<Thread> threads;
  int current = 0, block = 0, blocks = 1;  // block: the first of the cluster
  int block_y = 0, blocks_y = 1;
  int cluster = 1, block_threads = 0;
  ucontext_t scheduler;
  std::map<const void*, Barrier> barriers;
  std::map<int, Meeting> meetings;  // of warps, of a block, of some threads of it, of the cluster
  static constexpr int kCluster = -1, kAll = -2, kSome = -6;  // less the block's rank
  std::vector<std::array<uint64_t, 6>> exchanged = std::vector<std::array<uint64_t, 6>>(1024);
  std::vector<Copy> copies;
  int64_t now = 0;
  uint32_t most_late = 0;  // rounds of all threads
  PhiloxStream chance{1, 2, 3};
  std::function<void()> body, previous;  // previous: ends when a kernel waits for it

  const char* fault = nullptr;

  void yield() { swapcontext(&threads[static_cast<size_t>(current)].context, &scheduler); }
  // A thread that did wrong goes no further; run() tells.
  void fail(const char* what) {
    for (fault = what;;) yield();
  }
  void arrive(int which, int count) {
    Meeting& m = meetings[which];
    if (++m.here == count) m.here = 0, ++m.times;
  }
  void meet(int which, int count) {
    const Meeting& m = meetings[which];
    const int64_t before = m.times;
    arrive(which, count);
    while (m.times == before) yield();
  }
  void meet_warp() { meet(current / 32, 32); }
  // What the lanes of a warp have, as lane i gives it, until the next exchange.
  template <size_t kCount>
  auto exchange(const std::array<uint64_t, kCount>& mine) {
    meet_warp();  // all have done with what was exchanged before
    std::copy(mine.begin(), mine.end(), exchanged[static_cast<size_t>(current)].begin());
    meet_warp();
    return &exchanged[static_cast<size_t>(current / 32 * 32)];
  }
  int rank() const { return current / block_threads; }
  std::byte* shared() { return memory + static_cast<size_t>(rank()) * kSharedBytes; }
  void run(int threads_in_block);

 private:
  static void begin();
  void start(Thread& thread);
  void deliver();
};
inline Card card;

inline void Card::begin() {
  card.body();
  card.threads[static_cast<size_t>(card.current)].done = true;
  card.yield();
}
inline void Card::start(Thread& thread) {
  thread.stack.resize(64 << 10);
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = thread.stack.data();
  thread.context.uc_stack.ss_size = thread.stack.size();
  thread.context.uc_link = nullptr;
  makecontext(&thread.context, begin, 0);
}
inline void Card::deliver() {
  ++now;
  for (size_t i = 0; i < copies.size();) {
    if (copies[i].due > now) {
      ++i;
      continue;
    }
    const Copy copy = std::move(copies[i]);
    copies.erase(copies.begin() + static_cast<ptrdiff_t>(i));
    copy.arrive();
  }
}
// One block, or the blocks of a cluster, from the first to the last instruction.
inline void Card::run(int threads_in_block) {
  constexpr int kMaxRounds = 1'000'000;
  const int all = cluster * threads_in_block;
  block_threads = threads_in_block;
  std::memset(static_cast<void*>(memory), 0xff, sizeof memory);
  barriers.clear(), meetings.clear(), copies.clear(), fault = nullptr;
  threads = std::vector<Thread>(static_cast<size_t>(all));
  for (Thread& thread : threads) start(thread);
  for (int round = 0, left = all; left > 0; ++round) {
    if (round > kMaxRounds) throw std::runtime_error("the kernel hangs");
    deliver();
    left = 0;
    for (current = 0; current < all; ++current) {
      Thread& thread = threads[static_cast<size_t>(current)];
      if (thread.done) continue;
      swapcontext(&scheduler, &thread.context);
      if (fault) throw std::runtime_error(fault);
      left += !thread.done;
    }
  }
}

struct Index {
  struct Number {
    int (*value)();
    operator unsigned() const { return static_cast<unsigned>(value()); }
  } x, y = {[] { return 0; }};
};

}  // namespace vitrum::emulated

static inline const vitrum::emulated::Index threadIdx{
    {[] { return vitrum::emulated::card.current % vitrum::emulated::card.block_threads; }}},
    blockIdx{{[] { return vitrum::emulated::card.block + vitrum::emulated::card.rank(); }},
             {[] { return vitrum::emulated::card.block_y; }}},
    gridDim{{[] { return vitrum::emulated::card.blocks; }},
            {[] { return vitrum::emulated::card.blocks_y; }}};
static inline void __syncthreads() {
  using vitrum::emulated::card;
  card.meet(card.kAll - card.rank(), card.block_threads);
}
static inline void __syncwarp() { vitrum::emulated::card.meet_warp(); }
static inline uint32_t __shfl_sync(uint32_t, uint32_t x, int from) {
  return static_cast<uint32_t>(vitrum::emulated::card.exchange<1>({x})[from][0]);
}
static inline float __shfl_xor_sync(uint32_t, float x, int other) {
  const int lane = vitrum::emulated::card.current % 32;
  const auto* all = vitrum::emulated::card.exchange<1>({std::bit_cast<uint32_t>(x)});
  return std::bit_cast<float>(static_cast<uint32_t>(all[lane ^ other][0]));
}
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __uint_as_float(uint32_t bits) { return std::bit_cast<float>(bits); }
static inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
static inline int min(int a, int b) { return std::min(a, b); }
struct float2 {
  float x, y;
};
struct uint4 {
  uint32_t x, y, z, w;
};
static inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  return {x, y, z, w};
}

// A TMA descriptor: strides in elements.
struct CUtensorMap {
  const uint16_t* data = nullptr;  // written to where a box is stored
  std::vector<int64_t> sizes, strides, box;
  size_t swizzle = 128;  // bytes
};
