// Backward; see attention/one_tile.cuh.
#include "vitrum/cuda/attention/one_tile.cuh"
#include "vitrum/cuda/primitives/column_sums.cuh"

namespace vitrum::cuda {
namespace {

template <bool kExtraToken>
struct Backward : OneTile<kExtraToken> {
  using Base = OneTile<kExtraToken>;
  using Base::kKeys, Base::kMatrix, Base::kRows, Base::kSteps, Base::lane;
  static constexpr int kSlots = 7;
  static constexpr size_t kBytes =
      size_t{kSlots} * kMatrix +
      (kExtraToken ? 2 * kRows * sizeof(bf16) + kLast * sizeof(float2) : 0);

  // Six slots in turn, of seven. The next image begins three further, at dy: when the operands have
  // been used it can be read into dy, p, ds and the seventh, while results leave from q, k and v.
  std::byte *q, *k, *v, *dy, *p, *ds;
  bf16 *last_p, *last_ds;  // of every query to the last key
  float2* dots;            // of other keys with the last query, of other values with the last dy

  __device__ __forceinline__ Backward(std::byte* memory, int first_slot, int count)
      : Base{kExtraToken ? kLast + 1 : count} {
    memory += opaque(0);
    std::byte** const all[] = {&q, &k, &v, &dy, &p, &ds};
#pragma unroll
    for (int i = 0; i < 6; ++i) *all[i] = memory + slot(first_slot, i) * kMatrix;
    last_p = reinterpret_cast<bf16*>(memory + kSlots * kMatrix), last_ds = last_p + kRows;
    dots = reinterpret_cast<float2*>(last_ds + kRows);
  }
  static __device__ __forceinline__ int slot(int first, int i) {
    return first + i < kSlots ? first + i : first + i - kSlots;
  }
  static __device__ __forceinline__ int next_slot(int first) { return slot(first, 3); }

  // Into the first four slots from `first_slot` on.
  static __device__ __forceinline__ void read_all(const BackwardViews& from, std::byte* memory,
                                                  int first_slot, int count) {
    const auto at = [&](int i) { return memory + slot(first_slot, i) * kMatrix; };
    const int thread = opaque(threadIdx.x);
    Base::read(at(0), from.q, count, thread);
    Base::read(at(1), from.k, count, thread);
    Base::read(at(2), from.v, count, thread);
    Base::read(at(3), from.dy, count, thread);
  }

