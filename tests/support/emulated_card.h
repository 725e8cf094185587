// A card for tests where there is none: a block of threads takes turns on one host thread, with
// barriers, the copy engine and warpgroup products as vitrum/cuda's tma.cuh and wgmma.cuh have
// them. Copies arrive late, by chance and in any order, and shared memory begins as NaN: a kernel
// that reads too soon, writes too soon or loses count of a barrier's phases gives a wrong result or
// stops. What it cannot show: how fast, and whether the hardware agrees.
//
// For one source file: it names things as the headers of the card do.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <vector>

#include "vitrum/core/dtype.h"
#include "vitrum/core/philox.h"
#include "vitrum/cuda/gelu.h"
#include "vitrum/graph/op.h"

#define __device__
#define __forceinline__ inline

namespace vitrum::emulated {

constexpr size_t kSharedBytes = 232'448;

// A barrier in shared memory: `pending` arrivals and `bytes` are missing in this phase.
struct Barrier {
  int arrivals = 0, pending = 0;
  int64_t bytes = 0, phase = 0;
  void settle() {
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
};
struct Copy {
  int64_t due;
  std::function<void()> arrive;
};

struct Card {
  alignas(1024) std::byte memory[kSharedBytes];
  std::vector<Thread> threads;
  int current = 0, block = 0, blocks = 1;
  ucontext_t scheduler;
  std::map<const void*, Barrier> barriers;
  std::map<int, Meeting> meetings;  // of warps, of the block (kAll) and of some threads (kSome)
  static constexpr int kAll = -1, kSome = -2;
  std::vector<uint64_t> exchanged = std::vector<uint64_t>(1024);
  std::vector<Copy> copies;
  int64_t now = 0;
  uint32_t most_late = 0;  // rounds of all threads
  PhiloxStream chance{1, 2, 3};
  std::function<void()> body;

  const char* fault = nullptr;

