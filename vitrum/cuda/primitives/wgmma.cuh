// WGMMA (sm_90a): a warpgroup of 128 threads multiplies 64 x 16 by 16 x N, operands in shared
// memory (ss) or A in registers (rs); `at` and `bt` mark an operand that is stored transposed (MN-
// major). Accumulators lie as in mma.cuh, warp w having rows 16 w to 16 w + 15.
#pragma once
#include "vitrum/cuda/primitives/mma.cuh"

namespace vitrum::cuda {

// Rows of 64 bf16 (128 bytes) in shared memory, swizzled: the 16-byte piece c of row r is stored in
// place of piece c ^ (r % 8). Matrices start at multiples of 1024 bytes.
constexpr int kSwizzledRow = 128;  // bytes

__device__ __forceinline__ std::byte* swizzled(std::byte* matrix, int row, int piece) {
  return matrix + row * kSwizzledRow + ((piece ^ (row & 7)) << 4);
}

// The shared memory descriptor of a matrix: its address, groups of eight rows 1024 bytes apart,
// 128-byte swizzle. The same words serve rows as columns (depth along a row) and rows as they are.
__device__ __forceinline__ uint64_t make_descriptor(const std::byte* matrix) {
  const uint64_t address = shared_address(matrix) & 0x3ffff;
  return address >> 4 | uint64_t{1} << 16 | uint64_t{1024 >> 4} << 32 | uint64_t{1} << 62;
}

// Rows wider than 64: panels of 64 columns, so many bytes apart.
__device__ __forceinline__ uint64_t make_panel_descriptor(const std::byte* matrix, int apart) {
  return make_descriptor(matrix) - (uint64_t{1} << 16) + (static_cast<uint64_t>(apart >> 4) << 16);
}

__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
// Until at most kPending groups are under way.
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kPending) : "memory");
}
// Keeps the compiler from reading accumulators before wgmma_wait.
template <int kCount>
__device__ __forceinline__ void fence_accumulators(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// What threads wrote to shared memory becomes visible to the async proxy (WGMMA, TMA) after the
// next barrier.
__device__ __forceinline__ void fence_async_proxy() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}
__device__ __forceinline__ void sync_warpgroup(int which) {
  // Spelt out, so that a block claims the barriers it uses and no more.
  if (which == 0) asm volatile("bar.sync 1, 128;\n" ::: "memory");
  if (which == 1) asm volatile("bar.sync 2, 128;\n" ::: "memory");
  if (which == 2) asm volatile("bar.sync 3, 128;\n" ::: "memory");
}

// As sync_warpgroup, beside its barriers.
__device__ __forceinline__ void sync_warpgroup_2(int group) {
  asm volatile("bar.sync %0, 128;\n" ::"r"(4 + group) : "memory");
}

// So many threads of a block meet, whole warps.
template <int kThreads>
__device__ __forceinline__ void sync_threads() {
  asm volatile("bar.sync 1, %0;\n" ::"n"(kThreads) : "memory");
}

// setmaxnreg: a warpgroup has so many registers from here on, fewer than before, or more once
// others have released them. Of 65,536 for an SM's threads.
template <int kCount>
__device__ __forceinline__ void reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kCount));
}
template <int kCount>
__device__ __forceinline__ void reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kCount));
}

// Which of its sums a thread has for row 8 half of its warp's rows and column 32 part + 8 t + i, t
// being its place in a quad, where the second operand's rows are shuffled (tensor_map.h).
__device__ constexpr int permuted_accumulator(int part, int half, int i) {
  return 16 * part + 4 * (i / 2) + 2 * half + i % 2;
}

// ---- the products themselves: each writes its sums' names and the sums out ----

#define VITRUM_NAMES_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define VITRUM_NAMES_16 \
  VITRUM_NAMES_8        \
  ", %8, %9, %10, %11, %12, %13, %14, %15"
#define VITRUM_NAMES_24 \
  VITRUM_NAMES_16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23"
#define VITRUM_NAMES_32 \
  VITRUM_NAMES_24       \
  ", %24, %25, %26, %27, %28, %29, %30, %31"
#define VITRUM_NAMES_36 \
  VITRUM_NAMES_32       \
  ", %32, %33, %34, %35"
#define VITRUM_NAMES_40 \
  VITRUM_NAMES_36       \
  ", %36, %37, %38, %39"