  // ---- the main warps ----
  __device__ __forceinline__ void put(std::byte* to, bf16* last, const FragmentA (&a)[kSteps],
                                      int row) const {
#pragma unroll
    for (int j = 0; j < 4; ++j) stmatrix_x4(this->part_of(to, row, 16 * j), a[j].r);
    if (!kExtraToken || lane % 4 != 0) return;
    last[row + lane / 4] = __ushort_as_bfloat16(static_cast<uint16_t>(a[kSteps - 1].r[0]));
    last[row + lane / 4 + 8] = __ushort_as_bfloat16(static_cast<uint16_t>(a[kSteps - 1].r[1]));
  }
  // d (64, 64) = the rows of one matrix by those of another, over all tokens.
  static __device__ __forceinline__ void start_transposed(float (&d)[32], const std::byte* a,
                                                          const std::byte* b) {
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
      wgmma_ss_at_bt(d, make_descriptor(a + 16 * i * kSwizzledRow),
                     make_descriptor(b + 16 * i * kSwizzledRow), i > 0);
  }
  // Of the last query and its dy with this warp's keys and values.
  __device__ __forceinline__ void put_dots(int warp) const {
    Tile c;  // column 0 and column 1
#pragma unroll
    for (int step = 0; step < kScoreSteps; ++step) {
      const int at = kLast * kSwizzledRow + 32 * step;
      add_dots(c, k, warp, step, OneColumn(q + at, lane, 0), lane);
      add_dots(c, v, warp, step, OneColumn(dy + at, lane, 1), lane);
    }
    if (lane % 4 == 0) {
      dots[16 * warp + lane / 4] = {c.v[0], c.v[1]};
      dots[16 * warp + lane / 4 + 8] = {c.v[2], c.v[3]};
    }
    Base::template release_last_token_warp<kDotted>();
  }
  // Scores to their gradients, times kScale; the weights go to shared memory.
  __device__ __forceinline__ void score_gradients(FragmentA (&out)[kSteps], const float (&lse)[2],
                                                  int row) const {
    float s[kKeys / 2], d[kKeys / 2];
    wgmma_fence();
    issue_scores(s, q, k);
    wgmma_commit();
    issue_scores(d, dy, v);
    wgmma_commit();
    if (kExtraToken) put_dots(row / 16);
    wgmma_wait<1>();
    fence_accumulators(s);
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i)
      s[i] = exp2_approx(fmaf(s[i], kScale * kLog2E, lse[i % 4 / 2] * -kLog2E));
    this->fill_behind(s, 0);
    Base::pack_all(out, s);
    put(p, last_p, out, row);
    wgmma_wait<0>();
    fence_accumulators(d);
    float delta[2] = {0, 0};  // sum of weights and their gradients: dy . y, without reading y
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) delta[i % 4 / 2] = fmaf(s[i], d[i], delta[i % 4 / 2]);
    delta[0] = quad_sum(delta[0]), delta[1] = quad_sum(delta[1]);
#pragma unroll
    for (int i = 0; i < kKeys / 2; ++i) d[i] = s[i] * kScale * (d[i] - delta[i % 4 / 2]);
    Base::pack_all(out, d);
  }
  // ahead() is called when shared memory has room for the next image.
  template <class Ahead>
  __device__ __forceinline__ void main_warps(const float (&lse)[2], bf16* to, int stride, int apart,
                                             float (&sums)[6], const Ahead& ahead) const {
    const int warp = this->thread / kWarp, row = 16 * warp;
    FragmentA ds_parts[kSteps];
    score_gradients(ds_parts, lse, row);
    put(ds, last_ds, ds_parts, row);
    fence_async_proxy();
    float dq[32], dv[32], dk[32];
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSteps; ++i)
      wgmma_rs_bt(dq, ds_parts[i], make_descriptor(k + 16 * i * kSwizzledRow), i > 0);
    wgmma_commit();
    Base::template sync_all<kWeighted>();
    wgmma_fence();
    start_transposed(dv, p, dy);
    wgmma_commit();
    wgmma_wait<1>();
    fence_accumulators(dq);
    this->stage(v, dq, row);  // no one reads values any more
    wgmma_fence();
    start_transposed(dk, ds, q);
    wgmma_commit();
    this->store(to, stride, v, row);
    Tile last;  // of the last key, 16 values a warp: dv in column 0, dk in column 1
    if (kExtraToken)
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const OneColumn of_p(last_p + 16 * step, lane), of_ds(last_ds + 16 * step, lane, 1);
        add_rows(last, dy, 16 * step, warp, of_p.low, of_p.high, lane);
        add_rows(last, q, 16 * step, warp, of_ds.low, of_ds.high, lane);
      }
    wgmma_wait<0>();
    fence_accumulators(dv), fence_accumulators(dk);
    Base::template sync_all<kUsed>();
    ahead();
    this->stage(k, dk, row), this->stage(q, dv, row);
    if (kExtraToken) put_column(q, last, warp, 0), put_column(k, last, warp, 1);
    Base::template release_last_token_warp<kStaged>();
    this->store(to + apart, stride, k, row);
    this->store(to + 2 * apart, stride, q, row);
    add_columns(sums, row);
  }
  // A column of c as a part of the last token's row.
  __device__ __forceinline__ void put_column(std::byte* to, const Tile& c, int m,
                                             int column) const {
    if (lane % 4 != 0) return;
    this->put_last(to, 16 * m + lane / 4, c.v[column]);
    this->put_last(to, 16 * m + lane / 4 + 8, c.v[2 + column]);
  }
  // The column sums of a warp's rows by a product with ones: those of value 16 m + g, and + 8, in
  // the columns of lane t = m, where dq has the even and dk the odd ones.
  __device__ __forceinline__ void add_columns(float (&sums)[6], int row) const {
    Tile c, of_v;
#pragma unroll
    for (int m = 0; m < 4; ++m) {
      const uint32_t even = lane / 4 == 2 * m ? kOnes : 0, odd = lane / 4 == 2 * m + 1 ? kOnes : 0;
      add_rows(c, v, row, m, even, even, lane);
      add_rows(c, k, row, m, odd, odd, lane);
      add_rows(of_v, q, row, m, even, even, lane);
    }
    sums[0] += c.v[0], sums[1] += c.v[2], sums[2] += c.v[1], sums[3] += c.v[3];
    sums[4] += of_v.v[0], sums[5] += of_v.v[2];
  }

  // ---- the last-token warp ----
  // The last rows of two matrices multiplied.
  __device__ __forceinline__ float dot_last(const std::byte* a, const std::byte* b) const {
    const auto two = [&](const std::byte* matrix) {
      return reinterpret_cast<const uint32_t*>(matrix + kLast * kSwizzledRow)[lane];
    };
    const auto low = [](uint32_t x) { return __uint_as_float(x << 16); };
    const auto high = [](uint32_t x) { return __uint_as_float(x & 0xffff0000u); };
    const uint32_t x = two(a), y = two(b);
    return warp_sum(fmaf(low(x), low(y), high(x) * high(y)));
  }
  // A lane has two keys, and every lane the last.
  __device__ __forceinline__ void last_scores(float lse) const {
    float s[3], d[3];
    s[2] = dot_last(q, k), d[2] = dot_last(dy, v);
    Base::template sync_all<kDotted>();
    const float4 both = reinterpret_cast<const float4*>(dots)[lane];
    s[0] = both.x, d[0] = both.y, s[1] = both.z, d[1] = both.w;
#pragma unroll
    for (float& x : s) x = exp2_approx(fmaf(x, kScale * kLog2E, lse * -kLog2E));
    const float delta = fmaf(s[2], d[2], warp_sum(fmaf(s[0], d[0], s[1] * d[1])));
#pragma unroll
    for (int i = 0; i < 3; ++i) d[i] = s[i] * kScale * (d[i] - delta);
    reinterpret_cast<uint32_t*>(p + kLast * kSwizzledRow)[lane] = pack2(s[0], s[1]);
    reinterpret_cast<uint32_t*>(ds + kLast * kSwizzledRow)[lane] = pack2(d[0], d[1]);
    if (lane != 0) return;
    last_p[kLast] = __float2bfloat16_rn(s[2]), last_ds[kLast] = __float2bfloat16_rn(d[2]);
  }
  __device__ __forceinline__ void last_token_warp(float lse, bf16* to, int stride, int apart,
                                                  float (&sums)[6]) const {
    last_scores(lse);
    fence_async_proxy();
    __syncwarp();
    Base::template sync_all<kWeighted>();
    Tile dq[4];
#pragma unroll
    for (int step = 0; step < 5; ++step) {
      const OneColumn of_ds(step < 4 ? ds + kLast * kSwizzledRow + 32 * step
                                     : reinterpret_cast<std::byte*>(last_ds + kLast),
                            lane);
#pragma unroll
      for (int m = 0; m < 4; ++m) add_rows(dq[m], k, 16 * step, m, of_ds.low, of_ds.high, lane);
    }
    Base::template sync_all<kUsed>();
#pragma unroll
    for (int m = 0; m < 4; ++m) put_column(v, dq[m], m, 0);
    __syncwarp();
    Base::template sync_all<kStaged>();
    std::byte* const from[3] = {v, k, q};
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      this->store_last(to + i * apart, stride, from[i]);
      const auto two = reinterpret_cast<const uint32_t*>(from[i] + kLast * kSwizzledRow)[lane];
      sums[2 * i] += __uint_as_float(two << 16);
      sums[2 * i + 1] += __uint_as_float(two & 0xffff0000u);
    }
  }
};

