// What the forward and the backward kernels of LayerNorm share: how a warp, or half of one, holds a
// row.
#pragma once
#include "vitrum/cuda/primitives/device.cuh"

namespace vitrum::cuda {

constexpr int kSpan = 8 * kWarp;  // elements a warp takes at a time
constexpr int kRowWarps = 4;      // rows a block takes, where each warp has one only

// Those of a warp that have this row.
template <int kLanes>
__device__ __forceinline__ uint32_t row_lanes() {
  return kLanes == kWarp ? 0xffffffffu : 0xffffu << (threadIdx.x & 16u);
}
// The sum over kLanes neighbours: 16 where a row has at most 128 elements and each half of a warp
// its own. The other half would have added zeros: the bits are those of the whole warp.
template <int kLanes>
__device__ __forceinline__ float row_sum(float x) {
#pragma unroll
  for (int i = kLanes / 2; i > 0; i /= 2) x += __shfl_xor_sync(row_lanes<kLanes>(), x, i);
  return x;
}

template <class T, int kVectors>
__device__ __forceinline__ void load_row(Raw8<T> (&row)[kVectors], const T* from, int width,
                                         int lane) {
#pragma unroll
  for (int j = 0; j < kVectors; ++j) {
    const int i = j * kSpan + lane * 8;
    if (i < width) row[j] = load_raw(from + i);
  }
}

// body(i) for the elements of a row that this lane owns: the same, in the same order, as with
// load_row.
template <class Body>
__device__ __forceinline__ void for_lane(int width, int lane, const Body& body) {
  for (int first = lane * 8; first < width; first += kSpan)
    for (int i = first; i < min(first + 8, width); ++i) body(i);
}

// Rows short enough for the registers; f32 takes twice as many.
inline bool row_fits(int64_t width, DType dtype) {
  return width % 8 == 0 && width <= (dtype == DType::kBF16 ? 2048 : 1024);
}
inline bool usable(const TensorView& view, DType dtype) {  // or absent
  return !view || (view.dtype == dtype && aligned16(view));
}
inline bool aligned16(const float* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// How many vectors of eight a lane holds, and how many lanes a row has.
template <int vectors, int lanes = kWarp>
struct RowShape {
  static constexpr int kVectors = vectors, kLanes = lanes;
};

// Calls body(T{}, RowShape{}).
template <class Body>
void with_row(DType dtype, int width, const Body& body) {
  const auto vectors = static_cast<int>(divide_up(width, kSpan));
  const auto small = [&](auto type) {
    if (2 * width <= kSpan) return body(type, RowShape<1, kWarp / 2>{});
    if (vectors == 1) return body(type, RowShape<1>{});
    if (vectors == 2) return body(type, RowShape<2>{});
    if (vectors == 3) return body(type, RowShape<3>{});
    return body(type, RowShape<4>{});
  };
  if (dtype != DType::kBF16) return small(float{});
  if (vectors <= 4) return small(bf16{});
  if (vectors == 5) return body(bf16{}, RowShape<5>{});
  if (vectors == 6) return body(bf16{}, RowShape<6>{});
  body(bf16{}, RowShape<8>{});
}

// Sums of eight, rounded.
__device__ __forceinline__ uint32_t add_two(uint32_t a, uint32_t b) {
  const __nv_bfloat162 sum = __hadd2(*reinterpret_cast<const __nv_bfloat162*>(&a),
                                     *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&sum);
}
__device__ __forceinline__ Raw8<bf16> add(const Raw8<bf16>& x, const Raw8<bf16>& y) {
  const uint4 a = x.part[0], b = y.part[0];
  return {{make_uint4(add_two(a.x, b.x), add_two(a.y, b.y), add_two(a.z, b.z), add_two(a.w, b.w))}};
}

// Vectors a row may have for sums of columns beside those of a norm's parameters, and for a branch:
// more would not fit into the registers.
constexpr int kMaxVectorsWithBranch = 4;

// Tokens of each image in another order; without a table as they are.
struct RowOrder {
  const int32_t* table = nullptr;
  uint32_t tokens = 1;
  // Rows are fewer than 2^31: to divide by 64 bits takes as long as everything else.
  __device__ __forceinline__ int64_t operator()(int64_t row) const {
    if (!table) return row;
    const uint32_t token = static_cast<uint32_t>(row) % tokens;
    return row - token + table[token];
  }
};

// What a residual branch goes through before it is added, and its gradient on the way back: scaled
// by channel and dropped by sample; and the order of rows on either side of the norm.
struct Branch {
  RowOrder from, to;  // of the row read (b, or dy) and of the row written (y, or the gradient)
  const float* gamma = nullptr;
  DropSite drop = {};
  uint32_t sample_rows = 1;

  __device__ __forceinline__ bool kept(int64_t row) const {
    const uint32_t sample = static_cast<uint32_t>(row) / sample_rows;
    return draw16(*drop.rng, drop.site, /*per_row=*/1, sample, 0) < drop.threshold;
  }
  template <class T>
  __device__ __forceinline__ void scale(Eight& x, int column) const {
    const Eight g = load8(gamma + column);
#pragma unroll
    for (int k = 0; k < 8; ++k) x.v[k] = rounded<T>(__fmul_rn(x.v[k], g.v[k]));
  }
  template <class T>
  __device__ __forceinline__ void drop_row(Eight& x, bool kept) const {
#pragma unroll
    for (int k = 0; k < 8; ++k) x.v[k] = kept ? rounded<T>(__fmul_rn(x.v[k], drop.scale)) : 0.0f;
  }
};

// A norm with its residual branch, or only with the order of its rows: rows, dtypes and addresses
// must suit the fast kernels.
KernelPtr lower_forward(CudaBackend& cuda, const AddLayerNorm& op, const Operands& io,
                        const Branch& branch);
KernelPtr lower_forward(CudaBackend& cuda, const LayerNorm& op, const Operands& io,
                        const Branch& branch);
// A branch that ends in a norm, then dropped and added: sum = skip + drop(norm(x)), whose rows come
// in the order branch.from. `ordered` may be absent: the sum once more, in the order branch.to.
KernelPtr lower_forward(CudaBackend& cuda, const LayerNorm& op, const Operands& io,
                        const Branch& branch, const TensorView& skip, const TensorView& sum,
                        const TensorView& ordered);
// Without memory for the norm itself: it leaves as e4m3 of this scale.
KernelPtr lower_norm_e4m3(CudaBackend& cuda, const AddLayerNorm& op, const Operands& io,
                          const TensorView& y, float scale);
KernelPtr lower_norm_e4m3(CudaBackend& cuda, const LayerNorm& op, const Operands& io,
                          const TensorView& y, float scale);
// `result` is what becomes of the branch's gradient, `input` what ChannelScale saw, `dgamma` its
// gradient (+=); io.column_sums those of the result.
struct BranchGradient {
  TensorView result, input;
  float* dgamma = nullptr;
};
KernelPtr lower_backward(CudaBackend& cuda, const Operands& io, const Branch& branch,
                         const BranchGradient& gradient);

}  // namespace vitrum::cuda