  void yield() { swapcontext(&threads[static_cast<size_t>(current)].context, &scheduler); }
  // A thread that did wrong goes no further; run() tells.
  void fail(const char* what) {
    for (fault = what;;) yield();
  }
  void meet(int which, int count) {
    Meeting& m = meetings[which];
    const int64_t before = m.times;
    if (++m.here == count) {
      m.here = 0, ++m.times;
    } else {
      while (m.times == before) yield();
    }
  }
  void meet_warp() { meet(current / 32, 32); }
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
// One block, from its first to its last instruction.
inline void Card::run(int threads_in_block) {
  constexpr int kMostRounds = 200'000;
  std::memset(static_cast<void*>(memory), 0xff, kSharedBytes);
  barriers.clear(), meetings.clear(), copies.clear(), fault = nullptr;
  threads = std::vector<Thread>(static_cast<size_t>(threads_in_block));
  for (Thread& thread : threads) start(thread);
  for (int round = 0, left = threads_in_block; left > 0; ++round) {
    if (round > kMostRounds) throw std::runtime_error("the kernel hangs");
    deliver();
    left = 0;
    for (current = 0; current < threads_in_block; ++current) {
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
    const int* value;
    operator unsigned() const { return static_cast<unsigned>(*value); }
  } x;
};

}  // namespace vitrum::emulated

static inline const vitrum::emulated::Index threadIdx{{&vitrum::emulated::card.current}},
    blockIdx{{&vitrum::emulated::card.block}}, gridDim{{&vitrum::emulated::card.blocks}};
static inline void __syncthreads() {
  using vitrum::emulated::card;
  card.meet(card.kAll, static_cast<int>(card.threads.size()));
}
static inline float __shfl_xor_sync(uint32_t, float x, int other) {
  using vitrum::emulated::card;
  const auto mine = static_cast<size_t>(card.current), there = mine ^ static_cast<size_t>(other);
  std::memcpy(&card.exchanged[mine], &x, sizeof x);
  card.meet_warp();
  std::memcpy(&x, &card.exchanged[there], sizeof x);
  card.meet_warp();
  return x;
}
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline int min(int a, int b) { return std::min(a, b); }

// How the copy engine sees a tensor: strides in elements.
struct CUtensorMap {
  const uint16_t* data = nullptr;
  std::vector<int64_t> sizes, strides, box;
};

namespace vitrum::cuda {
using emulated::card;

// ---- device.cuh and activate.cuh ----
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
static inline Raw8<bf16> load_raw(const bf16* p) {
  Raw8<bf16> raw;
  std::copy_n(p, 8, raw.part);
  return raw;
}
static inline void store_if(bool wanted, bf16* to, const Raw8<bf16>& raw) {
  if (wanted) std::copy_n(raw.part, 8, to);
}
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
template <Act, class T>
float activate(float x) {
  return gelu_of(x, std::min(std::abs(x), kGeluEnd), [](float e) { return std::exp2(e); });
}
template <Act, class T>
float activation_slope(float x) {
  return gelu_slope_of(x, std::min(std::abs(x), kGeluEnd), [](float e) { return std::exp2(e); });
}
static inline void let_next_begin() {}

// ---- wgmma.cuh ----
constexpr int kSwizzledRow = 128;
template <int>
void give_registers() {}
template <int>
void take_registers() {}
template <int kThreads>
void sync_threads() {
  card.meet(card.kSome, kThreads);
}
static inline void begin_products() {}
static inline void commit_products() {}
template <int>
void wait_for_products() {}
template <int kCount>
void settle(float (&)[kCount]) {}
constexpr int shuffled_sum(int part, int half, int i) {
  return 16 * part + 4 * (i / 2) + 2 * half + i % 2;
}
// A place in shared memory, as copies and products address it.
static inline size_t place_of(const void* p) {
  return static_cast<size_t>(static_cast<const std::byte*>(p) - card.memory);
}
static inline std::byte* swizzled_place(size_t at) {
  at ^= (at >> 7 & 7) << 4;
  if (at + 2 > emulated::kSharedBytes) card.fail("outside of shared memory");
  return card.memory + at;
}
static inline uint64_t describe(const std::byte* matrix) { return place_of(matrix); }
static inline float element(uint64_t matrix, int row, int k) {
  uint16_t bits;
  std::memcpy(&bits, swizzled_place(matrix + static_cast<size_t>(row * kSwizzledRow + 2 * k)), 2);
  return from_bf16(bits);
}
template <int kCount>
void multiply_shared(float (&d)[kCount], uint64_t a, uint64_t b, bool add) {
  const int lane = card.current % kWarp, row = card.current / kWarp % 4 * 16 + lane / 4;
  for (int i = 0; i < kCount; ++i) {
    const int column = 8 * (i / 4) + 2 * (lane % 4) + i % 2;
    float sum = add ? d[i] : 0;
    for (int k = 0; k < 16; ++k)
      sum += element(a, row + 8 * (i / 2 % 2), k) * element(b, column, k);
    d[i] = sum;
  }
}

// ---- tma.cuh ----
static inline void init_barrier(uint64_t* barrier, int arrivals) {
  card.barriers[barrier] = {arrivals, arrivals};
}
static inline void publish_barriers() {}
static inline void expect_bytes(uint64_t* barrier, int bytes) {
  emulated::Barrier& b = card.barriers.at(barrier);
  if (b.pending == 0) card.fail("a barrier has more arrivals than it waits for");
  --b.pending, b.bytes += bytes;
  b.settle();
}
static inline void arrive(uint64_t* barrier) { expect_bytes(barrier, 0); }
static inline void wait_barrier(uint64_t* barrier, uint32_t parity) {
  const emulated::Barrier& b = card.barriers.at(barrier);
  while ((b.phase & 1) == parity) card.yield();
}
template <int kSize>
struct Ring {
  int at = 0;
  uint32_t parity = 0;
  void advance() {
    if (++at == kSize) at = 0, parity ^= 1;
  }
};
static inline void load(const CUtensorMap& map, void* to, uint64_t* barrier,
                        const std::vector<int64_t>& from) {
  const auto copy = [=, &map, begin = place_of(to)] {
    int64_t count = 1;
    for (int64_t n : map.box) count *= n;
    for (int64_t i = 0; i < count; ++i) {
      int64_t rest = i, offset = 0;
      bool inside = true;
      for (size_t k = 0; k < map.box.size(); rest /= map.box[k++]) {
        const int64_t at = from[k] + rest % map.box[k];
        inside &= at < map.sizes[k], offset += at * map.strides[k];
      }
      const uint16_t bits = inside ? map.data[offset] : 0;
      std::memcpy(swizzled_place(begin + 2 * static_cast<size_t>(i)), &bits, 2);
    }
    emulated::Barrier& b = card.barriers.at(barrier);
    b.bytes -= 2 * count;
    b.settle();
  };
  const int64_t late = card.most_late > 0 ? card.chance.below(card.most_late) : 0;
  card.copies.push_back({card.now + 1 + late, copy});
}
static inline void load_tile(const CUtensorMap& map, void* to, uint64_t* barrier, int column,
                             int row) {
  load(map, to, barrier, {column, row});
}
static inline void load_groups(const CUtensorMap& map, void* to, uint64_t* barrier, int column,
                               int group) {
  load(map, to, barrier, {column, 0, 0, 0, group});
}

}  // namespace vitrum::cuda