// The column sums of a block's images, over its warps in turn.
template <bool kExtraToken>
__device__ __forceinline__ void write_columns(const PersistentArgs& args, std::byte* memory,
                                              const float (&sums)[6], int head, int part) {
  auto* of_warps = reinterpret_cast<float*>(memory);  // (4 or 5, 3, kHead)
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int column = warp < 4 ? lane % 4 * 16 + lane / 4 : 2 * lane, second = warp < 4 ? 8 : 1;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 6; ++i)
    if (kExtraToken || warp < 4)
      of_warps[(warp * 3 + i / 2) * kHead + column + i % 2 * second] = sums[i];
  __syncthreads();
  const AttentionShape& shape = args.attention.shape;
  float* to = args.columns + part * shape.qkv_stride() + head * kHead;
  for (int i = threadIdx.x; i < 3 * kHead; i += blockDim.x) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < (kExtraToken ? 5 : 4); ++w) sum += of_warps[w * 3 * kHead + i];
    to[i / kHead * shape.y_stride() + i % kHead] = sum;
  }
}

template <bool kExtraToken>
__device__ __forceinline__ void backward(const PersistentArgs& args) {
  using Work = Backward<kExtraToken>;
  std::byte* const memory = tile_memory();
  const AttentionShape shape = args.attention.shape;
  const int stride = static_cast<int>(shape.qkv_stride()),
            apart = static_cast<int>(shape.y_stride());
  const int head = blockIdx.x % shape.heads, part = blockIdx.x / shape.heads;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarp, 0), lane = threadIdx.x % kWarp;
  if (kExtraToken) clear_memory(memory, Work::kBytes);
  const auto views = [&](int64_t image) { return backward_views(args.attention, image, head); };
  const auto lse_of = [&](int64_t image, int row) {
    return row < shape.tokens
               ? args.attention.lse[(image * shape.heads + head) * shape.tokens + row]
               : INFINITY;
  };
  const int64_t start = reversed_index(part, args.images);
  float sums[6] = {};
  int first_slot = 0;
  if (warp < 4) {
    const int row = 16 * warp + lane / 4;
    float lse[2] = {lse_of(start, row), lse_of(start, row + 8)};
    Work::read_all(views(start), memory, 0, shape.tokens);
    for (int64_t image = start; image >= 0; image -= args.parts) {
      finish_fill();
      sync_warpgroup(0);
      Work::template release_last_token_warp<kLoaded>();
      const int slots_of_next = Work::next_slot(first_slot);
      float next_lse[2] = {};
      Work(memory, first_slot, shape.tokens)
          .main_warps(lse, views(image).dqkv, stride, apart, sums, [&] {
            const int64_t next = image - args.parts;
            if (next < 0) return;
            Work::read_all(views(next), memory, slots_of_next, shape.tokens);
            next_lse[0] = lse_of(next, row), next_lse[1] = lse_of(next, row + 8);
          });
      lse[0] = next_lse[0], lse[1] = next_lse[1];
      first_slot = slots_of_next;
    }
  } else if (kExtraToken) {
    for (int64_t image = start; image >= 0; image -= args.parts) {
      const float lse = lse_of(image, kLast);
      Work::template sync_all<kLoaded>();
      Work(memory, first_slot, shape.tokens)
          .last_token_warp(lse, views(image).dqkv, stride, apart, sums);
      first_slot = Work::next_slot(first_slot);
    }
  }
  if (args.columns) write_columns<kExtraToken>(args, memory, sums, head, part);
}