#define VITRUM_NAMES_48 \
  VITRUM_NAMES_40       \
  ", %40, %41, %42, %43, %44, %45, %46, %47"
#define VITRUM_NAMES_56 \
  VITRUM_NAMES_48       \
  ", %48, %49, %50, %51, %52, %53, %54, %55"
#define VITRUM_NAMES_64 \
  VITRUM_NAMES_56       \
  ", %56, %57, %58, %59, %60, %61, %62, %63"
#define VITRUM_NAMES_72 \
  VITRUM_NAMES_64       \
  ", %64, %65, %66, %67, %68, %69, %70, %71"
#define VITRUM_NAMES_96                                                           \
  VITRUM_NAMES_72                                                                 \
  ", %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, " \
  "%87, %88, %89, %90, %91, %92, %93, %94, %95"
#define VITRUM_NAMES_100 \
  VITRUM_NAMES_96        \
  ", %96, %97, %98, %99"
#define VITRUM_NAMES_104 \
  VITRUM_NAMES_100       \
  ", %100, %101, %102, %103"
#define VITRUM_NAMES_128                                                       \
  VITRUM_NAMES_104                                                             \
  ", %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, " \
  "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define VITRUM_4_SUMS(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define VITRUM_8_SUMS(i) VITRUM_4_SUMS(i), VITRUM_4_SUMS(i + 4)
#define VITRUM_32_SUMS(i) \
  VITRUM_8_SUMS(i), VITRUM_8_SUMS(i + 8), VITRUM_8_SUMS(i + 16), VITRUM_8_SUMS(i + 24)
#define VITRUM_SUMS_8 VITRUM_8_SUMS(0)
#define VITRUM_SUMS_16 VITRUM_8_SUMS(0), VITRUM_8_SUMS(8)
#define VITRUM_SUMS_24 VITRUM_8_SUMS(0), VITRUM_8_SUMS(8), VITRUM_8_SUMS(16)
#define VITRUM_SUMS_32 VITRUM_32_SUMS(0)
#define VITRUM_SUMS_36 VITRUM_32_SUMS(0), VITRUM_4_SUMS(32)
#define VITRUM_SUMS_40 VITRUM_32_SUMS(0), VITRUM_8_SUMS(32)
#define VITRUM_SUMS_48 VITRUM_32_SUMS(0), VITRUM_8_SUMS(32), VITRUM_8_SUMS(40)
#define VITRUM_SUMS_56 VITRUM_SUMS_48, VITRUM_8_SUMS(48)
#define VITRUM_SUMS_64 VITRUM_32_SUMS(0), VITRUM_32_SUMS(32)
#define VITRUM_SUMS_72 VITRUM_32_SUMS(0), VITRUM_32_SUMS(32), VITRUM_8_SUMS(64)
#define VITRUM_SUMS_96 VITRUM_32_SUMS(0), VITRUM_32_SUMS(32), VITRUM_32_SUMS(64)
#define VITRUM_SUMS_100 VITRUM_32_SUMS(0), VITRUM_32_SUMS(32), VITRUM_32_SUMS(64), VITRUM_4_SUMS(96)
#define VITRUM_SUMS_104 VITRUM_32_SUMS(0), VITRUM_32_SUMS(32), VITRUM_32_SUMS(64), VITRUM_8_SUMS(96)
#define VITRUM_SUMS_128 \
  VITRUM_32_SUMS(0), VITRUM_32_SUMS(32), VITRUM_32_SUMS(64), VITRUM_32_SUMS(96)
// An instruction for N columns, whose operands behind the sums have these names.
#define VITRUM_PRODUCT(columns, count, add, operands)                                     \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " add                                                 \
  ", 0;\n"                                                                                \
  "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32.bf16.bf16 {" VITRUM_NAMES_##count \
      "}, " operands ";\n}\n"