template <bool kExtraToken>
__global__ void __launch_bounds__(OneTile<kExtraToken>::kThreads, kTileBlocks<kExtraToken>)
    one_tile_backward([[maybe_unused]] PersistentArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  backward<kExtraToken>(args);
#endif
}

template <bool kExtraToken>
KernelPtr launch(CudaBackend& cuda, const AttentionArgs& args, int64_t images) {
  constexpr size_t kBytes = Backward<kExtraToken>::kBytes;
  allow_shared_memory(one_tile_backward<kExtraToken>, kBytes);
  const int64_t parts = persistent_parts(cuda, kTileBlocks<kExtraToken>, args.shape.heads, images),
                width = args.shape.qkv_stride();
  float* columns = args.column_sums ? cuda.scratch_of<float>(parts * width) : nullptr;
  return make_kernel([=, stream = cuda.stream()] {
    one_tile_backward<kExtraToken>
        <<<static_cast<unsigned>(parts * args.shape.heads), OneTile<kExtraToken>::kThreads, kBytes,
           stream>>>(PersistentArgs{args, columns, images, parts});
    if (columns) launch_finish(columns, parts, width, AddToColumns{args.column_sums}, stream);
  });
}

}  // namespace

KernelPtr one_tile_attention_bwd(CudaBackend& cuda, const AttentionArgs& args, int64_t images) {
  return args.shape.tokens > kLast ? launch<true>(cuda, args, images)
                                   : launch<false>(cuda, args, images);
}

}  // namespace vitrum::cuda