#define VITRUM_MULTIPLY(function, columns, count, a, b, add, b_is_rows)                     \
  __device__ __forceinline__ void function(float(&d)[count], uint64_t left, uint64_t right, \
                                           bool adds) {                                     \
    asm volatile(VITRUM_PRODUCT(columns, count, add, a ", " b ", p, 1, 1, 0, " #b_is_rows)  \
                 : VITRUM_SUMS_##count                                                      \
                 : "l"(left), "l"(right), "r"(static_cast<int>(adds)));                     \
  }

// d (64, N) = or += a (64 rows) b (N rows)^T, 16 deep, both by descriptors.
VITRUM_MULTIPLY(wgmma_ss, 16, 8, "%8", "%9", "%10", 0)
VITRUM_MULTIPLY(wgmma_ss, 32, 16, "%16", "%17", "%18", 0)
VITRUM_MULTIPLY(wgmma_ss, 48, 24, "%24", "%25", "%26", 0)
VITRUM_MULTIPLY(wgmma_ss, 64, 32, "%32", "%33", "%34", 0)
VITRUM_MULTIPLY(wgmma_ss, 72, 36, "%36", "%37", "%38", 0)
VITRUM_MULTIPLY(wgmma_ss, 80, 40, "%40", "%41", "%42", 0)
VITRUM_MULTIPLY(wgmma_ss, 96, 48, "%48", "%49", "%50", 0)
VITRUM_MULTIPLY(wgmma_ss, 112, 56, "%56", "%57", "%58", 0)
VITRUM_MULTIPLY(wgmma_ss, 128, 64, "%64", "%65", "%66", 0)
VITRUM_MULTIPLY(wgmma_ss, 144, 72, "%72", "%73", "%74", 0)
VITRUM_MULTIPLY(wgmma_ss, 192, 96, "%96", "%97", "%98", 0)
VITRUM_MULTIPLY(wgmma_ss, 200, 100, "%100", "%101", "%102", 0)
VITRUM_MULTIPLY(wgmma_ss, 208, 104, "%104", "%105", "%106", 0)
VITRUM_MULTIPLY(wgmma_ss, 256, 128, "%128", "%129", "%130", 0)
// d (64, N) = or += a (64 rows) b (16 rows of N), both by descriptors.
VITRUM_MULTIPLY(wgmma_ss_bt, 96, 48, "%48", "%49", "%50", 1)
VITRUM_MULTIPLY(wgmma_ss_bt, 128, 64, "%64", "%65", "%66", 1)
VITRUM_MULTIPLY(wgmma_ss_bt, 192, 96, "%96", "%97", "%98", 1)
// d (64, 64) = or += a (64, 16 of registers) b (16 rows of 64), by a descriptor.
__device__ __forceinline__ void wgmma_rs_bt(float (&d)[32], const FragmentA& a, uint64_t b,
                                            bool add = true) {
  asm volatile(VITRUM_PRODUCT(64, 32, "%37", "{%32, %33, %34, %35}, %36, p, 1, 1, 1")
               : VITRUM_SUMS_32
               : "r"(a.r[0]), "r"(a.r[1]), "r"(a.r[2]), "r"(a.r[3]), "l"(b),
                 "r"(static_cast<int>(add)));
}
// d (64, 64) = or += a (16 rows of 64)^T b (16 rows of 64), both by descriptors.
__device__ __forceinline__ void wgmma_ss_at_bt(float (&d)[32], uint64_t a, uint64_t b, bool add) {
  asm volatile(VITRUM_PRODUCT(64, 32, "%34", "%32, %33, p, 1, 1, 1, 1")
               : VITRUM_SUMS_32
               : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
// The same with b (16 rows of 192), in panels of 64.
__device__ __forceinline__ void wgmma_ss_at_bt(float (&d)[96], uint64_t a, uint64_t b, bool add) {
  asm volatile(VITRUM_PRODUCT(192, 96, "%98", "%96, %97, p, 1, 1, 1, 1")
               : VITRUM_SUMS_96
               : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
// d (64, N) = or += a (16 rows of 64)^T b (N rows)^T, both by descriptors.
__device__ __forceinline__ void wgmma_ss_at(float (&d)[8], uint64_t a, uint64_t b, bool add) {
  asm volatile(VITRUM_PRODUCT(16, 8, "%10", "%8, %9, p, 1, 1, 1, 0")
               : VITRUM_SUMS_8
               : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}
__device__ __forceinline__ void wgmma_ss_at(float (&d)[128], uint64_t a, uint64_t b, bool add) {
  asm volatile(VITRUM_PRODUCT(256, 128, "%130", "%128, %129, p, 1, 1, 1, 0")
               : VITRUM_SUMS_128
               : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

}  // namespace vitrum::cuda
